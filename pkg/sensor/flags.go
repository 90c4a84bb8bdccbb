// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/source/fabric"
	"github.com/accelscope/accelscope/pkg/source/runtime"
)

// parsedFlags are the flags of a sensor that have a form.
type parsedFlags struct {
	include, exclude, selected *regexp.Regexp
	noInterface                *regexp.Regexp
	sockets                    []runtime.Socket
}

func (f *Options) parse() (p parsedFlags, err error) {
	if p.include, err = matchName("--collector.rdma.device-include", f.DeviceInclude); err != nil {
		return p, err
	}
	if p.exclude, err = matchName("--collector.rdma.device-exclude", f.DeviceExclude); err != nil {
		return p, err
	}
	if p.selected, err = matchName("--rdma.datapath-select", f.PathSelect); err != nil {
		return p, err
	}
	if p.noInterface, err = matchName("--collector.node.network-exclude", f.NetExclude); err != nil {
		return p, err
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"kubelet.interval", f.KubeletInterval},
		{"fabric.interval", f.FabricInterval}, // without an interval, a scrape would wait
		{"rdma.stall-after", f.StallAfter},
		{"job.stall-after", f.JobStall},
		{"gpu.stuck-after", f.StuckAfter},
		{"gpu.process-interval", f.GPUInterval},
		{"probe.attach-limit", f.AttachLimit},
		{"grace", f.Grace},
	} {
		if d.value <= 0 {
			return p, fmt.Errorf("--%s=%s: want more than 0", d.flag, d.value)
		}
	}
	if f.MaxMappings <= 0 {
		return p, fmt.Errorf("--probe.max-mappings=%d: want more than 0", f.MaxMappings)
	}
	if f.FabricParallel <= 0 {
		return p, fmt.Errorf("--fabric.parallel=%d: want more than 0", f.FabricParallel)
	}
	if f.PathBudget <= 0 || f.PathBudget > 1 {
		return p, fmt.Errorf("--rdma.datapath-budget=%v: want more than 0, and 1 at most", f.PathBudget)
	}
	if f.SurveyLength < time.Second || f.SurveyLength > 2*time.Minute || f.SurveyInterval < 2*f.SurveyLength {
		return p, fmt.Errorf("--rdma.survey-length=%s, --rdma.survey-interval=%s: want 1s to 2m, and twice as much or more",
			f.SurveyLength, f.SurveyInterval)
	}
	if err := cmp.Or(checkVariables(f.Env), checkLabels(f.Labels), f.checkNode()); err != nil {
		return p, err
	}
	p.sockets, err = parseSockets(f.Sockets)
	return p, err
}

// checkNode checks the address of the node, the URL of its kubelet, and the port from which the fabric is read.
func (f *Options) checkNode() error {
	if f.NodeIP != "" {
		if _, err := netip.ParseAddr(f.NodeIP); err != nil {
			return fmt.Errorf("--node.ip: %w", err)
		}
	}
	if err := f.kubeletOptions().Check(); err != nil {
		return err
	}
	if err := fabric.CheckPort(f.FabricPort); err != nil {
		return fmt.Errorf("--fabric.port: %w", err)
	}
	return nil
}

// checkLabels checks that the names of --workload.labels have labels of their own in accelscope_workload_info.
func checkLabels(names []string) error {
	seen := map[string]string{}
	for _, n := range names {
		label := metrics.LabelOf(n)
		if other, ok := seen[label]; ok && other != n {
			return fmt.Errorf("--workload.labels: %s and %s would both be the label %s", other, n, label)
		}
		seen[label] = n
	}
	return nil
}

// checkVariables checks the value of --workload.env.
func checkVariables(names []string) error {
	if len(names) > maxVariables {
		return fmt.Errorf("--workload.env: %d names, at most %d", len(names), maxVariables)
	}
	for _, n := range names {
		if !variable.MatchString(n) {
			return fmt.Errorf("--workload.env=%s: not the name of a variable", n)
		}
	}
	return nil
}

const maxVariables = 8

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// excludesHCA reports whether an HCA is not read because of its name.
func (p parsedFlags) excludesHCA(name string) bool {
	return p.include != nil && !p.include.MatchString(name) || p.exclude != nil && p.exclude.MatchString(name)
}

// excludesInterface returns the network interfaces of the node to leave out, nil for none.
func (p parsedFlags) excludesInterface() func(name string) bool {
	return matcher(p.noInterface)
}

// excluded returns the metrics to leave out, nil for none.
func (f *Options) excluded() (func(name string) bool, error) {
	re, err := matchName("--metrics.exclude", f.Exclude)
	return matcher(re), err
}

// forms returns the forms of histograms and start times.
func (f *Options) forms() metrics.Forms {
	return metrics.Forms{
		NoClassic: !slices.Contains(f.Forms, "classic"), NoNative: !slices.Contains(f.Forms, "native"), CreatedLines: f.Created,
	}
}

// parseSockets reads the values of --runtime.socket.
func parseSockets(values []string) ([]runtime.Socket, error) {
	var sockets []runtime.Socket
	for _, v := range values {
		s, err := runtime.ParseSocket(v)
		if err != nil {
			return nil, fmt.Errorf("--runtime.socket=%s: %w", v, err)
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

// matcher returns the function that matches an expression, nil for none.
func matcher(re *regexp.Regexp) func(name string) bool {
	if re == nil {
		return nil
	}
	return re.MatchString
}

// matchName compiles an anchored expression; none is nil.
func matchName(flag, expr string) (*regexp.Regexp, error) {
	if expr == "" {
		return nil, nil
	}
	re, err := regexp.Compile("^(?:" + expr + ")$")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return re, nil
}
