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
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// is returns a function that reports whether a process is that with a number.
func is(tgid uint32) func(uint32) bool { return func(n uint32) bool { return n == tgid } }

func testDevice(index uint32) string { return fmt.Sprintf("mlx5_%d", index) }

// full is a place whose calls are all counted.
var full = place{}

// rows returns the facts by name, and whether they are resting.
func rows(t *fold) (map[string]uint64, map[string]bool) {
	snap := filled(t)
	out, resting := map[string]uint64{}, map[string]bool{}
	set := func(name string, rests bool, n uint64) {
		if _, twice := out[name]; twice {
			panic(name + " is reported twice")
		}
		out[name], resting[name] = n, rests
	}
	for _, r := range snap.Traffic {
		set(fmt.Sprintf("%d %s %s", r.Cgroup, r.Device, r.Direction), r.Resting, r.Bytes)
	}
	for _, r := range snap.WorkRequests {
		set(fmt.Sprintf("%d %s %s", r.Cgroup, r.Key.Device, r.Key.Opcode), r.Resting, r.Value.Count)
	}
	for _, r := range snap.CompletionErrors {
		set(fmt.Sprintf("%d %s %s", r.Cgroup, r.Key.Device, r.Key.Status), r.Resting, uint64(r.Value))
	}
	for _, r := range snap.Completions {
		set(fmt.Sprintf("%d %s took %s", r.Cgroup, r.Key.Device, r.Key.Opcode), r.Resting, r.Value.Count)
	}
	return out, resting
}

// filled returns the facts of a fold. All files are limited as in the last add of their contexts.
func filled(f *fold) (snap model.Snapshot) {
	f.fill(&snap, testDevice, func(file locate.FileID, _ time.Time) (limited [groups]bool) {
		for _, c := range f.contexts {
			if c.place.file == file {
				limited = c.place.limited
			}
		}
		return limited
	})
	return snap
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
	tot := newFold(0.01, time.Minute)
	a, b := gen.DatapathContextKey{Context: 1, Tgid: 10}, gen.DatapathContextKey{Context: 1, Tgid: 11}
	s := gen.DatapathContextStat{Cgroup: 7, Device: 1}
	s.Posted[gen.DatapathOpcodeOPCODE_RDMA_WRITE], s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_WRITE] = 3, 3000
	s.Posted[gen.DatapathOpcodeOPCODE_RDMA_READ], s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_READ] = 2, 200
	s.Posted[gen.DatapathOpcodeOPCODE_RECV] = 9
	s.ReceivedBytes = 50
	s.Errors[12] = 1
	tot.add(a, &s, full)
	tot.add(a, &s, full)
	tot.addLatency(gen.DatapathLatencyKey{Context: a}, &gen.DatapathLatency{SumNs: 5e9, Buckets: [98]uint64{3: 2}})
	tot.add(b, &s, full)
	got, _ := rows(tot)
	want(t, got, map[string]uint64{
		"7 mlx5_1 transmit": 6000, "7 mlx5_1 receive": 500, "7 mlx5_1 rdma_write": 6, "7 mlx5_1 rdma_read": 4,
		"7 mlx5_1 recv": 18, "7 mlx5_1 retry_exceeded": 2, "7 mlx5_1 took write": 2,
	})

	snap := filled(tot)
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

	// Polls are counted in surveys only: what they count rests, and received bytes with it, although posted reads are counted.
	limited := place{file: locate.FileID{Inode: 1}, limited: [groups]bool{polls: true}}
	s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_WRITE] += 100
	s.Bytes[gen.DatapathOpcodeOPCODE_RDMA_READ] += 7
	s.ReceivedBytes += 10
	s.Errors[12]++
	tot.add(a, &s, limited)
	tot.addLatency(gen.DatapathLatencyKey{Context: a}, &gen.DatapathLatency{SumNs: 6e9, Buckets: [98]uint64{3: 3}})
	got, resting := rows(tot)
	want(t, got, map[string]uint64{
		"7 mlx5_1 transmit": 6100, "7 mlx5_1 receive": 500, "7 mlx5_1 rdma_write": 6, "7 mlx5_1 rdma_read": 4, "7 mlx5_1 recv": 18,
		"7 mlx5_1 retry_exceeded": 2, "7 mlx5_1 took write": 2,
	})
	for name, rests := range resting {
		if want := strings.Contains(name, "receive") || strings.Contains(name, "retry") || strings.Contains(name, "took"); rests != want {
			t.Errorf("%s rests: %v, want %v", name, rests, want)
		}
	}

	// The other context is counted in full, but a part would be taken for the whole.
	tot.add(b, &s, full)
	if got, _ = rows(tot); got["7 mlx5_1 receive"] != 500 || got["7 mlx5_1 transmit"] != 6200 {
		t.Errorf("received %d, sent %d", got["7 mlx5_1 receive"], got["7 mlx5_1 transmit"])
	}

	// When the limited context is gone, the other one counts again.
	tot.endProcesses(is(a.Tgid))
	s.ReceivedBytes += 4
	tot.add(b, &s, full)
	got, resting = rows(tot)
	if got["7 mlx5_1 receive"] != 504 || resting["7 mlx5_1 receive"] {
		t.Errorf("received %d", got["7 mlx5_1 receive"])
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

// TestFoldSurveys: the result of a survey is what the contexts of a file moved between its begin and its end.
func TestFoldSurveys(t *testing.T) {
	f := newFold(0.01, time.Minute)
	file := locate.FileID{Inode: 1}
	a, idle := gen.DatapathContextKey{Context: 1, Tgid: 1}, gen.DatapathContextKey{Context: 2, Tgid: 2}
	stat, none := gen.DatapathContextStat{Cgroup: 7}, gen.DatapathContextStat{Cgroup: 8}
	step := func(bytes uint64, at place) {
		stat.ReceivedBytes += bytes
		stat.Bytes[gen.DatapathOpcodeOPCODE_SEND] += 2 * bytes
		f.add(a, &stat, at)
		f.add(idle, &none, at)
	}
	both := [groups]bool{true, true}
	running, paused := place{file, both, true}, place{file: file, limited: both}
	at := time.Unix(1e9, 0)
	end := func(length time.Duration) {
		f.endSurvey(file, &survey{begun: at, ended: at.Add(length)})
	}
	step(1, place{file: file}) // counted in full
	step(10, running)
	step(20, running)
	if rows := filled(f).Surveys; len(rows) != 0 {
		t.Errorf("%+v before the end of the first survey", rows)
	}
	end(10 * time.Second)
	step(500, paused) // counted between the reading and the end of the probes
	want := []model.Survey{
		{Cgroup: 7, Device: "mlx5_0", Begun: at, Ended: at.Add(10 * time.Second), TransmitBytes: 60, ReceiveBytes: 30},
		{Cgroup: 8, Device: "mlx5_0", Begun: at, Ended: at.Add(10 * time.Second)},
	}
	if got := filled(f).Surveys; !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	step(3, running) // the next one has begun
	if got := filled(f).Surveys; !slices.Equal(got, want) {
		t.Errorf("%+v during the next survey, want %+v", got, want)
	}
	end(20 * time.Second)
	if got := filled(f).Surveys; got[0].TransmitBytes != 6 || got[0].ReceiveBytes != 3 || !got[0].Ended.Equal(at.Add(20*time.Second)) {
		t.Errorf("%+v after the second survey", got)
	}
	// Posts are counted in full again: then a survey has received bytes only.
	step(0, place{file: file, limited: [groups]bool{polls: true}})
	if got := filled(f).Surveys; got[0].TransmitBytes != 0 || got[0].ReceiveBytes != 3 {
		t.Errorf("%+v with posts that are counted in full", got)
	}
	f.endContext(a)
	if got := filled(f).Surveys; len(got) != 1 || got[0].Cgroup != 8 {
		t.Errorf("%+v after the end of a context", got)
	}
	snap := model.Snapshot{}
	f.fill(&snap, testDevice, func(locate.FileID, time.Time) (outdated [groups]bool) { return })
	if len(snap.Surveys) != 0 {
		t.Errorf("outdated: %+v", snap.Surveys)
	}
	if got, _ := rows(f); got["7 mlx5_0 receive"] != 1 || got["7 mlx5_0 transmit"] != 2 {
		t.Errorf("what was surveyed is counted in full, too: %v", got)
	}
}

// TestFoldProperties: no value ever falls or grows while it rests; in surveys and otherwise together no byte is counted twice.
func TestFoldProperties(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	seen, all := newFold(0.01, time.Minute), newFold(0, time.Minute)
	type live struct {
		key  gen.DatapathContextKey
		stat gen.DatapathContextStat
		fine gen.DatapathLatency
	}
	var contexts []*live
	files := [2]place{{file: locate.FileID{Inode: 1}}, {file: locate.FileID{Inode: 2}}}
	before, rested := map[string]uint64{}, map[string]bool{}
	rests, surveyed := 0, uint64(0)
	for step := range 1200 {
		if len(contexts) < 6 && random.IntN(20) == 0 {
			contexts = append(contexts, &live{key: gen.DatapathContextKey{Context: uint64(step), Tgid: uint32(step)}, stat: gen.DatapathContextStat{
				Cgroup: uint64(1 + random.IntN(2)), Device: uint32(random.IntN(2)),
			}})
		}
		for i := range files {
			switch p := &files[i]; random.IntN(50) {
			case 0:
				p.limited[random.IntN(groups)] = true
				p.surveyed = true
			case 1:
				if p.surveyed {
					seen.endSurvey(p.file, &survey{begun: time.Unix(1, 0), ended: time.Unix(2, 0)})
				}
				p.surveyed = false
			case 2:
				*p = place{file: p.file}
			}
		}
		for _, c := range contexts {
			c.stat.Posted[random.IntN(13)] += random.Uint64N(10)
			c.stat.Bytes[random.IntN(13)] += random.Uint64N(1 << 40)
			c.stat.ReceivedBytes += random.Uint64N(1 << 40)
			c.stat.Errors[random.IntN(24)] += random.Uint64N(3)
			c.fine.SumNs += 1000
			c.fine.Buckets[random.IntN(98)]++
			key := gen.DatapathLatencyKey{Context: c.key, Completed: 1}
			seen.add(c.key, &c.stat, files[c.key.Tgid%2])
			seen.addLatency(key, &c.fine)
			all.add(c.key, &c.stat, full)
			all.addLatency(key, &c.fine)
		}
		if len(contexts) > 0 && random.IntN(40) == 0 {
			seen.endProcesses(is(contexts[0].key.Tgid))
			all.endProcesses(is(contexts[0].key.Tgid))
			contexts = contexts[1:]
		}
		for _, s := range filled(seen).Surveys {
			surveyed = max(surveyed, s.TransmitBytes)
		}
		now, resting := rows(seen)
		for name, n := range before {
			if m, ok := now[name]; !ok || m < n {
				t.Fatalf("step %d: %s fell from %d to %d", step, name, n, m)
			}
			if rested[name] && resting[name] && now[name] != n {
				t.Fatalf("step %d: %s rests, and went from %d to %d", step, name, n, now[name])
			}
			rests += toInt[int](resting[name])
		}
		before, rested = now, resting
	}
	for _, c := range contexts {
		seen.endProcesses(is(c.key.Tgid))
		all.endProcesses(is(c.key.Tgid))
	}
	got, _ := rows(seen)
	truth, _ := rows(all)
	for name, n := range got {
		if n == 0 || n > truth[name] {
			t.Errorf("%s: %d, of %d", name, n, truth[name])
		}
	}
	if rests == 0 || surveyed == 0 || len(got) == 0 {
		t.Errorf("%d values rested, %d bytes surveyed, %d values: nothing was tried", rests, surveyed, len(got))
	}
	if len(seen.contexts) != 0 {
		t.Errorf("%d contexts are remembered", len(seen.contexts))
	}
	for id, s := range seen.series {
		if s.resting != [groups]int{} || s.contexts != 0 || len(s.files) != 0 {
			t.Errorf("%v: %d contexts, %v rest, files %v", id, s.contexts, s.resting, s.files)
		}
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
	// Statuses whose order in rdma-core's enum differs from the order of their names.
	for status, name := range map[int]string{0: "success", 5: "wr_flush_error", 10: "remote_access_error", 12: "retry_exceeded", 13: "rnr_retry_exceeded", 21: "general_error"} {
		if statusNames[status] != name {
			t.Errorf("status %d is %s, want %s", status, statusNames[status], name)
		}
	}
}

func TestSpending(t *testing.T) {
	tot := newFold(0.01, time.Minute)
	// read returns the ratio and the time of cgroup 7, the only one.
	read := func() (ratio float64, spent model.CPUTime) {
		t.Helper()
		snap := filled(tot)
		if len(snap.Budgets) != 1 || snap.Budgets[0].Cgroup != 7 || len(snap.Spent) != 1 || snap.Spent[0].Cgroup != 7 {
			t.Fatalf("budgets %+v, spent %+v, want one of each", snap.Budgets, snap.Spent)
		}
		return snap.Budgets[0].SpentRatio, snap.Spent[0].Value
	}
	at := time.Unix(1e9, 0)
	for i := range 180 { // one second of CPU time each; probes take 1 % of it for a minute, 0.5 % later
		spent := time.Duration(min(i, 60))*10*time.Millisecond + time.Duration(max(i-60, 0))*5*time.Millisecond
		tot.update(at.Add(time.Duration(i)*time.Second), 1, 7, time.Duration(i)*time.Second, spent, false)
		tot.update(at.Add(time.Duration(i)*time.Second), 2, 7, time.Duration(i)*time.Second, 0, false)
		wanted := map[int]float64{5: 0, 59: 0, 60: 0.01, 179: 0.005}
		if w, ok := wanted[i]; ok {
			if ratio, _ := read(); math.Abs(ratio-w) > 1e-9 {
				t.Errorf("after %d s: %g, want %g", i, ratio, w)
			}
		}
	}
	if n := len(tot.spending.processes[1].samples); n > 14 {
		t.Errorf("%d samples of a minute", n)
	}
	// What a survey takes counts as spent, and not for the ratio.
	tot.update(at.Add(180*time.Second), 1, 7, 180*time.Second, 600*time.Millisecond+119*5*time.Millisecond+time.Second, true)
	if ratio, spent := read(); math.Abs(ratio-0.005) > 2e-4 || time.Duration(spent) != 1600*time.Millisecond+119*5*time.Millisecond {
		t.Errorf("after a survey: %g, %v", ratio, time.Duration(spent))
	}
	tot.endProcesses(is(1))
	if ratio, spent := read(); ratio != 0 || time.Duration(spent) != 1600*time.Millisecond+119*5*time.Millisecond {
		t.Errorf("after its exit: %g, %v", ratio, time.Duration(spent))
	}
	tot.forget(map[model.CgroupID]bool{7: true})
	if snap := filled(tot); len(snap.Budgets)+len(snap.Spent) != 0 {
		t.Errorf("not forgotten: %+v %+v", snap.Budgets, snap.Spent)
	}
	if limit, none := tot.limitRatio(), newFold(0, time.Minute).limitRatio(); limit != 0.01 || !math.IsInf(none, 1) {
		t.Errorf("limit %g, and %g without a limit, want 0.01 and infinity", limit, none)
	}
}

// TestOlderReading: a scrape reads the counters of a context after a step has read them, and adds them before.
func TestOlderReading(t *testing.T) {
	f := newFold(0, time.Minute)
	key := gen.DatapathContextKey{Context: 1, Tgid: 1, Number: 1}
	read := func(posted uint64) {
		stat := gen.DatapathContextStat{Cgroup: 1, Device: 2, Number: 1}
		stat.Posted[gen.DatapathOpcodeOPCODE_SEND] = posted
		f.add(key, &stat, full)
		f.addLatency(gen.DatapathLatencyKey{Context: key}, &gen.DatapathLatency{SumNs: posted, Buckets: [model.FineBuckets]uint64{posted}})
	}
	for _, posted := range []uint64{10, 4, 12} {
		read(posted)
	}
	got, _ := rows(f)
	want(t, got, map[string]uint64{"1 mlx5_2 send": 12, "1 mlx5_2 took write": 12})
}
