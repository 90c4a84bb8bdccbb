// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// is returns a function that reports whether a process is that with a number.
func is(tgid uint32) func(uint32) bool { return func(n uint32) bool { return n == tgid } }

func testDevice(index uint32) string { return fmt.Sprintf("mlx5_%d", index) }

var whole = [budget.Groups]budget.Sampling{{Scale: 1, Ratio: 1}, {Scale: 1, Ratio: 1}}

// rows returns the facts by name, and whether they are resting.
func rows(t *fold) (map[string]uint64, map[string]bool) {
	var snap model.Snapshot
	t.fill(&snap, testDevice)
	out, resting := map[string]uint64{}, map[string]bool{}
	set := func(name string, s model.Seen, n uint64) {
		if s.Sampled {
			name += " sampled"
		}
		if _, twice := out[name]; twice {
			panic(name + " is reported twice")
		}
		out[name], resting[name] = n, s.Resting
	}
	for _, r := range snap.Traffic {
		set(fmt.Sprintf("%d %s %s", r.Cgroup, r.Device, r.Direction), r.Seen, r.Bytes)
	}
	for _, r := range snap.WorkRequests {
		set(fmt.Sprintf("%d %s %s", r.Cgroup, r.Key.Device, r.Key.Opcode), model.Seen{Sampled: r.Key.Sampled, Resting: r.Resting}, r.Value.Count)
	}
	for _, r := range snap.CompletionErrors {
		set(fmt.Sprintf("%d %s %s", r.Cgroup, r.Key.Device, r.Key.Status), model.Seen{Sampled: r.Key.Sampled, Resting: r.Resting}, uint64(r.Value))
	}
	for _, r := range snap.Completions {
		set(fmt.Sprintf("%d %s took %s", r.Cgroup, r.Key.Device, r.Key.Opcode), model.Seen{Sampled: r.Key.Sampled, Resting: r.Resting}, r.Value.Count)
	}
	return out, resting
}

func want(t *testing.T, got, want map[string]uint64) {
	t.Helper()
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s: %d, want %d", name, got[name], n)
		}
	}
	for name, n := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: %d, want none", name, n)
		}
	}
}

func TestFold(t *testing.T) {
	tot := newFold(0.01)
	a, b := gen.DatapathContextKey{Context: 1, Tgid: 10}, gen.DatapathContextKey{Context: 1, Tgid: 11}
	s := gen.DatapathContextStat{Cgroup: 7, Device: 1}
	s.Posted[gen.DatapathOpcodeOPCODE_RDMA_WRITE], s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_WRITE] = 3, 3000
	s.Posted[gen.DatapathOpcodeOPCODE_RDMA_READ], s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_READ] = 2, 200
	s.Posted[gen.DatapathOpcodeOPCODE_RECV] = 9
	s.ReceivedBytes = 50
	s.Errors[12] = 1
	tot.add(a, &s, whole)
	tot.add(a, &s, whole)
	tot.addLatency(gen.DatapathLatencyKey{Context: a}, &gen.DatapathLatency{SumNs: 5e9, Buckets: [98]uint64{3: 2}}, whole[budget.Poll])
	tot.add(b, &s, whole)
	got, _ := rows(tot)
	want(t, got, map[string]uint64{
		"7 mlx5_1 transmit": 6000, "7 mlx5_1 receive": 500, "7 mlx5_1 rdma_write": 6, "7 mlx5_1 rdma_read": 4,
		"7 mlx5_1 recv": 18, "7 mlx5_1 retry_exceeded": 2, "7 mlx5_1 took write": 2,
	})

	var snap model.Snapshot
	tot.fill(&snap, testDevice)
	took := model.FineHistogram{Count: 2, Sum: 5e9, Buckets: [model.FineBuckets]uint64{3: 2}}
	if len(snap.Completions) != 1 || snap.Completions[0].Value != took {
		t.Errorf("completions %+v, want %+v", snap.Completions, took)
	}
	wrote := model.Series[model.WorkRequestKey, model.Requests]{
		Cgroup: 7, Key: model.WorkRequestKey{Device: "mlx5_1", Opcode: "rdma_write"}, Value: model.Requests{Count: 6, Bytes: 6000},
	}
	if !slices.Contains(snap.WorkRequests, wrote) {
		t.Errorf("work requests %+v, want %+v among them", snap.WorkRequests, wrote)
	}

	// Polling is sampled in windows: the exact series of polled values rest, although posted reads are counted exactly.
	how := whole
	how[budget.Poll] = budget.Sampling{Windowed: true, Ratio: 1}
	s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_READ] += 7
	s.ReceivedBytes += 10
	s.Errors[12]++
	tot.add(a, &s, how)
	how[budget.Poll].Scale, how[budget.Poll].Ratio = 2.5, 0.4
	s.ReceivedBytes++
	tot.add(a, &s, how)
	got, resting := rows(tot)
	want(t, got, map[string]uint64{
		"7 mlx5_1 transmit": 6000, "7 mlx5_1 receive": 500, "7 mlx5_1 receive sampled": 7 + 27, "7 mlx5_1 rdma_write": 6,
		"7 mlx5_1 rdma_read": 4, "7 mlx5_1 recv": 18, "7 mlx5_1 retry_exceeded": 2, "7 mlx5_1 retry_exceeded sampled": 2,
		"7 mlx5_1 took write": 2,
	})
	for name, rests := range resting {
		poll := strings.Contains(name, "receive") || strings.Contains(name, "retry") || strings.Contains(name, "took")
		if rests != (poll && !strings.Contains(name, "sampled")) {
			t.Errorf("%s rests: %v", name, rests)
		}
	}

	// The other context is counted exactly, and adds to the sampled series meanwhile.
	tot.add(b, &s, whole)
	got, _ = rows(tot)
	if got["7 mlx5_1 receive"] != 500 || got["7 mlx5_1 receive sampled"] != 34+7+11 {
		t.Errorf("received %d exact, %d sampled", got["7 mlx5_1 receive"], got["7 mlx5_1 receive sampled"])
	}

	// A window that is open when the process ends is scaled like the previous one.
	s.ReceivedBytes += 100
	how[budget.Poll].Scale = 0
	tot.add(a, &s, how)
	tot.endProcesses(is(a.Tgid))
	s.ReceivedBytes += 4
	tot.add(b, &s, whole)
	got, resting = rows(tot)
	if got["7 mlx5_1 receive"] != 604 || got["7 mlx5_1 receive sampled"] != 302 || resting["7 mlx5_1 receive"] {
		t.Errorf("received %d exact, %d sampled", got["7 mlx5_1 receive"], got["7 mlx5_1 receive sampled"])
	}
	tot.endProcesses(is(b.Tgid))
	if again, _ := rows(tot); fmt.Sprint(again) != fmt.Sprint(got) {
		t.Errorf("changed when the last process went: %v", again)
	}
	tot.forget(map[model.CgroupID]bool{7: true})
	if got, _ = rows(tot); len(got) != 0 || len(tot.contexts)+len(tot.series) != 0 {
		t.Errorf("not forgotten: %v", got)
	}
}

// A process that hardly ran in a window goes on with its period: what it counted there stays held back while later counts are
// discarded, and is scaled with that of the next window.
func TestFoldKeeps(t *testing.T) {
	f := newFold(0.01)
	key := gen.DatapathContextKey{Context: 1, Tgid: 1}
	stat := gen.DatapathContextStat{Cgroup: 7}
	step := func(bytes, ns uint64, how budget.Sampling) {
		how.Windowed = true
		stat.ReceivedBytes += bytes
		both := whole
		both[budget.Poll] = how
		f.add(key, &stat, both)
		f.addLatency(gen.DatapathLatencyKey{Context: key, Completed: 1}, &gen.DatapathLatency{SumNs: ns}, how)
	}
	step(10, 10, budget.Sampling{})
	step(5, 15, budget.Sampling{Discard: true, Keep: true})
	step(20, 35, budget.Sampling{Scale: 3, Ratio: 1. / 3, Period: time.Second})
	s := f.seriesOf(f.contexts[key].series)
	if got := s.received.sampled; got != 90 {
		t.Errorf("received %d bytes, want 90", got)
	}
	if got := s.durationsOf(1).sum.sampled; got != 90 {
		t.Errorf("durations of %d ns, want 90", got)
	}
	step(40, 75, budget.Sampling{})
	step(0, 75, budget.Sampling{Discard: true})
	step(0, 75, budget.Sampling{Scale: 3, Ratio: 1. / 3, Period: time.Second})
	if got := s.received.sampled; got != 90 {
		t.Errorf("received %d bytes after a discard, want 90", got)
	}
}

// No value ever falls, and exact and sampled values add up: each context adds the same to a pair of totals, one of
// which is never sampled.
func TestFoldProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	seen, all := newFold(0.01), newFold(0)
	type live struct {
		key  gen.DatapathContextKey
		stat gen.DatapathContextStat
		fine gen.DatapathLatency
	}
	var contexts []*live
	windowed := [budget.Groups]bool{}
	before, rested := map[string]uint64{}, map[string]bool{}
	var scaled, counted float64
	for step := range 1200 {
		if len(contexts) < 6 && random.IntN(20) == 0 {
			contexts = append(contexts, &live{key: gen.DatapathContextKey{Context: uint64(step), Tgid: uint32(step)}, stat: gen.DatapathContextStat{
				Cgroup: uint64(1 + random.IntN(2)), Device: uint32(random.IntN(2)),
			}})
		}
		how := whole
		for g := range budget.Groups {
			if random.IntN(50) == 0 {
				windowed[g] = !windowed[g]
			}
			if windowed[g] {
				how[g] = budget.Sampling{Windowed: true, Ratio: 1, Scale: float64(random.IntN(2))}
			}
		}
		for _, c := range contexts {
			c.stat.Posted[random.IntN(13)] += random.Uint64N(10)
			c.stat.Bytes[random.IntN(13)] += random.Uint64N(1 << 40)
			c.stat.ReceivedBytes += random.Uint64N(1 << 40)
			c.stat.Errors[random.IntN(24)] += random.Uint64N(3)
			c.fine.SumNs += 1000
			c.fine.Buckets[random.IntN(98)]++
			mine := how
			if c.key.Tgid%2 == 0 {
				mine = whole // a context of another file
			}
			key := gen.DatapathLatencyKey{Context: c.key, Completed: 1}
			seen.add(c.key, &c.stat, mine)
			seen.addLatency(key, &c.fine, mine[budget.Poll])
			all.add(c.key, &c.stat, whole)
			all.addLatency(key, &c.fine, whole[budget.Poll])
		}
		if len(contexts) > 0 && random.IntN(40) == 0 {
			seen.endProcesses(is(contexts[0].key.Tgid))
			all.endProcesses(is(contexts[0].key.Tgid))
			contexts = contexts[1:]
		}
		now, resting := rows(seen)
		for name, n := range before {
			if m, ok := now[name]; !ok || m < n {
				t.Fatalf("step %d: %s fell from %d to %d", step, name, n, m)
			}
			if rested[name] && resting[name] && now[name] != n {
				t.Fatalf("step %d: %s rests, and went from %d to %d", step, name, n, now[name])
			}
		}
		before, rested = now, resting
	}
	for _, c := range contexts {
		seen.endProcesses(is(c.key.Tgid))
		all.endProcesses(is(c.key.Tgid))
	}
	got, _ := rows(seen)
	truth, _ := rows(all)
	for name, n := range truth {
		// All scales were 1, so exact and sampled values together are the true ones.
		if sum := got[name] + got[name+" sampled"]; sum != n {
			t.Errorf("%s: %d and %d, of %d", name, got[name], got[name+" sampled"], n)
		}
		scaled += float64(got[name+" sampled"])
		counted += float64(got[name])
	}
	if scaled == 0 || counted == 0 {
		t.Errorf("%g sampled, %g exact: nothing was tried", scaled, counted)
	}
	if len(seen.contexts) != 0 {
		t.Errorf("%d contexts are remembered", len(seen.contexts))
	}
}

// Scaling loses no fraction, whatever the number of periods.
func TestSampledFractions(t *testing.T) {
	var f count
	for range 1_000_000 {
		f.add(1, false, 1.3)
	}
	if f.sampled < 1_299_999 || f.sampled > 1_300_001 || f.exact != 0 {
		t.Errorf("%+v, want 1.3 million", f)
	}
	f = count{sampled: 1 << 60}
	for range 10 {
		f.add(1, false, 1.5)
	}
	if f.sampled != 1<<60+15 {
		t.Errorf("%d beyond 2^60, want 15", f.sampled-1<<60)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range append(append([]string{}, opcodeNames[:]...), statusNames[:]...) {
		if name == "" || seen[name] || strings.ToLower(name) != name {
			t.Errorf("name %q", name)
		}
		seen[name] = true
	}
	if model.FineBuckets != len(gen.DatapathLatency{}.Buckets) {
		t.Error("the histograms of kernel and model differ")
	}
	// Statuses of rdma-core's enum whose order differs from that of their names.
	for status, name := range map[int]string{0: "success", 5: "wr_flush_error", 10: "remote_access_error", 12: "retry_exceeded", 13: "rnr_retry_exceeded", 21: "general_error"} {
		if statusNames[status] != name {
			t.Errorf("status %d is %s, want %s", status, statusNames[status], name)
		}
	}
}

func TestSpending(t *testing.T) {
	tot := newFold(0.01)
	// read returns the ratio and the time of cgroup 7, the only one.
	read := func() (ratio float64, spent model.CPUTime) {
		t.Helper()
		var snap model.Snapshot
		tot.fill(&snap, testDevice)
		if len(snap.Budgets) != 1 || snap.Budgets[0].Cgroup != 7 || len(snap.Spent) != 1 || snap.Spent[0].Cgroup != 7 {
			t.Fatalf("budgets %+v, spent %+v, want one of each", snap.Budgets, snap.Spent)
		}
		return snap.Budgets[0].SpentRatio, snap.Spent[0].Value
	}
	at := time.Unix(1e9, 0)
	for i := range 180 { // one second of CPU time each; probes take 1 % of it for a minute, 0.5 % later
		spent := time.Duration(min(i, 60))*10*time.Millisecond + time.Duration(max(i-60, 0))*5*time.Millisecond
		tot.update(at.Add(time.Duration(i)*time.Second), 1, 7, time.Duration(i)*time.Second, spent)
		tot.update(at.Add(time.Duration(i)*time.Second), 2, 7, time.Duration(i)*time.Second, 0)
		wanted := map[int]float64{5: 0, 14: 0, 15: 0.01, 59: 0.01, 179: 0.005}
		if w, ok := wanted[i]; ok {
			if ratio, _ := read(); math.Abs(ratio-w) > 1e-9 {
				t.Errorf("after %d s: %g, want %g", i, ratio, w)
			}
		}
	}
	if n := len(tot.spending.processes[1].samples); n > 14 {
		t.Errorf("%d samples of a minute", n)
	}
	tot.endProcesses(is(1))
	if ratio, spent := read(); ratio != 0 || time.Duration(spent) != 600*time.Millisecond+119*5*time.Millisecond {
		t.Errorf("after its exit: %g, %v", ratio, time.Duration(spent))
	}
	tot.forget(map[model.CgroupID]bool{7: true})
	var snap model.Snapshot
	if tot.fill(&snap, testDevice); len(snap.Budgets)+len(snap.Spent) != 0 {
		t.Errorf("not forgotten: %+v %+v", snap.Budgets, snap.Spent)
	}
	if limit, none := tot.limitRatio(), newFold(0).limitRatio(); limit != 0.01 || !math.IsInf(none, 1) {
		t.Errorf("limit %g, and %g without one, want 0.01 and infinity", limit, none)
	}
}

// TestOlderReading: a scrape reads the counters of a context after a step has read them, and adds them before.
func TestOlderReading(t *testing.T) {
	f := newFold(0)
	key := gen.DatapathContextKey{Context: 1, Tgid: 1, Number: 1}
	read := func(posted uint64) {
		stat := gen.DatapathContextStat{Cgroup: 1, Device: 2, Number: 1}
		stat.Posted[gen.DatapathOpcodeOPCODE_SEND] = posted
		f.add(key, &stat, whole)
		f.addLatency(gen.DatapathLatencyKey{Context: key}, &gen.DatapathLatency{SumNs: posted, Buckets: [model.FineBuckets]uint64{posted}}, whole[0])
	}
	for _, posted := range []uint64{10, 4, 12} {
		read(posted)
	}
	got, _ := rows(f)
	want(t, got, map[string]uint64{"1 mlx5_2 send": 12, "1 mlx5_2 took write": 12})
}
