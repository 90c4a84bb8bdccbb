// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

var allHCAs = []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}

// TestHostileWorkload checks a workload that calls every verb on every HCA: its series in each family are bounded, its
// totals add up, the bound is exported, and other workloads keep their detail.
func TestHostileWorkload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts := crowdProbe(2, 120, 4, func(i int) []int {
			if i == 1 {
				return allHCAs
			}
			return []int{0}
		})
		facts.Verbs = slices.DeleteFunc(facts.Verbs, func(s model.Series[model.VerbKey, model.Histogram]) bool {
			return s.Cgroup == 2 && s.Key.Verb != "create_qp"
		})
		c := newCollector(setup{Sources: crowd(2, facts)})
		defer c.Close() //nolint:errcheck // nothing to lose
		all, _, text := seriesOf(t, c)
		const bound = 768 + 10*8 // at most a total for each HCA
		for family, n := range all {
			others := 0
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, family) && !strings.Contains(line, `workload="ml/train-1/main"`) {
					others++
				}
			}
			if n-others > bound {
				t.Errorf("%s has %d series of the workload", family, n-others)
			}
		}
		for name, want := range map[string]float64{
			"container_rdma_verbs_total": 10 * 120 * 3, "container_rdma_verbs_errors_total": 10 * 30 * 4,
			"container_rdma_verbs_duration_seconds_count": 10 * 120 * 3,
		} {
			if got := sumOfSeries(text, name, `workload="ml/train-1/main"`); got != want {
				t.Errorf("%s is %v in all, want %v", name, got, want)
			}
			if !strings.Contains(name, "errors") && sumOfSeries(text, name, `verb="create_qp",workload="ml/train-2/main"`) != 3 {
				t.Errorf("%s has no detail of another workload", name)
			}
		}
		for _, family := range []string{"verbs_total", "verbs_errors_total", "verbs_duration_seconds"} {
			if sumOfSeries(text, "accelscope_series_dropped_total", `family="container_rdma_`+family+`"`) == 0 {
				t.Errorf("series of %s were dropped without a trace", family)
			}
		}
		if sumOfSeries(text, "container_rdma_verbs_total", `verb="other"`) == 0 {
			t.Error("there is no verb other")
		}
	})
}

// sumOfSeries adds up the series of a name with the labels.
func sumOfSeries(text, name, labels string) (sum float64) {
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name) && line[len(name)] == '{' && strings.Contains(line, labels) {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " "):]), 64)
			sum += v
		}
	}
	return sum
}

func seriesIn(text string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		if i := strings.LastIndex(line, " "); i > 0 && !strings.HasPrefix(line, "#") {
			all[line[:i]], _ = strconv.ParseFloat(strings.TrimSpace(line[i:]), 64)
		}
	}
	return all
}

// TestManyWorkloads checks the number of series of 1,000 containers on a node with 10 HCAs, the default options and no
// kubelet: families of RDMA, opens and container usage.
func TestManyWorkloads(t *testing.T) {
	const workloads = 1000
	oneHCA, everyHCA := func(i int) []int { return []int{i % 10} }, func(int) []int { return allHCAs }
	for name, tt := range map[string]struct {
		usesOf func(int) []int
		calls  int  // verbs on each HCA
		given  bool // the containers were allocated the device nodes
		limit  int
	}{
		"one HCA each": {usesOf: oneHCA, calls: 40, limit: 100_000},
		"all HCAs":     {usesOf: everyHCA, calls: 8, limit: 100_000},
		// accelscope_workload_device_info and container_rdma_allocated have each allocated device. They are not added
		// up.
		"all HCAs as device nodes": {usesOf: everyHCA, calls: 8, given: true, limit: 100_000 + 2*10*workloads},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				probe := crowdProbe(workloads, tt.calls, 2, tt.usesOf)
				c := newCollector(setup{
					Sources: crowd(workloads, probe, crowdUsage(workloads), crowdContainers(workloads, tt.usesOf, tt.given), budgetHCAs(10)),
					Compat:  []string{CompatLens, Process}, Scope: ScopeAll,
				})
				defer c.Close() //nolint:errcheck // nothing to lose
				families, all, text := seriesOf(t, c)
				t.Log(all, "series")
				if all >= tt.limit || all < tt.limit*9/10 {
					t.Errorf("%d series, want less than %d: %v", all, tt.limit, families)
				}
				for _, name := range []string{
					"container_cpu_usage_seconds_total", "container_network_receive_bytes_total", "container_state", "container_rdma_hca_handles",
					"container_rdma_datapath_coverage", "container_device_opens_total", "container_device_handles",
				} {
					if families[name] < workloads {
						t.Errorf("%s has %d series", name, families[name])
					}
				}
				want := map[string]float64{}
				for _, s := range probe.Verbs {
					want["container_rdma_verbs_total"] += float64(s.Value.Count)
					want["container_rdma_verbs_duration_seconds_count"] += float64(s.Value.Count)
				}
				for _, s := range probe.VerbErrors {
					want["container_rdma_verbs_errors_total"] += float64(s.Value)
				}
				for _, s := range probe.Objects {
					want["container_rdma_resources"] += float64(s.Current)
				}
				for _, s := range probe.Created {
					want["container_rdma_objects_created_total"] += float64(s.Value)
				}
				for _, s := range probe.Registered {
					want["container_rdma_registered_bytes"] += float64(s.Bytes)
				}
				for _, name := range slices.Sorted(maps.Keys(want)) {
					for _, i := range []int{1, workloads} {
						owner := fmt.Sprintf(`workload="ml/train-%d/main"`, i)
						if got := sumOfSeries(text, name, owner); got != want[name]/workloads {
							t.Errorf("%s of %s is %v in all, want %v", name, owner, got, want[name]/workloads)
						}
					}
					if got := sumOfSeries(text, name, `workload="ml/`); got != want[name] {
						t.Errorf("%s is %v in all, want %v", name, got, want[name])
					}
				}
				if sumOfSeries(text, "accelscope_series_dropped_total", "") == 0 {
					t.Error("series were added up without a trace")
				}
				checkKept(t, text)
			})
		})
	}
}

// checkKept checks that series which alerts and top compare by device keep the device: gauges of the unattributed
// share, and the coverage.
func checkKept(t *testing.T, text string) {
	t.Helper()
	unattributed := 0
	for line := range strings.Lines(text) {
		name, labels, _ := strings.Cut(line, "{")
		isGauge := name == "container_rdma_resources" || name == "container_rdma_registered_bytes"
		kept := isGauge && strings.Contains(labels, `workload=""`)
		if kept {
			unattributed++
		}
		if (kept || name == "container_rdma_datapath_coverage") && strings.Contains(labels, `device="other"`) {
			t.Errorf("added up: %s", line)
		}
	}
	if unattributed < 20 {
		t.Errorf("%d gauges of the unattributed share, want those of 10 HCAs", unattributed)
	}
}

// TestFoldedCountersStay checks over many refreshes, with keys that come, go, return and are reset: no counter falls, a
// folded series is never shown, and a shown series stays as long as its key.
func TestFoldedCountersStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &fake{name: "probe", facts: crowdProbe(1, 1, 0, func(int) []int { return []int{0} })}
		probe.facts.Verbs = nil
		// Work requests may be in surveys only: their series are then absent.
		probe.facts.WorkRequests = []model.Series[model.WorkRequestKey, model.Requests]{}
		c := newCollector(setup{Sources: append(crowd(1), engine.Registration{Source: probe}), Reuse: time.Nanosecond})
		defer c.Close() //nolint:errcheck // nothing to lose
		shown, last := map[string]bool{}, map[string]float64{}
		for round := range 40 {
			s := probe.facts
			s.Verbs, s.WorkRequests = nil, nil
			for i := range min(60*(round+1), 1200) {
				verb := fmt.Sprint("verb_", i)
				if i%50 == 5 { // the probe reports a verb of that name, too
					verb = "other"
				}
				h := model.Histogram{Count: uint64(i + round), Sum: uint64(i+round) * 1000}
				h.Buckets[3] = h.Count
				s.Verbs = append(s.Verbs, verbs(1, crowdHCA(i%10), verb, h))
				s.WorkRequests = append(s.WorkRequests, model.Series[model.WorkRequestKey, model.Requests]{
					Cgroup: 1, Key: model.WorkRequestKey{Device: crowdHCA(i % 10), Opcode: fmt.Sprint("opcode_", i)},
					Value: model.Requests{Count: uint64(i + round)}, Resting: (i+round)%7 == 0,
				})
			}
			if round == 20 { // one refresh without an answer of the probe
				s = model.Snapshot{}
			}
			probe.facts = s
			time.Sleep(time.Second)
			_, _, text := seriesOf(t, c)
			now := seriesIn(text)
			for _, series := range slices.Sorted(maps.Keys(now)) {
				counts := strings.Contains(series, "_total{") || strings.Contains(series, "_bucket{") || strings.Contains(series, "_count{")
				if counts && now[series] < last[series] {
					t.Fatalf("round %d: %s fell from %v to %v", round, series, last[series], now[series])
				}
				if strings.Contains(series, "_total{") || last[series] > 0 {
					last[series] = max(last[series], now[series])
				}
			}
			if round == 20 {
				continue
			}
			for series := range shown {
				if _, ok := now[series]; !ok {
					t.Fatalf("round %d: %s disappeared", round, series)
				}
			}
			for series := range now {
				if strings.HasPrefix(series, "container_rdma_verbs_") {
					shown[series] = true
				}
			}
			want := 0.0
			for _, v := range s.Verbs {
				want += float64(v.Value.Count)
			}
			if got := sumOfSeries(text, "container_rdma_verbs_total", ""); got != want {
				t.Fatalf("round %d: %v calls, want %v", round, got, want)
			}
			if got := sumOfSeries(text, "container_rdma_verbs_duration_seconds_count", ""); got != want {
				t.Fatalf("round %d: %v durations, want %v", round, got, want)
			}
			probe.facts = s
		}
		if len(shown) < 100 {
			t.Errorf("only %d series were shown", len(shown))
		}
	})
}

// TestFoldedGauges checks that the objects of a workload with too many series add up while numbers change and keys come
// and go.
func TestFoldedGauges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probe := &fake{name: "probe"}
		c := newCollector(setup{Sources: append(crowd(1), engine.Registration{Source: probe}), Reuse: time.Nanosecond})
		defer c.Close() //nolint:errcheck // nothing to lose
		for round, hcas := range []int{100, 300, 200, 1, 300} {
			facts, want := model.Snapshot{}, 0
			for i := range hcas {
				for j, typ := range objectTypes {
					n := (i + j + 3*round) % 7
					want += n
					facts.Objects = append(facts.Objects, model.Objects{Cgroup: 1, Device: crowdHCA(i), Type: typ, Current: uint64(n)})
				}
			}
			probe.facts = facts
			time.Sleep(time.Second)
			families, _, text := seriesOf(t, c)
			if got := sumOfSeries(text, "container_rdma_resources", `workload="ml/train-1/main"`); got != float64(want) {
				t.Errorf("round %d: %v objects, want %d", round, got, want)
			}
			folded := sumOfSeries(text, "container_rdma_resources", `type="other"`) > 0
			if folded != (round > 0 && hcas > 1) || families["container_rdma_resources"] > 768+300 {
				t.Errorf("round %d: %d series, folded: %v", round, families["container_rdma_resources"], folded)
			}
		}
	})
}

// TestDetail checks that each label of a workload's metric is either detail, or has values that the node bounds and no
// workload can change.
func TestDetail(t *testing.T) {
	ofNode := []string{
		"device", "type", "memory", "method", "reason", "calls", "engine", "claim", "share", "class", "result", "driver", "kind", "vendor",
		"pci_address", "gpu_instance", "cpu", "failure_type", "scope", "major", "minor", "operation", "interface", "state", "health",
		"resource", "pf_device", "guid", "problem", "severity", "pool", "library", "domain",
	}
	for _, m := range table(nil) {
		for _, label := range m.detail {
			if !m.owned || !slices.Contains(m.labels, label) {
				t.Errorf("%s: %s is no label of a workload's metric", m.name, label)
			}
		}
		// One series for each described thing. The source bounds the communicators, and times are not added up.
		if strings.HasSuffix(m.name, "_info") || m.name == "container_collective_last_launch_timestamp_seconds" ||
			m.name == "container_collective_late_seconds_total" {
			continue
		}
		for _, label := range m.labels {
			if m.owned && !slices.Contains(m.detail, label) && !slices.Contains(ofNode, label) {
				t.Errorf("%s: %s is neither detail nor bounded by the node", m.name, label)
			}
		}
	}
}
