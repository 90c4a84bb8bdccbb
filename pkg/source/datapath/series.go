// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"maps"
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

type seriesKey struct {
	cgroup model.CgroupID
	device uint32
}

func compareSeries(a, b seriesKey) int {
	return cmp.Or(cmp.Compare(a.cgroup, b.cgroup), cmp.Compare(a.device, b.device))
}

// series is what one cgroup counted on one device.
type series struct {
	counts    [counters]count
	received  count
	durations [gen.DatapathCompletedCOMPLETED]*durations
	late      uint64             // contexts whose first operations are not counted
	unread    uint64             // completions of which the bytes are not known, not scaled
	contexts  int                // that exist
	windowed  [budget.Groups]int // contexts that are probed in windows
	// confidence is that of the sampled parts.
	confidence [budget.Groups]confidence
	rates
}

func (s *series) allExact() bool { return s.windowed == [budget.Groups]int{} }

// sampled returns the sum of the estimates of a group: a work request counts as one byte more.
func (s *series) sampled(group int) (sum float64) {
	for i := range s.counts {
		if groupOfCounter(i) == group {
			sum += float64(s.counts[i].sampled)
		}
	}
	return sum
}

func (s *series) durationsOf(completed int) *durations {
	if s.durations[completed] == nil {
		s.durations[completed] = &durations{}
	}
	return s.durations[completed]
}

// fill adds all series to a snapshot. A series without counts has no row. Series of
// devices without a known name are left out.
func (f *fold) fill(snap *model.Snapshot, deviceName func(uint32) string) {
	snap.Traffic = []model.Traffic{}
	snap.WorkRequests = []model.Series[model.WorkRequestKey, model.Requests]{}
	snap.CompletionErrors = []model.Series[model.CompletionErrorKey, model.Count]{}
	snap.Completions = []model.Series[model.CompletionKey, model.FineHistogram]{}
	snap.Late = []model.Series[model.DeviceKey, model.Count]{}
	snap.Unread = []model.Series[model.DeviceKey, model.Count]{}
	snap.Sampling = []model.Sampling{}
	ids := slices.SortedFunc(maps.Keys(f.series), compareSeries)
	ratios, ahead := f.ratios(), f.ahead()
	for _, id := range ids {
		s, device := f.series[id], deviceName(id.device)
		if device == "" {
			continue
		}
		s.countOn(ahead[id])
		for _, sampled := range []bool{false, true} {
			s.fill(snap, id.cgroup, device, sampled)
		}
		snap.Late = append(snap.Late, model.Series[model.DeviceKey, model.Count]{
			Cgroup: id.cgroup, Key: model.DeviceKey{Device: device}, Value: model.Count(s.late),
		})
		snap.Unread = append(snap.Unread, model.Series[model.DeviceKey, model.Count]{
			Cgroup: id.cgroup, Key: model.DeviceKey{Device: device}, Value: model.Count(s.unread),
		})
		if ratio, ok := ratios[id]; ok {
			for g, calls := range []model.Calls{budget.Post: model.PostCalls, budget.Poll: model.PollCalls} {
				snap.Sampling = append(snap.Sampling,
					s.confidence[g].sampling(model.Sampling{Cgroup: id.cgroup, Device: device, Calls: calls, Ratio: ratio[g]}))
			}
		}
	}
	f.spending.fill(snap)
}

// hasDevice reports whether a series belongs to a device that matches.
func (f *fold) hasDevice(matches func(index uint32) bool) bool {
	for id := range f.series {
		if matches(id.device) {
			return true
		}
	}
	return false
}

// ratios returns the lowest sampling ratio of the contexts of each series.
func (f *fold) ratios() map[seriesKey][budget.Groups]float64 {
	ratios := make(map[seriesKey][budget.Groups]float64, len(f.series))
	for _, c := range f.contexts {
		r, ok := ratios[c.series]
		for g, how := range c.samplings {
			if !ok || how.Ratio < r[g] {
				r[g] = how.Ratio
			}
		}
		ratios[c.series] = r
	}
	return ratios
}

// fill adds the rows of the exact or of the sampled part.
func (s *series) fill(snap *model.Snapshot, cgroup model.CgroupID, device string, sampled bool) {
	seen := func(groups ...int) model.Seen {
		rests := func(g int) bool {
			if sampled {
				return !s.confidence[g].sufficient()
			}
			return s.windowed[g] > 0
		}
		return model.Seen{Sampled: sampled, Resting: slices.ContainsFunc(groups, rests)}
	}
	posts, polls := seen(budget.Post), seen(budget.Poll)
	var sent uint64
	for i := range s.counts {
		if directionOf(i) == model.Transmit {
			sent += s.counts[i].value(sampled)
		}
	}
	addTraffic(snap, cgroup, device, model.Transmit, sent, posts)
	addTraffic(snap, cgroup, device, model.Receive, s.received.value(sampled), seen(budget.Post, budget.Poll))
	for i, name := range opcodeNames {
		if n := s.counts[countRequests+i].value(sampled); n > 0 {
			snap.WorkRequests = append(snap.WorkRequests, model.Series[model.WorkRequestKey, model.Requests]{
				Cgroup: cgroup, Key: model.WorkRequestKey{Device: device, Opcode: name, Sampled: sampled},
				Value: model.Requests{Count: n, Bytes: s.counts[countBytes+i].value(sampled)}, Resting: posts.Resting,
			})
		}
	}
	for i, name := range statusNames {
		if n := s.counts[countErrors+i].value(sampled); n > 0 {
			snap.CompletionErrors = append(snap.CompletionErrors, model.Series[model.CompletionErrorKey, model.Count]{
				Cgroup: cgroup, Key: model.CompletionErrorKey{Device: device, Status: name, Sampled: sampled},
				Value: model.Count(n), Resting: polls.Resting,
			})
		}
	}
	for i, d := range s.durations {
		if d == nil {
			continue
		}
		if h, ok := d.histogram(sampled); ok {
			snap.Completions = append(snap.Completions, model.Series[model.CompletionKey, model.FineHistogram]{
				Cgroup: cgroup, Key: model.CompletionKey{Device: device, Opcode: completedNames[i], Sampled: sampled},
				Value: h, Resting: polls.Resting && !sampled,
			})
		}
	}
}

func addTraffic(
	snap *model.Snapshot, cgroup model.CgroupID, device string, direction model.Direction, bytes uint64, seen model.Seen,
) {
	if bytes > 0 {
		snap.Traffic = append(snap.Traffic, model.Traffic{
			Cgroup: cgroup, Device: device, Method: model.MethodUprobe, Direction: direction, Bytes: bytes, Seen: seen,
		})
	}
}
