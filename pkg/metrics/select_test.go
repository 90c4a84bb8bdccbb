// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// mixedNode has HCAs, workloads, GPUs and a machine.
func mixedNode() []engine.Registration {
	return append(append(node(), gpuNode()[:3]...), engine.Registration{Source: &fake{name: "node", facts: model.Snapshot{Node: machine()}}})
}

// TestCollect checks that the collectors divide the metrics, in each format.
func TestCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(setup{Sources: mixedNode(), Compat: CompatSets()})
		defer c.Close() //nolint:errcheck // nothing to lose
		for _, typ := range []expfmt.FormatType{expfmt.TypeTextPlain, expfmt.TypeOpenMetrics, expfmt.TypeProtoDelim} {
			whole, err := c.Encode(expfmt.NewFormat(typ), false)
			if err != nil {
				t.Fatal(err)
			}
			size := 0
			for _, name := range c.collectors {
				part, err := c.Encode(expfmt.NewFormat(typ), false, name)
				if err != nil {
					t.Fatal(err)
				}
				size += len(strings.TrimSuffix(string(part), "# EOF\n"))
			}
			if want := len(strings.TrimSuffix(string(whole), "# EOF\n")); size != want {
				t.Errorf("%v: the parts have %d bytes in all, the whole has %d", typ, size, want)
			}
		}
		names := func(collectors ...string) []string {
			text, err := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), false, collectors...)
			if err != nil {
				t.Fatal(err)
			}
			prefixes := map[string]bool{}
			for series := range seriesIn(string(text)) {
				prefix, _, _ := strings.Cut(series, "_")
				prefixes[prefix] = true
			}
			return slices.Sorted(maps.Keys(prefixes))
		}
		if diff := cmp.Diff([]string{"node"}, names("node")); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]string{"container", "node", "rdma"}, names("node", "probe")); diff != "" {
			t.Error(diff)
		}
		if _, err := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), false, "node", "cpu"); !errors.Is(err, ErrNoCollector) {
			t.Errorf("an unknown collector: %v", err)
		}
		// The compressed form of a part is not the answer to a request for all.
		part, _ := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), true, "node")
		if whole, _ := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), true); len(whole) <= len(part) {
			t.Errorf("%d bytes, a part has %d", len(whole), len(part))
		}
	})
}

// TestCollectors checks that each metric belongs to a collector.
func TestCollectors(t *testing.T) {
	for _, m := range table(nil) {
		if m.collector == "" {
			t.Errorf("%s belongs to no collector", m.name)
		}
	}
}

// TestExcludes checks that excluded metrics are missing, including names of driver counters, and only those.
func TestExcludes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		families := func(expression string) []string {
			var excludes func(string) bool
			if expression != "" {
				excludes = regexp.MustCompile("^(?:" + expression + ")$").MatchString
			}
			c := newCollector(setup{Sources: mixedNode(), Compat: CompatSets(), Excludes: excludes})
			defer c.Close() //nolint:errcheck // nothing to lose
			byFamily, _, _ := seriesOf(t, c)
			return slices.Sorted(maps.Keys(byFamily))
		}
		const expression = "node_memory_.*|rdma_stat_np_.*|gpu_power_watts|container_rdma_verbs_duration_seconds"
		want := slices.DeleteFunc(families(""), regexp.MustCompile("^(?:"+expression+")$").MatchString)
		if diff := cmp.Diff(want, families(expression)); diff != "" || len(want) == 0 {
			t.Errorf("families (-want +got):\n%s", diff)
		}
		if len(families(".*")) > 0 {
			t.Error("metrics are left")
		}
	})
}
