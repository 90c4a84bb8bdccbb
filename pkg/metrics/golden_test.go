// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/library"
)

var update = flag.Bool("update", false, "rewrite the golden files and gen/metrics.md")

// nodes returns the nodes of the golden files: one without errors, and one for each kind of failure.
func nodes(t *testing.T) map[string][]engine.Registration {
	noHCA := node()
	noHCA[0].Source = &fake{
		name: "rdma", err: fmt.Errorf("no HCA: %w", model.ErrAbsent),
		facts: model.Snapshot{HCAs: []model.HCA{}, Resources: []model.Resource{}},
	}
	noHCA[1].Source = &fake{name: "probe", err: fmt.Errorf("no ib_core: %w", model.ErrAbsent)}

	noProbe := node()
	noProbe[0].Source = &fake{name: "rdma", facts: func() model.Snapshot {
		s := nodeHCAs()
		s.Holdings = []model.Holding{
			{Device: "mlx5_0", PID: 7, Cgroup: 101, Type: model.QP, Count: 5},
			{Device: "mlx5_0", PID: 7, Cgroup: 101, Type: model.MR, Memory: model.UnknownMemory, Count: 1, Bytes: 4096},
			{Device: "mlx5_0", PID: 7, Cgroup: 101, Type: model.MR, Memory: model.ImplicitODPMemory, Count: 1},
		}
		return s
	}()}
	noProbe[1] = engine.Registration{Source: &fake{name: "probe"}, Err: fmt.Errorf("kernel 4.18: %w", model.ErrUnsupported)}
	noProbe[2].Source = names(nodeNames())

	stuck := node()
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	stuck[0].Source = &fake{name: "rdma", read: hangs(release)}

	failed := node()
	failed[1].Source = &fake{name: "probe", err: errors.New("map: bad file descriptor")}

	quarantined := node()
	quarantined[0].Source = &fake{name: "rdma", facts: func() model.Snapshot {
		s := nodeHCAs()
		s.HCAs = s.HCAs[1:]
		s.DeviceStates = []model.DeviceState{
			{Source: "rdma", Device: "mlx5_0", State: model.StateQuarantined, Reason: "failed 5 times"},
		}
		return s
	}()}

	noNames := node()
	noNames[2] = engine.Registration{Source: &fake{name: "cgroup"}, Err: fmt.Errorf("no cgroup file system: %w", model.ErrAbsent)}

	return map[string][]engine.Registration{
		"node": node(), "no_hca": noHCA, "no_probe": noProbe, "stuck": stuck, "failed": failed,
		"quarantined": quarantined, "no_names": noNames, "gpus": gpuNode(),
		"placement": {{Source: names(nodeNames())}, {Source: &fake{name: "pci", facts: placementFacts()}}},
		"links":     {{Source: &fake{name: "link", facts: linkFacts()}}},
		"modules":   {{Source: &fake{name: "link", facts: moduleFacts()}}},
		"biterrors": {{Source: &fake{name: "link", facts: bitErrorFacts()}}},
	}
}

func gather(t *testing.T, sources []engine.Registration, compat ...string) []*dto.MetricFamily {
	t.Helper()
	c := newCollector(setup{Sources: sources, Compat: compat, GPUDetail: true, Node: "gpu01", Version: "1.0", Revision: "abc"})
	families, err := c.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil && !errors.Is(err, engine.ErrStuck) {
		t.Error(err)
	}
	return families
}

func TestGolden(t *testing.T) {
	for name := range nodes(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				families := gather(t, nodes(t)[name], CompatSets()...)
				compare(t, filepath.Join("testdata", name+".prom"), library.Encode(t, families, expfmt.TypeTextPlain))
			})
		})
	}
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (go test -update rewrites it):\n%s", file, d)
	}
}

func TestPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("promtool is missing: install the package prometheus: %v", err)
	}
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cmd := child.Command(t.Context(), promtool, "check", "metrics")
		cmd.Stdin = bytes.NewReader(golden)
		out, err := cmd.CombinedOutput()
		theirs := 0
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "DCGM_") { // a complaint about a name of DCGM
				theirs++
				continue
			}
			t.Errorf("%s: %s", file, line)
		}
		if err != nil && theirs == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestPedanticRegistry(t *testing.T) {
	for name := range nodes(t) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pedantic(t, setup{Sources: nodes(t)[name], Compat: CompatSets(), GPUDetail: true, Version: "1.0", Revision: "abc"})
			})
		})
	}
}

// pedantic checks the metrics with a pedantic registry and Prometheus's linter.
func pedantic(t *testing.T, s setup) {
	t.Helper()
	c := newCollector(s)
	defer c.Close() //nolint:errcheck // a source may be stuck
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "DCGM_") { // a complaint about a name of DCGM
			continue
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestGatherIsCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(setup{Sources: append(node(), gpuNode()[:3]...), Compat: CompatSets(), GPUDetail: true})
		defer c.Close() //nolint:errcheck // nothing to lose
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(c)
		slow, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		fast, err := c.Gather()
		if err != nil {
			t.Fatal(err)
		}
		lines := func(f []*dto.MetricFamily) []string {
			l := strings.Split(library.Encode(t, f, expfmt.TypeTextPlain), "\n")
			slices.Sort(l) // a registry sorts the series within a family
			return l
		}
		if d := cmp.Diff(lines(slow), lines(fast)); d != "" {
			t.Error(d)
		}
	})
}

// TestOpenMetrics checks that a series has the same name in both text formats.
func TestOpenMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		families := gather(t, append(node(), gpuNode()[:3]...), CompatSets()...)
		samples := func(format expfmt.FormatType) []string {
			var lines []string
			for line := range strings.Lines(library.Encode(t, families, format)) {
				if strings.HasPrefix(line, "#") {
					continue
				}
				series, _, _ := cutLast(strings.TrimSpace(line), " ")
				// The library writes le as 1.0, we write 1.
				name, labels, _ := strings.Cut(series, "{")
				if strings.HasSuffix(name, "_bucket") {
					labels = ""
				}
				lines = append(lines, name+"{"+labels)
			}
			return lines
		}
		if d := cmp.Diff(samples(expfmt.TypeTextPlain), samples(expfmt.TypeOpenMetrics)); d != "" {
			t.Error(d)
		}
	})
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

var upperBound = regexp.MustCompile(`,?le="[^"]*"`)

// TestFewBuckets: a classic histogram has at most 8 buckets, including the last. Native histograms have the full
// resolution.
func TestFewBuckets(t *testing.T) {
	const most = 8
	files, err := filepath.Glob("testdata/*.prom")
	if err != nil {
		t.Fatal(err)
	}
	histograms := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		buckets := map[string]int{}
		for line := range strings.Lines(string(text)) {
			if series, _, ok := strings.Cut(line, "} "); ok && strings.Contains(series, "_bucket{") {
				buckets[upperBound.ReplaceAllString(series, "")]++
			}
		}
		for series, n := range buckets {
			if histograms++; n > most {
				t.Errorf("%s: %s has %d buckets, more than %d", file, series, n, most)
			}
		}
	}
	if histograms == 0 {
		t.Error("no histogram")
	}
}
