// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestCoverage: each reason why calls of a context are not counted is a gap of its cgroup on its HCA.
func TestCoverage(t *testing.T) {
	key := gen.DatapathContextKey{Context: 0x1000, Tgid: 7, Number: 1}
	file := locate.FileID{Device: 1, Inode: 2}
	found := contextState{file: file, probed: 1, found: monotonic(), chosen: true, final: true}
	old := found
	old.found -= 2 * uint64(idleAfter)
	direct := old
	direct.direct = true
	ignored := found
	ignored.chosen = false
	limited := place{file: file, limited: [groups]bool{posts: true}}
	tests := map[string]struct {
		state  *contextState // nil: the context is being searched
		calls  uint64
		unread uint64
		at     place
		do     func(*testSource)
		want   []model.Gap
	}{
		"all calls are probed":    {state: &found, at: full, want: []model.Gap{""}},
		"a search is in progress": {at: full, want: []model.Gap{model.GapLate}},
		"no provider": {at: full, want: []model.Gap{model.GapProviderUnsupported}, do: func(s *testSource) {
			s.meter.setUnlocated(&event{key: key, cgroup: 5, device: 3, qp: 8}, errors.New("no provider"))
		}},
		"no permission": {at: full, want: []model.Gap{model.GapRefused}, do: func(s *testSource) {
			s.meter.setUnlocated(&event{key: key, cgroup: 5, device: 3, qp: 8}, fs.ErrPermission)
		}},
		"found at the second attempt": {state: &found, at: full, want: []model.Gap{""}, do: func(s *testSource) {
			s.meter.setUnlocated(&event{key: key, cgroup: 5, device: 3, qp: 8}, locate.ErrNotReady)
			s.meter.setUnlocated(&event{key: key, cgroup: 5, device: 3, qp: 8}, nil)
		}},
		"not selected": {state: &ignored, at: full, want: []model.Gap{model.GapNotSelected}},
		"late":         {state: &found, at: full, want: []model.Gap{model.GapLate}, do: func(s *testSource) { s.meter.fold.markLate(key) }},
		"surveyed":     {state: &found, at: limited, want: []model.Gap{model.GapSurvey}},
		"late and surveyed": {
			state: &found, at: limited, want: []model.Gap{model.GapLate, model.GapSurvey},
			do: func(s *testSource) { s.meter.fold.markLate(key) },
		},
		"lengths that were not read": {state: &found, unread: 1, at: full, want: []model.Gap{model.GapExtendedPoll}},
		"a function could not be probed": {
			state: &found, at: full, want: []model.Gap{model.GapRefused},
			do: func(s *testSource) { s.meter.unprobeable = map[locate.FileID]bool{file: true} },
		},
		"no call for long":                        {state: &old, at: full, want: []model.Gap{""}},
		"no call for long, queues can be written": {state: &direct, at: full, want: []model.Gap{model.GapDirectWQE}},
		"calls, and queues can be written":        {state: &direct, calls: 1, at: full, want: []model.Gap{""}},
		"calls long ago, queues can be written": {
			state: &direct, calls: 1, at: full, want: []model.Gap{model.GapDirectWQE},
			do: func(s *testSource) { s.meter.fold.contexts[key].called -= 2 * uint64(idleAfter) },
		},
		"calls again, queues can be written": {
			state: &direct, calls: 1, at: full, want: []model.Gap{""},
			do: func(s *testSource) {
				c := s.meter.fold.contexts[key]
				c.called -= 2 * uint64(idleAfter)
				stat := &gen.DatapathContextStat{Cgroup: 5, Device: 3}
				stat.Hits[posts], stat.Hits[polls] = 1, 1
				s.meter.fold.add(key, stat, full)
			},
		},
		"no call in a survey, queues can be written": {state: &direct, at: limited, want: []model.Gap{model.GapSurvey}},
		"as many contexts as the cgroup may have": {
			state: &found, at: full, want: []model.Gap{model.GapFull},
			do: func(s *testSource) { s.opts.MaxContexts = 2 },
		},
		"a call was lost": {state: &found, at: full, want: []model.Gap{model.GapLost}, do: func(s *testSource) {
			s.meter.fold.add(key, &gen.DatapathContextStat{Cgroup: 5, Device: 3, Lost: 1}, full)
		}},
		"a context that has ended lost a call": {state: &found, at: full, want: []model.Gap{model.GapLost}, do: func(s *testSource) {
			other := gen.DatapathContextKey{Context: 0x2000, Tgid: 8, Number: 2}
			s.meter.fold.add(other, &gen.DatapathContextStat{Cgroup: 5, Device: 3, Lost: 1}, full)
			s.meter.fold.endContext(other)
		}},
		"HCA without a name": {state: &found, at: full, do: func(s *testSource) { clear(s.meter.names.byIndex) }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := newTestSource(Options{}, func() {})
			s.meter.names.byIndex[3] = "mlx5_0"
			if tt.state != nil {
				s.meter.contexts[key] = *tt.state
			}
			stat := &gen.DatapathContextStat{Cgroup: 5, Device: 3}
			stat.Hits[polls], stat.Unread = tt.calls, tt.unread
			s.meter.fold.add(key, stat, tt.at)
			if tt.do != nil {
				tt.do(s)
			}
			var want []model.Coverage
			for _, gap := range tt.want {
				want = append(want, model.Coverage{Cgroup: 5, Device: "mlx5_0", Gap: gap})
			}
			if diff := cmp.Diff(want, s.meter.coverage()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// BenchmarkCoverage is a job of 192 processes on 10 HCAs.
func BenchmarkCoverage(b *testing.B) {
	s := newTestSource(Options{}, func() {})
	for i := range uint32(1920) {
		key := gen.DatapathContextKey{Tgid: i / 10, Number: i}
		s.meter.names.byIndex[i%10] = fmt.Sprint("mlx5_", i%10)
		s.meter.contexts[key] = contextState{chosen: true, final: true, probed: 1}
		s.meter.fold.add(key, &gen.DatapathContextStat{Cgroup: 5, Device: i % 10}, full)
	}
	for b.Loop() {
		s.meter.coverage()
	}
}
