// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// culprit is how a job breaks, after three minutes without a fault, and the only verdict of the next ten minutes.
type culprit struct {
	breaks func(*simJob)
	want   string
	within time.Duration // zero: 60 s
}

var culprits = map[string]culprit{
	"stopped": {
		breaks: func(s *simJob) { s.set(5, "T"); s.wait(5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 30s; " +
			"7 ranks wait; its process is stopped | process 1005 in state T, 0s of CPU time in 30s | communicator w",
	},
	"ended": {
		breaks: func(s *simJob) { s.set(5, ""); s.wait(5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 30s; " +
			"7 ranks wait; its process ended 30s ago | communicator w",
	},
	"zombie": {
		breaks: func(s *simJob) { s.set(5, "Z"); s.wait(5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 30s; " +
			"7 ranks wait; its process became a zombie 30s ago | process 1005 in state Z, 0s of CPU time in 30s | communicator w",
	},
	"destroyed": {
		breaks: func(s *simJob) { s.world.members[5].ended = s.at; s.wait(5, "barrier") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched barrier number 901 for 30s; " +
			"7 ranks wait; it called destroy, abort or finalize 30s ago | process 1005 in state S, 15s of CPU time in 30s | communicator w",
	},
	"deep sleep": {
		breaks: func(s *simJob) { s.set(5, "D"); s.wait(5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 2m; " +
			"7 ranks wait; its process is in state D for 2m | process 1005 in state D, 0s of CPU time in 2m | communicator w",
		within: 130 * time.Second,
	},
	"another operation, behind": {
		breaks: func(s *simJob) {
			s.broke = s.at
			s.launch(s.world, "all_gather", 5)
			s.wait(5, "all_reduce")
			s.wait(5, "all_reduce")
		},
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 902 for 30s; " +
			"7 ranks wait; it launched more all_gather than the others: another operation | " +
			"process 1005 in state S, 10s of CPU time in 20s | communicator w",
	},
	"another operation, same number": {
		breaks: func(s *simJob) { s.launch(s.world, "all_gather", 5); s.wait(5, "all_reduce") },
		want: "JobStalled ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) and 7 other ranks launched collective number 901 40s ago, " +
			"and nothing followed; it launched more all_gather than the others: another operation | " +
			"process 1005 in state S, 15s of CPU time in 30s | communicator w",
	},
	"XID": {
		breaks: func(s *simJob) {
			s.facts.GPUs[5].XIDs = []model.XID{{Code: 79, Count: 1, Last: s.at.Add(-2 * time.Second)}}
			s.wait(5, "all_reduce")
		},
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 30s; " +
			"7 ranks wait; XID 79 on its GPU 32s ago | process 1005 in state S, 15s of CPU time in 30s | communicator w",
	},
	"GPU lost": {
		breaks: func(s *simJob) {
			s.facts.GPUs[5].Problems = []model.GPUCondition{{Name: model.ProblemLost, Active: true}}
			s.wait(5, "all_reduce")
		},
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 30s; " +
			"7 ranks wait; GPULost on its GPU 20s ago | process 1005 in state S, 15s of CPU time in 30s | communicator w",
	},
	"out of memory": {
		breaks: func(s *simJob) { s.kills++; s.wait(5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 30s; " +
			"7 ranks wait; OOM kill in its container 20s ago | process 1005 in state S, 15s of CPU time in 30s | communicator w",
	},
	"no known fault": {
		breaks: func(s *simJob) { s.wait(5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 901 for 10m; " +
			"7 ranks wait | process 1005 in state S, 5m of CPU time in 10m | communicator w",
		within: 10 * time.Minute,
	},
	"all wait": {
		breaks: func(s *simJob) { s.broke = s.at; s.spin(true, everyone...) },
		want: "JobStalled ml/a/x (communicator w): 8 ranks launched all_reduce number 900 40s ago, and nothing followed; " +
			"their GPUs only wait | longest time between launches in the last hour: 1.6s",
	},
	"stopped while all wait": {
		breaks: func(s *simJob) { s.broke = s.at; s.set(5, "T") },
		want: "JobStalled ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) and 7 other ranks launched all_reduce number 900 40s ago, " +
			"and nothing followed; its process is stopped | process 1005 in state T, 0s of CPU time in 40s | communicator w",
	},
	"stopped in the pair": { // rank 4 waits for rank 5, and all others for both
		breaks: func(s *simJob) {
			pair := s.communicator("pair", 2, 4, 5)
			s.launch(pair, "all_reduce")
			s.train(2 * time.Minute)
			s.set(5, "T")
			s.launch(pair, "all_reduce", 0)
			s.broke = s.at
			s.launch(s.world, "all_reduce", 0, 1, 2, 3, 6, 7)
			s.spin(true, 0, 1, 2, 3, 4, 6, 7)
		},
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 1,501 for 30s; " +
			"6 ranks wait; its process is stopped | process 1005 in state T, 0s of CPU time in 30s | communicator w",
	},
	"stopped before its first launch": {
		breaks: func(s *simJob) { s.set(5, "T"); s.waitIn(s.communicator("new", 8, everyone...), 5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 1 for 1m10s; " +
			"7 ranks wait; its process is stopped | process 1005 in state T, 0s of CPU time in 1m | communicator new",
		within: 70 * time.Second,
	},
	"no first launch, no known fault": {
		breaks: func(s *simJob) { s.waitIn(s.communicator("new", 8, everyone...), 5, "all_reduce") },
		want: "JobMemberBehind ml/a/x on GPU 5 (rank 5): rank 5 (ml/a/x, GPU 5) has not launched all_reduce number 1 for 10m; " +
			"7 ranks wait | process 1005 in state S, 4m55s of CPU time in 9m50s | communicator new",
		within: 10 * time.Minute,
	},
	"late": {
		breaks: func(s *simJob) {
			s.broke = s.at
			for range 5 * 60 * 12 {
				s.world.members[2].late += 0.035
				s.train(200 * time.Millisecond)
			}
		},
		want: "JobMemberLate ml/a/x on GPU 2 (rank 2): rank 2 (ml/a/x, GPU 2) launches 35ms after the first rank, " +
			"17% of the time between launches | communicator w",
		within: 11 * time.Minute,
	},
}

// TestCulprits: each broken job has one verdict, with the cause.
func TestCulprits(t *testing.T) {
	for name, c := range culprits {
		t.Run(name, func(t *testing.T) {
			s := newSimJob(t)
			s.train(3 * time.Minute)
			if len(s.found) > 0 {
				t.Fatal(s.found)
			}
			c.breaks(s)
			s.pass(10 * time.Minute)
			if d := cmp.Diff([]string{c.want}, s.found); d != "" {
				t.Error(d)
			}
			if within := max(c.within, time.Minute); s.after > within {
				t.Errorf("after %v, want %v", s.after, within)
			}
		})
	}
}

// TestDeparted: the others wait for a rank whose container is removed after its process. It stays named until they launch again.
func TestDeparted(t *testing.T) {
	for _, ranks := range []int{8, 2} {
		s := newSimJob(t)
		s.train(3 * time.Minute)
		c, rank := s.world, 5
		if ranks == 2 {
			c, rank = s.communicator("pair", 2, 4, 5), 1
			s.launch(c, "all_reduce")
			s.train(2 * time.Minute)
		}
		s.set(5, "")
		s.waitIn(c, rank, "all_reduce")
		s.pass(5 * time.Minute)
		for _, of := range s.all {
			for _, m := range of.members {
				m.gone = m.process == 5
			}
		}
		s.pass(25 * time.Minute)
		waits, key, number, stood := "7 ranks wait", "w", "901", "30m"
		if ranks == 2 {
			waits, key, number, stood = "1 rank waits", "pair", "2", "32m"
		}
		want := fmt.Sprintf("JobMemberBehind ml/a/x on GPU 5 (rank %d): rank %[1]d (ml/a/x, GPU 5) has not launched all_reduce number %s for %s; "+
			"%s; its process ended 30m ago, and its container is gone | communicator %s", rank, number, stood, waits, key)
		if d := cmp.Diff([]string{want}, s.now); d != "" {
			t.Errorf("%d ranks: %s", ranks, d)
		}
		s.launch(c, "all_reduce")
		s.pass(time.Minute)
		if len(s.now) > 0 {
			t.Errorf("%d ranks launch again: %q", ranks, s.now)
		}
	}
}

// innocent are jobs that stand, or whose ranks differ, for ten minutes without a fault.
var innocent = map[string]func(*simJob){
	"data loading": func(s *simJob) { s.spin(false, everyone...); s.pass(15 * time.Minute); s.train(time.Minute) },
	"unknown activity": func(s *simJob) {
		s.facts.GPUs = make([]model.GPU, 8) // other GPUs
		s.spin(true, everyone...)
		s.pass(15 * time.Minute)
	},
	"the first broadcast of an idle server": func(s *simJob) {
		c := s.communicator("new", 8, everyone...)
		s.waitIn(c, 0, "broadcast")
		s.pass(15 * time.Minute)
		s.launch(c, "broadcast", 0)
		s.train(time.Minute)
	},
	"sends only": func(s *simJob) {
		c := s.communicator("pipeline", 8, everyone...)
		for i := range 7 {
			s.launch(c, "send", i)
			s.launch(c, "recv", i+1)
		}
		s.pass(15 * time.Minute)
	},
	"busy GPUs": func(s *simJob) { s.pass(15 * time.Minute) }, // an evaluation
	"checkpoint by rank 0": func(s *simJob) {
		for range 3 {
			s.wait(0, "all_reduce")
			for range 4 {
				s.set(0, "D")
				s.pass(65 * time.Second)
				s.set(0, "S")
				s.pass(10 * time.Second)
			}
			s.launch(s.world, "all_reduce", 0)
			s.train(time.Minute)
		}
	},
	"checkpoint by a rank of another node": func(s *simJob) {
		s.world.nranks = 16
		s.launch(s.world, "all_reduce")
		s.spin(true, everyone...)
		s.pass(5 * time.Minute)
		s.train(5 * time.Minute)
	},
	"checkpoint, and a communicator of the ranks that wait": func(s *simJob) {
		others := s.communicator("o", 7, everyone[1:]...)
		for range 600 {
			s.launch(others, "all_reduce")
			s.train(200 * time.Millisecond)
		}
		s.wait(0, "all_reduce")
		s.pass(5 * time.Minute)
		s.launch(s.world, "all_reduce", 0)
		s.train(time.Minute)
	},
	"debugger": func(s *simJob) {
		s.wait(0, "all_reduce")
		for range 30 {
			s.set(0, "t")
			s.pass(time.Second)
			s.set(0, "S")
			s.pass(9 * time.Second)
		}
	},
	"old XID": func(s *simJob) {
		s.facts.GPUs[0].XIDs = []model.XID{{Code: 94, Count: 1, Last: s.at}, {Code: 48, Count: 1, Last: s.at}}
		s.train(10 * time.Minute)
		s.wait(0, "all_reduce")
		s.pass(5 * time.Minute)
	},
	"graphs": func(s *simJob) {
		s.launch(s.world, "all_reduce", 1, 2, 3) // captured
		s.spin(true, everyone...)
		for range 100 {
			s.pass(10 * time.Second)
			for _, p := range s.processes {
				p.LastGraph = s.at
			}
		}
	},
	"end, with destroy": func(s *simJob) {
		for i, m := range s.world.members[1:] {
			m.ended = s.at
			s.pass(time.Second)
			s.set(i+1, "")
		}
		s.pass(15 * time.Minute) // rank 0 writes
		s.world.members[0].ended = s.at
		s.pass(time.Minute)
	},
	"end, without destroy": func(s *simJob) {
		for i := range everyone[1:] {
			s.set(i+1, "")
			s.pass(time.Second)
		}
		s.spin(true, 0)
		s.pass(15 * time.Minute)
	},
	"shrink": func(s *simJob) {
		s.set(7, "")
		s.wait(7, "all_reduce")
		s.pass(5 * time.Second)
		smaller := s.communicator("smaller", 7, everyone[:7]...)
		s.launch(smaller, "all_reduce")
		s.spin(false, everyone...)
		s.pass(5 * time.Minute)
		for range 300 {
			s.launch(smaller, "all_reduce")
			s.pass(time.Second)
		}
		s.pass(10 * time.Minute)
	},
	"numbers that do not compare": func(s *simJob) {
		s.world.members[3].uncounted = true
		s.set(5, "T")
		s.wait(5, "all_reduce")
		s.pass(15 * time.Minute)
	},
	"two jobs in a pod": func(s *simJob) {
		s.all = nil
		a, b := s.communicator("a", 4, everyone[:4]...), s.communicator("b", 4, everyone[4:]...)
		for i := range 900 {
			s.launch(a, "all_reduce")
			if i < 200 {
				s.launch(b, "all_reduce")
			}
			s.pass(time.Second)
		}
	},
	"stages of a pipeline": func(s *simJob) {
		s.all = nil
		c := s.communicator("pipeline", 8, everyone...)
		for i := range 900 {
			s.launch(c, "send", i%8)
			s.launch(c, "recv", (i+1)%7)
			s.pass(time.Second)
		}
		s.spin(true, everyone...)
		s.pass(15 * time.Minute)
	},
	"idle inference server":                      func(s *simJob) { s.spin(false, everyone...); s.pass(2 * time.Hour) },
	"idle inference server, ranks wait for rank": func(s *simJob) { s.wait(0, "broadcast"); s.pass(2 * time.Hour) },
	"the sensor starts while all wait": func(s *simJob) {
		s.judge = &Judge{}
		s.spin(true, everyone...)
		s.pass(15 * time.Minute)
	},
	"the sensor starts during a checkpoint": func(s *simJob) {
		s.wait(0, "all_reduce")
		s.pass(time.Minute)
		s.judge = &Judge{}
		s.pass(4 * time.Minute)
		s.launch(s.world, "all_reduce", 0)
		s.train(time.Minute)
	},
	"starts slowly": func(s *simJob) { // the job's first minute
		s.judge, s.all = &Judge{}, nil
		c := s.communicator("new", 8, everyone...)
		s.launch(c, "all_reduce")
		s.spin(true, everyone...)
		s.pass(10 * time.Minute)
	},
	"stopped for a while in the first minute": func(s *simJob) {
		s.judge = &Judge{}
		s.pass(10 * time.Second)
		s.wait(5, "all_reduce")
		s.set(5, "T")
		s.pass(45 * time.Second)
		s.set(5, "S")
		s.launch(s.world, "all_reduce", 5)
		s.train(time.Minute)
	},
	"all are late": func(s *simJob) {
		for i := range 5 * 60 * 15 {
			s.world.members[i%8].late += 0.3
			s.train(200 * time.Millisecond)
		}
	},
	"late by little": func(s *simJob) {
		for range 5 * 60 * 15 {
			s.world.members[2].late += 0.0009
			s.train(200 * time.Millisecond)
		}
	},
	"late once in a while": func(s *simJob) {
		for i := range 5 * 60 * 15 {
			if i%900 == 0 {
				s.world.members[2].late += 20
			}
			s.train(200 * time.Millisecond)
		}
	},
}

// TestInnocent: jobs without a fault have no verdict.
func TestInnocent(t *testing.T) {
	for name, f := range innocent {
		t.Run(name, func(t *testing.T) {
			s := newSimJob(t)
			s.train(3 * time.Minute)
			f(s)
			if len(s.found) > 0 {
				t.Error(s.found)
			}
		})
	}
}

// TestPauses: a job that pauses at random, as a whole or while a rank writes for less than ten minutes, has no verdict.
func TestPauses(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			s := newSimJob(t)
			for range 6 {
				s.train(time.Duration(rnd.IntN(120)) * time.Second)
				pause := time.Duration(rnd.IntN(540)) * time.Second
				if rank := rnd.IntN(16); rank < 8 {
					s.wait(rank, "all_reduce")
					s.pass(pause)
					s.launch(s.world, "all_reduce", rank)
				} else {
					s.spin(false, everyone...)
					s.pass(pause)
				}
			}
			if len(s.found) > 0 {
				t.Error(s.found)
			}
		})
	}
}

// TestLatenessNotes: a minute without launches, or with counts that begin anew, does not count as a minute.
func TestLatenessNotes(t *testing.T) {
	for name, last := range map[string]struct {
		launched uint64
		late     float64
		minutes  int
	}{
		"launches": {300, 12, 2}, "no launch": {200, 12, 0}, "less lateness": {300, 7, 0}, "fewer launches": {100, 12, 0},
	} {
		var l lateness
		for i, c := range []struct {
			launched uint64
			late     float64
		}{{100, 5}, {200, 8}, {last.launched, last.late}} {
			share := &rankShare{}
			share.Numbered, share.Launched, share.Late = true, c.launched, model.Some(c.late)
			l.note(start.Add(time.Duration(i)*time.Minute), share)
		}
		if l.n != last.minutes {
			t.Errorf("%s: %d minutes, want %d", name, l.n, last.minutes)
		}
	}
}
