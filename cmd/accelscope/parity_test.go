// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/source/node"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// nodeCollectors are the collectors of node_exporter that the source node replaces.
var nodeCollectors = []string{
	"cpu", "diskstats", "entropy", "filefd", "filesystem", "hwmon", "loadavg", "meminfo", "netclass", "netdev", "rapl",
	"netstat", "os", "pressure", "sockstat", "stat", "time", "uname", "vmstat",
}

// peer is a node_exporter to compare with, and its known differences.
type peer struct {
	version string
	binary  string
	args    []string // that set the defaults of 1.12
	// theirs are series that we leave out; ours are those that it lacks.
	theirs, ours *regexp.Regexp
	twins        bool // it distinguishes two chips of one device
	// unlabelled are labels that it lacks, by the prefix of a name.
	unlabelled map[string]string
}

// leftOut are the series of those collectors that the source leaves out: CPUs that are offline or isolated, and a value
// of macOS that is 0 on Linux.
var leftOut = regexp.MustCompile(`^node_(cpu_isolated|cpu_online|filesystem_purgeable_bytes)\{`)

// peers are Debian's node_exporter, which must be installed, and a current one, if `make bench` built it.
func peers(t *testing.T) []peer {
	t.Helper()
	binary, err := exec.LookPath("prometheus-node-exporter")
	if err != nil {
		t.Fatalf("node_exporter is missing: install the package prometheus-node-exporter: %v", err)
	}
	all := []peer{{
		version: "1.5.0", binary: binary,
		unlabelled: map[string]string{
			"node_disk_info": "rotational", "node_filesystem_": "device_error", "node_network_info": "adminstate",
		},
		// It reports whether a file system is read-only only with its size, and
		// reads no sensors of frequencies.
		ours: regexp.MustCompile(`^node_(cpu_all_seconds_total|filesystem_mount_info|pressure_irq_stalled_seconds_total|hwmon_freq_freq_mhz|` +
			`os_support_end_timestamp_seconds)\{|` +
			`^node_filesystem_readonly\{.*"/missing"|^node_hwmon_sensor_label\{.*sensor="freq`),
		theirs: leftOut,
		args: []string{
			"--collector.diskstats.device-exclude=" + `^(z?ram|loop|fd|(h|s|v|xv)d[a-z]|nvme\d+n\d+p)\d+$`,
			"--collector.filesystem.mount-points-exclude=" +
				`^/(dev|proc|run/credentials/.+|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)`,
			"--collector.filesystem.fs-types-exclude=^(autofs|binfmt_misc|bpf|cgroup2?|configfs|debugfs|devpts|devtmpfs|" +
				"fusectl|hugetlbfs|iso9660|mqueue|nsfs|overlay|proc|procfs|pstore|rpc_pipefs|securityfs|selinuxfs|squashfs|" +
				"erofs|sysfs|tracefs)$",
			"--collector.netdev.device-exclude=",
			"--collector.netstat.fields=^(.*_(InErrors|InErrs)|Ip_Forwarding|Ip(6|Ext)_(InOctets|OutOctets)|" +
				"Icmp6?_(InMsgs|OutMsgs)|TcpExt_(Listen.*|Syncookies.*|TCPSynRetrans|TCPTimeouts|TCPOFOQueue|TCPRcvQDrop)|" +
				"Tcp_(ActiveOpens|InSegs|OutSegs|OutRsts|PassiveOpens|RetransSegs|CurrEstab)|" +
				"Udp6?_(InDatagrams|OutDatagrams|NoPorts|RcvbufErrors|SndbufErrors))$",
		},
	}}
	if cache, err := os.UserCacheDir(); err == nil {
		binary := filepath.Join(cache, "accelscope-bench/node_exporter@v1.12.1/node_exporter")
		if _, err := os.Stat(binary); err == nil {
			all = append(all, peer{
				version: "1.12.1", binary: binary, twins: true, theirs: leftOut,
				// It has a fixed list of the lines of meminfo of 2020.
				ours: regexp.MustCompile(`^node_cpu_all_seconds_total\{|^node_memory_(KReclaimable|SecPageTables|FileHugePages|FilePmdMapped|Hugetlb|` +
					`Unaccepted|Balloon)_bytes\{`),
			})
		}
	}
	return all
}

// nodeSeries are the compared properties: the type of each series and its value.
type nodeSeries struct {
	typ   dto.MetricType
	value float64
}

// nodeFigures is all series by name and labels.
type nodeFigures map[string]nodeSeries

// parseNodeFigures parses the node_* families of a text, without the labels that the other side lacks.
func parseNodeFigures(t *testing.T, text string, drop map[string]string) nodeFigures {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	out := nodeFigures{}
	for name, f := range families {
		if !strings.HasPrefix(name, "node_") || strings.HasPrefix(name, "node_scrape_collector_") ||
			name == "node_exporter_build_info" {
			continue
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if !lacks(drop, name, l.GetName()) {
					labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
			}
			slices.Sort(labels)
			key := name + "{" + strings.Join(labels, ",") + "}"
			if _, twice := out[key]; twice {
				t.Errorf("%s is there twice", key)
			}
			out[key] = nodeSeries{f.GetType(), m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()}
		}
	}
	return out
}

func lacks(drop map[string]string, name, label string) bool {
	for prefix, dropped := range drop {
		if dropped == label && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// differences returns the series that differ. same reports whether two values are equal.
func differences(p peer, want, got nodeFigures, same func(name string, want, got float64) bool) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(want)) {
		w := want[key]
		g, ok := got[key]
		switch {
		case !ok && p.theirs.MatchString(key):
		case !ok:
			out = append(out, "we lack "+key)
		case g.typ != w.typ:
			out = append(out, fmt.Sprintf("%s is a %s, ours a %s", key, w.typ, g.typ))
		case !same(key, w.value, g.value):
			out = append(out, fmt.Sprintf("%s is %v, ours %v", key, w.value, g.value))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[key]; !ok && !p.ours.MatchString(key) {
			out = append(out, "only we have "+key)
		}
	}
	return out
}

// ourNode returns the text that the source and the collector make of a node.
func ourNode(t *testing.T, o node.Options) func() string {
	t.Helper()
	source, err := node.New(o)
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(engine.Options{Reuse: time.Nanosecond})
	e.Add(engine.Registration{Source: source, Deadline: time.Minute})
	e.Start()
	t.Cleanup(func() { _ = e.Close() })
	exporter := metrics.New(e, metrics.Options{})
	return func() string {
		text, err := exporter.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), false)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range e.Last().Facts.DeviceStates {
			t.Errorf("%s is %s: %s", s.Device, s.State, s.Reason)
		}
		return string(text)
	}
}

// startPeer runs a node_exporter and reads its port from its log.
func startPeer(t *testing.T, p peer, args ...string) func() string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	args = slices.Concat([]string{
		"--collector.disable-defaults", "--web.listen-address=127.0.0.1:0", "--web.disable-exporter-metrics",
	}, p.args, args)
	for _, c := range nodeCollectors {
		args = append(args, "--collector."+c)
	}
	cmd := child.Command(ctx, p.binary, args...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, log := "", strings.Builder{}
	for lines := bufio.NewScanner(stderr); address == "" && lines.Scan(); {
		log.WriteString(lines.Text() + "\n")
		if _, rest, ok := strings.Cut(lines.Text(), "address=127.0.0.1:"); ok {
			address = "127.0.0.1:" + strings.Fields(rest)[0]
		}
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, stderr)
	}()
	t.Cleanup(func() {
		cancel()
		<-drained
		_ = cmd.Wait()
	})
	if address == "" {
		t.Fatalf("node_exporter does not say where it listens:\n%s", &log)
	}
	return func() string {
		code, _, body := get(t, "http://"+address+"/metrics", "text/plain")
		if code != http.StatusOK {
			t.Fatalf("node_exporter answers %d:\n%s", code, body)
		}
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "node_scrape_collector_success") && !strings.HasSuffix(line, "} 1\n") {
				t.Logf("node_exporter: %s", line)
			}
		}
		return body
	}
}

// TestNodeParityOnFakeRoot: on a tree of files both report the same, to the last bit. Only statfs and the time, which
// come from the real kernel, may change between the two.
func TestNodeParityOnFakeRoot(t *testing.T) {
	for _, p := range peers(t) {
		t.Run(p.version, func(t *testing.T) {
			f := writeFakeNode(t, p.twins)
			theirs := startPeer(t, p, "--path.procfs="+f.procfs, "--path.sysfs="+f.sysfs, "--path.rootfs="+f.root,
				"--path.udev.data="+f.root+"/run/udev/data", "--no-collector.netdev.netlink")
			ours := ourNode(t, node.Options{Procfs: f.procfs, Sysfs: f.sysfs, Root: f.root})
			same := func(name string, want, got float64) bool {
				switch {
				case strings.HasPrefix(name, "node_filesystem_"):
					return math.Abs(want-got) <= 0.05*want
				case strings.HasPrefix(name, "node_time_seconds"):
					return math.Abs(want-got) < 30
				}
				return want == got
			}
			var want nodeFigures
			var text string
			for i, round := range []string{"first read", "when much has changed"} {
				if i > 0 {
					f.change(t)
				}
				want, text = parseNodeFigures(t, theirs(), nil), ours()
				got := parseNodeFigures(t, text, p.unlabelled)
				if len(want) < 500 {
					t.Errorf("node_exporter shows %d series only", len(want))
				}
				for _, d := range differences(p, want, got, same) {
					t.Errorf("%s: %s", round, d)
				}
				t.Logf("%s: %d series of node_exporter %s, %d of ours", round, len(want), p.version, len(got))
			}
			t.Run("planted", func(t *testing.T) { planted(t, p, want, text, same) })
		})
	}
}

// planted changes one series after the other: the comparison must report each.
func planted(t *testing.T, p peer, want nodeFigures, text string, same func(string, float64, float64) bool) {
	for name, change := range map[string][2]string{
		"value":  {`node_cpu_seconds_total{cpu="1",mode="irq"} `, `node_cpu_seconds_total{cpu="1",mode="irq"} 1`},
		"label":  {`node_disk_read_bytes_total{device="sda"}`, `node_disk_read_bytes_total{device="sdb"}`},
		"series": {"\nnode_load5 ", "\n# gone "},
		"type":   {"# TYPE node_intr_total counter", "# TYPE node_intr_total gauge"},
		"more":   {"# TYPE node_load1 gauge\n", "# TYPE node_load1 gauge\nnode_load1{a=\"b\"} 1\n"},
	} {
		changed := strings.Replace(text, change[0], change[1], 1)
		if changed == text {
			t.Errorf("%s: %q is not in the text", name, change[0])
		} else if len(differences(p, want, parseNodeFigures(t, changed, p.unlabelled), same)) == 0 {
			t.Errorf("a changed %s is not noticed", name)
		}
	}
}

// moving are gauges and untyped values that change by themselves, and the permitted change within the test.
var moving = []struct {
	name  *regexp.Regexp
	slack float64
}{
	{regexp.MustCompile(`^node_time_seconds\b`), 60},
	{regexp.MustCompile(`^node_load`), 20},
	{regexp.MustCompile(`^node_procs_`), 1000},
	{regexp.MustCompile(`^node_memory_(HugePages|Hugepagesize|MemTotal|SwapTotal|VmallocTotal)`), 0},
	{regexp.MustCompile(`^node_memory_`), 8 << 30},
	{regexp.MustCompile(`^node_(netstat|sockstat|filefd)_`), 1 << 24},
	{regexp.MustCompile(`^node_entropy_available`), 4096},
	{regexp.MustCompile(`^node_disk_io_now`), 1000},
	{regexp.MustCompile(`^node_hwmon_`), math.Inf(1)},
	{regexp.MustCompile(`^node_filesystem_(free|avail)_bytes|^node_filesystem_files`), 8 << 30},
}

// TestNodeParityOnThisMachine: on the files of this machine the series, types
// and labels are equal, and counters are between the values that node_exporter
// reports before and after.
func TestNodeParityOnThisMachine(t *testing.T) {
	for _, p := range peers(t) {
		t.Run(p.version, func(t *testing.T) {
			theirs := startPeer(t, p)
			ours := ourNode(t, node.Options{})
			// A mount point or an interface may appear during the three reads. A real difference persists.
			var wrong []string
			for end := time.Now().Add(quickly); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				before := parseNodeFigures(t, theirs(), nil)
				got := parseNodeFigures(t, ours(), p.unlabelled)
				after := parseNodeFigures(t, theirs(), nil)
				if len(before) < 300 {
					t.Errorf("node_exporter shows %d series only", len(before))
				}
				wrong = differences(p, before, got, func(key string, want, got float64) bool {
					return plausible(key, before[key].typ, want, got, after[key].value)
				})
				// Other tests mount file systems that hang. node_exporter does not wait for them as long.
				wrong = slices.DeleteFunc(wrong, func(d string) bool { return strings.Contains(d, `mountpoint="`+os.TempDir()+`/Test`) })
				if len(wrong) == 0 {
					t.Logf("%d series of node_exporter %s, %d of ours", len(before), p.version, len(got))
					return
				}
			}
			for _, d := range wrong {
				t.Error(d)
			}
		})
	}
}

// plausible reports whether a value may be from a time between two others.
func plausible(key string, typ dto.MetricType, before, value, after float64) bool {
	if typ == dto.MetricType_COUNTER || strings.HasPrefix(key, "node_vmstat_") {
		// Idle times may fall by a tick, and node_exporter keeps the maximum.
		const tick = 0.011
		return before-tick <= value && value <= after+tick
	}
	for _, m := range moving {
		if m.name.MatchString(key) {
			return math.Abs(before-value) <= m.slack
		}
	}
	return before == value
}
