// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// counting counts verbs of one cgroup, and names it.
type counting struct {
	n    atomic.Uint64
	fine atomic.Bool // read is no longer called
	read func(n uint64)
}

func (c *counting) Name() string { return "counting" }
func (c *counting) Close() error { return nil }

func (c *counting) Read(context.Context) (model.Snapshot, error) {
	n := c.n.Add(1)
	if !c.fine.Load() {
		c.read(n)
	}
	return model.Snapshot{Verbs: []model.Series[model.VerbKey, model.Histogram]{{
		Cgroup: 7, Key: model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, Value: model.Histogram{Count: n, Sum: 10 * n},
	}}}, nil
}

func (c *counting) Resolve(context.Context, []model.CgroupID) (model.Snapshot, error) {
	return model.Snapshot{Cgroups: []model.Cgroup{{ID: 7, Workload: "slurm:7"}}}, nil
}

// TestLostReadsKeepCounters: counters of owners are exact, whatever becomes of single answers.
func TestLostReadsKeepCounters(t *testing.T) {
	for name, read := range map[string]func(n uint64){
		"slower than its deadline every second time": func(n uint64) {
			if n%2 == 0 {
				time.Sleep(2500 * time.Millisecond) // does not end when a refresh begins
			}
		},
		"panics every third time": func(n uint64) {
			if n%3 == 0 {
				panic("boom")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := &counting{read: read}
				e := New(Options{})
				e.Add(Registration{Source: source, Deadline: time.Second})
				e.Start()
				answers := 0
				for range 50 {
					time.Sleep(2 * time.Second)
					r := e.Refresh()
					if r.Shares.Verbs == nil {
						continue
					}
					answers++
					v := r.Shares.Verbs
					if n := v[len(v)-1].Value; len(v) > 2 || n.Count > source.n.Load() || n.Sum != 10*n.Count {
						t.Fatalf("%+v after %d reads", v, source.n.Load())
					}
				}
				if answers < 20 || answers == 50 {
					t.Errorf("%d of 50 refreshes have an answer", answers)
				}
				source.fine.Store(true)
				time.Sleep(5 * time.Second)
				var sum uint64
				for _, v := range e.Refresh().Shares.Verbs {
					sum += v.Value.Count
				}
				if n := source.n.Load(); sum != n {
					t.Errorf("%d verbs are credited, %d were counted", sum, n)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestNotStarted: an engine that was not started reads nothing.
func TestNotStarted(t *testing.T) {
	e := New(Options{})
	e.Add(Registration{Source: &counting{read: func(uint64) { t.Error("read") }}})
	if r := e.Refresh(); !r.At.IsZero() || r.States != nil {
		t.Errorf("%+v", r)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}
