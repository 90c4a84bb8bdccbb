// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

type seriesKey struct {
	cgroup model.CgroupID
	device uint32
}

func compareSeries(a, b seriesKey) int {
	return cmp.Or(cmp.Compare(a.cgroup, b.cgroup), cmp.Compare(a.device, b.device))
}

// series has the counts of a cgroup on a device.
type series struct {
	counts    [counters]uint64
	received  uint64
	durations [gen.DatapathCompletedCOMPLETED]*durations
	late      uint64                // contexts whose first operations are not counted
	unread    uint64                // completions with unknown bytes
	lost      bool                  // the bytes lack calls
	waited    uint64                // for receives, in nanoseconds
	contexts  int                   // existing contexts
	resting   [groups]int           // contexts whose calls are counted in surveys only
	surveyed  int                   // contexts in a running survey
	files     map[locate.FileID]int // contexts of each file
	surveys   map[locate.FileID]*window
}

// window is what a series moved in the last survey of a file, and in the running survey.
type window struct {
	begun, ended  time.Time
	result, moved moved
	running       bool
}

type moved struct{ transmit, receive uint64 }

// enter counts a context at a place.
func (s *series) enter(at place) {
	for g, limited := range at.limited {
		s.resting[g] += toInt[int](limited)
	}
	s.surveyed += toInt[int](at.surveyed)
	if s.files == nil {
		s.files = map[locate.FileID]int{}
	}
	s.files[at.file]++
}

// leave reverses enter. The surveyed bytes of a file count as long as the series has a context of the file.
func (s *series) leave(at place) {
	for g, limited := range at.limited {
		s.resting[g] -= toInt[int](limited)
	}
	s.surveyed -= toInt[int](at.surveyed)
	if s.files[at.file]--; s.files[at.file] <= 0 {
		delete(s.files, at.file)
	}
}

// successor returns a series of the same contexts that starts from 0.
func (s *series) successor() *series {
	return &series{contexts: s.contexts, resting: s.resting, surveyed: s.surveyed, files: s.files, surveys: s.surveys}
}

// windowOf returns the window of a running survey, or nil.
func (s *series) windowOf(at place) *window {
	if !at.surveyed {
		return nil
	}
	if s.surveys == nil {
		s.surveys = map[locate.FileID]*window{}
	}
	w := s.surveys[at.file]
	if w == nil {
		w = &window{}
		s.surveys[at.file] = w
	}
	w.running = true
	return w
}

// add adds to a counter. w is nil unless there is a survey.
func (s *series) add(i int, n uint64, w *window) {
	direction := directionOf(i)
	switch {
	case w == nil:
	case direction == model.Transmit:
		w.moved.transmit += n
	case direction == model.Receive:
		w.moved.receive += n
	}
	if s.resting[groupOfCounter(i)] == 0 {
		s.counts[i] += n
	}
	if direction == model.Receive && s.resting == [groups]int{} {
		s.received += n
	}
}

func (s *series) durationsOf(completed int) *durations {
	if s.durations[completed] == nil {
		s.durations[completed] = &durations{}
	}
	return s.durations[completed]
}

// fill adds all series to a snapshot, except series without counts and series of devices without a known name. surveyed returns which
// groups of a file are counted in surveys only, and until when the results of its surveys are used.
func (f *fold) fill(snap *model.Snapshot, deviceName func(uint32) string, surveyed func(locate.FileID, time.Time) [groups]bool) {
	snap.Traffic = []model.Traffic{}
	snap.WorkRequests = []model.Series[model.WorkRequestKey, model.Requests]{}
	snap.CompletionErrors = []model.Series[model.CompletionErrorKey, model.Count]{}
	snap.Completions = []model.Series[model.CompletionKey, model.FineHistogram]{}
	snap.Late = []model.Series[model.DeviceKey, model.Count]{}
	snap.Unread = []model.Series[model.DeviceKey, model.Count]{}
	snap.ReceiveWaits = []model.Series[model.DeviceKey, model.WaitTime]{}
	snap.Surveys = []model.Survey{}
	for _, id := range slices.SortedFunc(maps.Keys(f.series), compareSeries) {
		s, device := f.series[id], deviceName(id.device)
		if device == "" {
			continue
		}
		s.fill(snap, id.cgroup, device)
		s.fillSurveys(snap, id.cgroup, device, surveyed)
		snap.Late = append(snap.Late, model.Series[model.DeviceKey, model.Count]{
			Cgroup: id.cgroup, Key: model.DeviceKey{Device: device}, Value: model.Count(s.late),
		})
		snap.Unread = append(snap.Unread, model.Series[model.DeviceKey, model.Count]{
			Cgroup: id.cgroup, Key: model.DeviceKey{Device: device}, Value: model.Count(s.unread),
		})
		snap.ReceiveWaits = append(snap.ReceiveWaits, model.Series[model.DeviceKey, model.WaitTime]{
			Cgroup: id.cgroup, Key: model.DeviceKey{Device: device}, Value: model.WaitTime(s.waited),
			Resting: s.resting != [groups]int{} && s.surveyed == 0,
		})
	}
	f.spending.fill(snap)
}

// fillSurveys adds the survey results of the files that the series has contexts of. Calls that are counted all the time are not part of
// them.
func (s *series) fillSurveys(
	snap *model.Snapshot, cgroup model.CgroupID, device string, surveyed func(locate.FileID, time.Time) [groups]bool,
) {
	for file, w := range s.surveys {
		if s.files[file] == 0 && !w.running {
			delete(s.surveys, file)
			continue
		}
		limited := surveyed(file, w.ended)
		if w.ended.IsZero() || limited == [groups]bool{} {
			continue
		}
		row := model.Survey{
			Cgroup: cgroup, Device: device, Begun: w.begun, Ended: w.ended,
			TransmitBytes: w.result.transmit, ReceiveBytes: w.result.receive,
		}
		if !limited[posts] {
			row.TransmitBytes = 0
		}
		snap.Surveys = append(snap.Surveys, row)
	}
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

// fill adds the rows of a series.
func (s *series) fill(snap *model.Snapshot, cgroup model.CgroupID, device string) {
	posted, polled := s.resting[posts] > 0, s.resting[polls] > 0
	var sent uint64
	for i, n := range s.counts {
		if directionOf(i) == model.Transmit {
			sent += n
		}
	}
	addTraffic(snap, cgroup, device, model.Transmit, sent, posted)
	addTraffic(snap, cgroup, device, model.Receive, s.received, posted || polled)
	for i, name := range opcodeNames {
		if n := s.counts[countRequests+i]; n > 0 {
			snap.WorkRequests = append(snap.WorkRequests, model.Series[model.WorkRequestKey, model.Requests]{
				Cgroup: cgroup, Key: model.WorkRequestKey{Device: device, Opcode: name},
				Value: model.Requests{Count: n, Bytes: s.counts[countBytes+i]}, Resting: posted,
			})
		}
	}
	for i, name := range statusNames {
		if n := s.counts[countErrors+i]; n > 0 {
			snap.CompletionErrors = append(snap.CompletionErrors, model.Series[model.CompletionErrorKey, model.Count]{
				Cgroup: cgroup, Key: model.CompletionErrorKey{Device: device, Status: name}, Value: model.Count(n), Resting: polled,
			})
		}
	}
	for i, d := range s.durations {
		if d != nil {
			snap.Completions = append(snap.Completions, model.Series[model.CompletionKey, model.FineHistogram]{
				Cgroup: cgroup, Key: model.CompletionKey{Device: device, Opcode: completedNames[i]}, Value: d.histogram(), Resting: polled,
			})
		}
	}
}

func addTraffic(
	snap *model.Snapshot, cgroup model.CgroupID, device string, direction model.Direction, bytes uint64, resting bool,
) {
	if bytes > 0 {
		snap.Traffic = append(snap.Traffic, model.Traffic{
			Cgroup: cgroup, Device: device, Method: model.MethodUprobe, Direction: direction, Bytes: bytes, Resting: resting,
		})
	}
}
