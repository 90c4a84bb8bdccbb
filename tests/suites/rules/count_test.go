// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
)

// mostRead limits the series that rules and dashboards read of a node with two GPUs, HCAs and ranks, without Prometheus's
// own three.
const mostRead = 644

// TestReadSeries: the filters for many nodes keep exactly the series of a node of tests/suites/fleet that a rule or a
// dashboard selects, by name and labels.
func TestReadSeries(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run", "^TestFleetNodes$", "./pkg/metrics") //nolint:forbidigo // tests/tools/child is in another module
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, 5*time.Second
	cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "ACCELSCOPE_RECORD="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	read := selectors(t)
	for _, file := range []string{"agent.yml", "shard.yml"} {
		text, err := os.ReadFile(filepath.Join(root, "scale", file))
		if err != nil {
			t.Fatal(err)
		}
		filter := checked(t, file, string(text)).filter()
		for node, most := range map[string]int{"small.prom": mostRead, "full.prom": 3096} {
			n := 0
			for _, s := range scraped(t, filepath.Join(dir, node)) {
				selected := slices.ContainsFunc(read[s.Get("__name__")], func(matchers []*labels.Matcher) bool {
					return !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Get(m.Name)) })
				})
				if selected {
					n++
				}
				if keeps := kept(t, filter, s); keeps != selected {
					t.Errorf("%s, %s: kept: %v, selected by a rule or dashboard: %v: %v", file, node, keeps, selected, s)
				}
			}
			if n > most || n < most/2 {
				t.Errorf("%s: rules and dashboards read %d series, want at most %d", node, n, most)
			}
			t.Logf("%s: %d series are read", node, n)
		}
	}
}

// scraped returns the series of a scrape, with the target's labels.
func scraped(t *testing.T, file string) (all []labels.Labels) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			of := []string{"job", "accelscope", "instance", "gpu0000"}
			for _, l := range m.GetLabel() {
				of = append(of, l.GetName(), l.GetValue())
			}
			add := func(name string, more ...string) {
				all = append(all, labels.FromStrings(slices.Concat([]string{"__name__", name}, of, more)...))
			}
			if m.Histogram == nil {
				add(name)
				continue
			}
			add(name + "_sum")
			add(name + "_count")
			for _, b := range m.GetHistogram().GetBucket() {
				add(name+"_bucket", "le", fmt.Sprint(b.GetUpperBound()))
			}
		}
	}
	return all
}
