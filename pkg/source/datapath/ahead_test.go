// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// Between windows an estimate counts on with the CPU time of the process. It never falls: after a window with less it stands
// still until it has reached what was counted on. What a context did after the last window is part of it when it ends.
func TestCountOn(t *testing.T) {
	f := newFold(0.01)
	key := gen.DatapathContextKey{Context: 1, Tgid: 10}
	s := gen.DatapathContextStat{Cgroup: 7, Device: 1}
	const send = gen.DatapathOpcodeOPCODE_SEND
	window := func(n uint64) { // of a tenth of a period in which the process uses a second
		how := whole
		how[budget.Post] = budget.Sampling{Windowed: true, Scale: 10, Ratio: 0.1, Period: 10 * time.Second, Weight: 1}
		s.Posted[send] += n
		s.Bytes[send] += 1000 * n
		f.add(key, &s, how)
		f.endPeriods()
		f.countOn(key, [budget.Groups]float64{})
	}
	wait := func(cpu float64) {
		how := whole
		how[budget.Post] = budget.Sampling{Windowed: true, Ratio: 0.1}
		f.add(key, &s, how)
		f.countOn(key, [budget.Groups]float64{budget.Post: cpu})
	}
	want := func(what string, n uint64) {
		t.Helper()
		got, _ := rows(f)
		if got["7 mlx5_1 send sampled"] != n || got["7 mlx5_1 transmit sampled"] != 1000*n {
			t.Errorf("%s: %v, want %d", what, got, n)
		}
	}
	window(100)
	wait(1)
	want("one window predicts nothing", 1000)
	window(100)
	wait(0)
	want("two windows", 2000)
	wait(0.5)
	want("half a period later", 2500)
	wait(0.6)
	want("later", 2600)
	window(50)
	want("less", 2600)
	window(100)
	wait(0)
	want("reached", 3500)
	wait(0.5)
	f.endContext(key)
	got, _ := rows(f)
	if n := got["7 mlx5_1 local_length_error sampled"]; n != 0 {
		t.Errorf("%d errors", n)
	}
	if n := got["7 mlx5_1 send sampled"]; n < 3900 || n > 4000 { // at the mean rate of the windows, some 900 per second
		t.Errorf("after its end %d", n)
	}
}

// What was counted in a window that has not ended is not lost when the context ends: neither if the CPU time since its period began
// is not known, nor errors, which are not expected.
func TestCountOnEnds(t *testing.T) {
	const send = gen.DatapathOpcodeOPCODE_SEND
	for _, cpu := range []float64{0, 0.5} {
		f := newFold(0.01)
		ended := func(how budget.Sampling) samplings { return samplings{how, how} }
		first, second := gen.DatapathContextKey{Context: 1, Tgid: 10}, gen.DatapathContextKey{Context: 2, Tgid: 11}
		s := gen.DatapathContextStat{Cgroup: 7, Device: 1}
		for range 3 {
			s.Posted[send] += 100
			f.add(first, &s, ended(budget.Sampling{Windowed: true, Scale: 10, Ratio: 0.1, Period: 10 * time.Second, Weight: 1}))
			f.endPeriods()
		}
		f.countOn(first, [budget.Groups]float64{})
		before, _ := rows(f)
		short := gen.DatapathContextStat{Cgroup: 7, Device: 1}
		f.add(second, &short, ended(budget.Sampling{Windowed: true, Ratio: 0.1}))
		f.countOn(second, [budget.Groups]float64{})
		short.Posted[send], short.Errors[1] = 50, 3
		f.add(second, &short, ended(budget.Sampling{Windowed: true, Ratio: 0.1}))
		f.countOn(second, [budget.Groups]float64{budget.Post: cpu, budget.Poll: cpu})
		f.endContext(second)
		got, _ := rows(f)
		if n := got["7 mlx5_1 send sampled"] - before["7 mlx5_1 send sampled"]; n != 500 {
			t.Errorf("%v s: %d sends of the second context, want 500", cpu, n)
		}
		if n := got["7 mlx5_1 local_length_error sampled"]; n != 30 {
			t.Errorf("%v s: %d errors, want 30", cpu, n)
		}
	}
}
