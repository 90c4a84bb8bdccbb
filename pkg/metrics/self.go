// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var (
	commonStates = []string{
		string(model.StateOK), string(model.StateAbsent), string(model.StateUnsupported),
		string(model.StateFailed), string(model.StateStuck),
	}
	sourceStates = append(slices.Clip(commonStates), string(model.StateReleased))
	deviceStates = append(slices.Clip(commonStates), string(model.StateQuarantined), string(model.StateBlocked))
	// A hook is also absent while there is no device to observe.
	hookStates = []string{
		string(model.StateOK), string(model.StateAbsent), string(model.StateUnsupported), string(model.StateFailed),
	}
)

var selfNotes = []string{
	"`accelscope_source_state`, `accelscope_device_state`, `accelscope_probe_hook_state`: only the current state, or with " +
		"`--metrics.states=all` all states (0).",
	"`accelscope_device_missing`: `kind` is `gpu`, `hca` or `module`; `id` is the UUID, the node GUID, or else the PCI " +
		"address; for modules HCA, port and serial number (`0x1/1 SN1`). See [missing " +
		"devices](../docs/verdicts.md#devices-that-are-missing).",
	"`accelscope_series_dropped_total`: see [Limits](../docs/limits.md#series).",
	"`accelscope_uprobe_attach_seconds`: `operation` is `attach` or `detach`. [Forks](../docs/limits.md#uprobes) wait for at " +
		"most `accelscope_uprobe_fork_wait_seconds` of it, absent without fentry programs and kprobes.",
	"`accelscope_lines_skipped_total`: the log and `accelscope doctor` quote the line.",
	"`accelscope_values_dropped_total` grows at every refresh (at most once a second) while the driver reports [the " +
		"value](../docs/gpus.md#values-that-cannot-be).",
	"`accelscope_panics_total`: the source is `failed` until the sensor restarts. The log has the stack.",
}

func selfMetrics() []metric {
	return []metric{
		{
			name: "accelscope_source_state", typ: gauge, labels: []string{"source", "state"},
			help: "State of the source, 1 if current.",
			emit: each(statesOf, func(v *view, b *exposition.Builder, s *model.SourceState) {
				b.StateSet(nil, string(s.State), v.exported(sourceStates), s.Source)
			}),
		},
		sourceAnswer("accelscope_source_duration_seconds", "Duration of the source's last answer.",
			func(s *model.SourceState) time.Duration { return s.Took }),
		sourceAnswer("accelscope_source_age_seconds", "Time since the source's last answer.",
			func(s *model.SourceState) time.Duration { return s.Age }),
		{
			name: "accelscope_device_state", typ: gauge, labels: []string{"source", "device", "state"},
			help: "State of the source's device, 1 if current.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range v.facts.DeviceStates {
					b.StateSet(nil, string(d.State), v.exported(deviceStates), d.Source, d.Device)
				}
			},
		},
		{
			name: "accelscope_device_missing", typ: gauge, labels: []string{"kind", "id"},
			help: "Device that the node had and has no more, 0 if accepted or for a known reason.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.facts.Missing {
					m := &v.facts.Missing[i]
					missing := 1.0
					if m.Excused {
						missing = 0
					}
					b.Value(missing, string(m.Kind), m.ID)
				}
			},
		},
		{
			name: "accelscope_probe_hook_state", typ: gauge, labels: []string{"hook", "tier", "state"},
			help: "State of the kernel hook, 1 if current.",
			emit: func(v *view, b *exposition.Builder) {
				for _, h := range v.facts.Hooks {
					b.StateSet(nil, string(h.State), v.exported(hookStates), h.Name, h.Tier)
				}
			},
		},
		{
			name: "accelscope_probe_map_entries", typ: gauge, labels: []string{"map"},
			help: "Entries in the BPF map.",
			emit: each(mapsOf, func(_ *view, b *exposition.Builder, m *model.Map) {
				b.Value(float64(m.Entries), m.Name)
			}),
		},
		{
			name: "accelscope_probe_map_capacity", typ: gauge, labels: []string{"map"},
			help: "Capacity of the BPF map.",
			emit: each(mapsOf, func(_ *view, b *exposition.Builder, m *model.Map) {
				b.Value(float64(m.Capacity), m.Name)
			}),
		},
		{
			name: "accelscope_probe_lost_total", typ: counter, labels: []string{"reason"},
			help: "Events that the probe could not record, by reason.",
			emit: func(v *view, b *exposition.Builder) {
				for _, l := range v.facts.Losses {
					b.Value(float64(l.Count), l.Reason)
				}
			},
		},
		{
			name: "accelscope_workload_lost_total", typ: counter, owned: true, labels: []string{"reason"},
			help: "Events not recorded because the workload used up its share of the BPF map, by reason.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.OwnerLosses {
					b.Since(s.Since).Share(float64(s.Value), v.owners[s.Owner], s.Key.Reason)
				}
			},
		},
		{
			name: "accelscope_uprobe_attach_seconds", typ: histogram, labels: []string{"source", "operation"},
			help: "Time to attach or detach one uprobe, by operation.",
			emit: each(probeDurationsOf, func(_ *view, b *exposition.Builder, d *model.ProbeDurations) {
				b.Histogram(&d.Calls, nil, d.Source, d.Operation)
			}),
		},
		{
			name: "accelscope_uprobe_fork_wait_seconds", typ: histogram, labels: []string{"source", "operation"},
			help: "Time that forks could wait for one attach or detach of a uprobe, by operation.",
			emit: each(probeDurationsOf, func(_ *view, b *exposition.Builder, d *model.ProbeDurations) {
				if d.Forks.Count > 0 {
					b.Histogram(&d.Forks, nil, d.Source, d.Operation)
				}
			}),
		},
		{
			name: "accelscope_probe_repaired_objects_total", typ: counter, labels: []string{"change"},
			help: "Objects that a comparison with RDMA netlink added to or removed from the counts, by change.",
			emit: func(v *view, b *exposition.Builder) {
				for _, r := range v.facts.Repairs {
					b.Value(float64(r.Count), r.Change)
				}
			},
		},
		{
			name: "accelscope_lines_skipped_total", typ: counter, labels: []string{"file"},
			help: "Lines of kernel files that could not be parsed, by file.",
			emit: emitSkippedLines,
		},
		{
			name: "accelscope_child_ends_total", typ: counter, labels: []string{"source", "reason"},
			help: "Child processes that crashed, or hung and were killed, by reason.",
			emit: each(childrenOf, func(_ *view, b *exposition.Builder, c *model.ChildProcesses) {
				for _, e := range c.Ends {
					b.Value(float64(e.Count), c.Source, e.Reason)
				}
			}),
		},
		{
			name: "accelscope_child_stuck", typ: gauge, labels: []string{"source"},
			help: "Killed child processes that have not ended.",
			emit: each(childrenOf, func(_ *view, b *exposition.Builder, c *model.ChildProcesses) {
				b.Value(float64(c.Stuck), c.Source)
			}),
		},
		{
			name: "accelscope_series_dropped_total", typ: counter, labels: []string{"family"},
			help: "Series of workloads folded into the value other, by family.",
			emit: func(_ *view, b *exposition.Builder) {
				b.EachDropped(func(family string, series uint64) { b.Value(float64(series), family) })
			},
		},
		{
			name: "accelscope_values_dropped_total", typ: counter, labels: []string{"source", "value"},
			help: "Impossible GPU values left out, by source and value.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range slices.SortedFunc(maps.Keys(v.dropped), engine.Dropped.Compare) {
					b.Value(float64(v.dropped[d]), d.Source, d.Value)
				}
			},
		},
		single("accelscope_panics_total", counter, "Panics that did not end the sensor.",
			func(v *view) *uint64 { return &v.panics }, valueOf[uint64]),
		single("accelscope_unresolved_cgroups_total", counter, "Cgroups with kernel counters that never got a name.",
			func(v *view) *uint64 { return v.facts.UnresolvedCgroups }, valueOf[uint64]),
		{
			name: "accelscope_build_info", typ: gauge, labels: []string{"version", "revision", "goversion"},
			help: "Version, revision and Go version of the sensor.",
			emit: func(v *view, b *exposition.Builder) { b.Value(1, v.build...) },
		},
	}
}

// emitSkippedLines adds up the skipped lines of files that several sources read.
func emitSkippedLines(v *view, b *exposition.Builder) {
	lines := map[string]uint64{}
	for _, s := range v.facts.SkippedLines {
		lines[s.File] += s.Count
	}
	for _, file := range slices.Sorted(maps.Keys(lines)) {
		b.Value(float64(lines[file]), file)
	}
}

// exported returns the states that have a series even if they are not current.
func (v *view) exported(states []string) []string {
	if v.allStates {
		return states
	}
	return nil
}

// sourceAnswer returns the row of a duration that is known after the source's first answer.
func sourceAnswer(name, help string, of func(*model.SourceState) time.Duration) metric {
	return metric{
		name: name, typ: gauge, labels: []string{"source"}, help: help,
		emit: each(statesOf, func(_ *view, b *exposition.Builder, s *model.SourceState) {
			if s.Age >= 0 {
				b.Value(of(s).Seconds(), s.Source)
			}
		}),
	}
}

func probeDurationsOf(v *view) []model.ProbeDurations { return v.facts.ProbeDurations }
