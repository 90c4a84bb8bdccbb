// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// largePrometheus is a FAKE that answers each query with 16 MiB of distinct series.
func largePrometheus(t *testing.T) *httptest.Server {
	const name, size = "ABCDEFGH", 10_000 // replaced by the query's name
	var out bytes.Buffer
	out.WriteString(`{"status":"success","data":{"resultType":"vector","result":[`)
	for i := 0; out.Len() < maxAnswer-size-1<<10; i++ {
		if i > 0 {
			out.WriteString(",")
		}
		const format = `{"metric":{"instance":"%s%d","device":"mlx5_%d","workload":"w%d%s"},"value":[1000,"1"]}`
		fmt.Fprintf(&out, format, name, i, i, i, strings.Repeat("x", size))
	}
	out.WriteString(`]}}`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		of := fmt.Sprintf("%x", sha256.Sum256([]byte(r.FormValue("query"))))[:len(name)]
		for part := range bytes.SplitAfterSeq(out.Bytes(), []byte(name)) {
			if _, err := w.Write(bytes.Replace(part, []byte(name), []byte(of), 1)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestMemory: all that a reader can hold at the same time is at most MaxMemory: a shown state, the next state, and all
// visits. Each query has an answer of 16 MiB. What fits is answered; the rest is named.
func TestMemory(t *testing.T) {
	s := largePrometheus(t)
	before := heap()
	r := reader(t, s.URL, "")
	r.visits.wait = time.Minute
	state := func(of string) *answers {
		a := r.ask(t.Context(), time.Unix(1000, 0), maxState, stateQueriesAtOnce, map[string]string{"alerts": of}, stateQueries[:5]...)
		if text := strings.Join(a.problems, "\n"); len(a.vectors) == 0 || !strings.Contains(text, "more than the 80 MiB of memory") {
			t.Errorf("%d answers, problems: %q", len(a.vectors), text)
		}
		if a.charged > maxState {
			t.Errorf("%d bytes are charged", a.charged)
		}
		return a
	}
	shown := state("shown")
	if used := heap() - before; used > int64(shown.charged)+4<<20 { // buffers of connections
		t.Errorf("%d answers: %d MiB in use, %d charged", len(shown.vectors), used>>20, shown.charged>>20)
	}
	var all sync.WaitGroup
	hold, held := make(chan struct{}), make(chan struct{})
	for i := range maxVisits {
		all.Go(func() {
			defer func() { held <- struct{}{} }()
			leave, err := r.Enter(t.Context(), fmt.Sprint(i/maxOfClient))
			if err != nil {
				t.Error(err)
				return
			}
			defer leave()
			a := r.ask(t.Context(), time.Unix(1000, 0), maxQuestion, queriesAtOnce, map[string]string{"name": fmt.Sprint(i)}, "members")
			if text := strings.Join(a.problems, "\n"); !strings.Contains(text, "more than the 8 MiB of memory") {
				t.Errorf("problems: %q", text)
			}
			held <- struct{}{}
			<-hold
			runtime.KeepAlive(a)
		})
	}
	asked := state("asked for")
	for range maxVisits {
		<-held
	}
	used := heap() - before
	t.Logf("%d MiB in use of %d", used>>20, MaxMemory>>20)
	if used > MaxMemory {
		t.Error("that is more")
	}
	close(hold)
	for range maxVisits {
		<-held
	}
	all.Wait()
	runtime.KeepAlive([]*answers{shown, asked})
}

// TestJobMemory: what a job needs beyond its members, now and in the past, has its own part of a question's memory each.
func TestJobMemory(t *testing.T) {
	large := largePrometheus(t)
	members := expand(queries["members"], map[string]string{"namespace": "ml", "kind": "Job", "name": "train"})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("query") == members {
			fmt.Fprint(w, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"instance":"n","workload":"w"},"value":[1000,"1"]}]}}`)
			return
		}
		large.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	report, problems := reader(t, s.URL, "").Job(t.Context(), &State{}, JobName{"ml", "Job", "train"})
	if report == nil || len(report.Members) != 1 {
		t.Fatalf("%+v, %q", report, problems)
	}
	for _, most := range []int{maxQuestion - maxPast, maxPast} {
		want := fmt.Sprintf("more than the %d MiB of memory", most>>20)
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("no problem has %q: %q", want, problems)
		}
	}
}

func TestDocumentedMemory(t *testing.T) {
	for file, want := range map[string]string{
		"docs/fleet.md": fmt.Sprintf("%d MiB in all", MaxMemory>>20),
		"deploy/kubernetes/overlays/fleet/deployment.yaml": fmt.Sprintf("at most %d MiB", MaxMemory>>20),
		"deploy/helm/accelscope/values.yaml":               fmt.Sprintf("at most %d MiB", MaxMemory>>20),
		"deploy/systemd/accelscope-fleet.service":          fmt.Sprintf("at most %d MiB", MaxMemory>>20),
	} {
		text, err := os.ReadFile("../../" + file)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not have %q: %v", file, want, err)
		}
	}
}

// TestCapacity: the state of the number of nodes in docs/fleet.md fits.
func TestCapacity(t *testing.T) {
	const nodes = 3500
	in := newStore(maxState)
	for _, name := range stateQueries {
		things := 1
		switch {
		case strings.HasPrefix(name, "rail_"), name == "ports":
			things = 10
		case strings.HasPrefix(name, "gpu"):
			things = 8
		case name == "functions", name == "alerts", strings.HasPrefix(name, "job_"):
			continue // does not depend on the number of nodes alone
		}
		v := &vector{in: in, name: name}
		for i := range nodes {
			for j := range things {
				metric := map[string]string{"instance": fmt.Sprintf("gpu%05d.cluster.example:9847", i)}
				switch {
				case strings.HasPrefix(name, "gpu"):
					metric["uuid"] = fmt.Sprintf("GPU-00000000-0000-0000-0000-%06d%06d", i, j)
				case things > 1:
					metric["device"] = fmt.Sprint("mlx5_", j)
				}
				if name == "ports" {
					metric["port"] = "1"
				}
				if err := v.add(metric, 1); err != nil {
					t.Fatalf("%s of node %d: %v", name, i, err)
				}
			}
		}
	}
	t.Logf("%d nodes have %d MiB", nodes, in.used>>20)
}

// TestCharged: the charge for each query's series is at least the heap of the answers and their results, with the JSON
// of a state.
func TestCharged(t *testing.T) {
	const n = 5000
	measure := func(name string, made func(a *answers) any) {
		in := newStore(1 << 30)
		before := heap()
		a := &answers{vectors: map[string][]sample{}, runs: map[string][][]run{}}
		for name := range strings.FieldsSeq(name) {
			v := &vector{in: in, name: name, samples: []sample{}}
			for i := range n {
				metric := map[string]string{
					"instance": fmt.Sprint("node", i), "device": fmt.Sprint("mlx5_", i), "uuid": fmt.Sprint("GPU-", i), "alertname": downAlert, "severity": "x",
					"workload": fmt.Sprint("w", i), "job_name": fmt.Sprint("j", i), "pod": fmt.Sprint("p", i),
				}
				switch {
				case strings.HasPrefix(name, "nodes"):
					metric = map[string]string{"instance": metric["instance"]}
				case name != "alerts":
					delete(metric, "alertname")
				}
				if err := v.add(metric, 1); err != nil {
					t.Fatal(err)
				}
			}
			a.vectors[name] = v.samples
		}
		out := made(a)
		used := heap() - before
		t.Logf("%s: %d bytes of a series are charged, %d used", name, in.used/n, used/n)
		if used > int64(in.used) {
			t.Errorf("%s: more than is charged", name)
		}
		runtime.KeepAlive(a)
		runtime.KeepAlive(in)
		runtime.KeepAlive(out)
	}
	state := func(a *answers) any {
		s := stateOf(a, time.Unix(1000, 0))
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return []any{s, text}
	}
	for _, name := range []string{"nodes", "nodes_before", "alerts", "job_members", "rail_errors"} {
		measure(name, state)
	}
	measure("nodes gpus gpus_given ports rail_transmit rail_errors rail_pause transmit receive", state)
	measure("job_members job_transmit job_receive job_gpus job_outlier", state)
	measure("members member_transmit member_receive member_p99", func(a *answers) any { list, _ := membersOf(a); return list })
	measure("members_lost events", func(a *answers) any {
		for range a.vectors["events"] {
			a.runs["events"] = append(a.runs["events"], []run{{0, 60_000, 30}})
		}
		members, omitted := membersOf(&answers{vectors: map[string][]sample{"members": {}, "members_lost": a.vectors["members_lost"]}})
		r := reportOf(&State{}, JobName{}, members, omitted, a, time.Unix(10_000, 0))
		r.addEvents(a, time.Unix(10_000, 0))
		return r
	})
	measure("found_workloads found_gpus found_devices", func(a *answers) any { return a.found() })
}

// TestKept: kept answers are few and small; the oldest is dropped first.
func TestKept(t *testing.T) {
	var m memo[int, []int]
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	get := func(key, bytes int) {
		now = now.Add(time.Millisecond)
		m.get(t.Context(), key, clock, func() ([]int, []string, int) { return nil, nil, bytes })
	}
	for i := range 3 * maxKept {
		get(i, 1)
	}
	if len(m.kept) != maxKept || m.kept[3*maxKept-1] == nil || m.kept[2*maxKept-1] != nil {
		t.Errorf("%d are kept", len(m.kept))
	}
	get(-1, maxKeptBytes/4)
	get(-2, maxKeptBytes/4)
	if len(m.kept) != 2 {
		t.Errorf("%d are kept with two large ones", len(m.kept))
	}
	get(-3, 1)
	if len(m.kept) != 2 || m.kept[-1] != nil {
		t.Errorf("%d are kept with one large one", len(m.kept))
	}
}

// TestShared: concurrent callers share the answer, and a caller that gives up does not end it. No lock is held: other
// keys are answered.
func TestShared(t *testing.T) {
	var m memo[string, []int]
	asked, open := make(chan struct{}), make(chan struct{})
	get := func(ctx context.Context) ([]int, []string) {
		return m.get(ctx, "slow", time.Now, func() ([]int, []string, int) {
			close(asked) // panics the second time
			<-open
			return []int{1}, nil, 1
		})
	}
	var all sync.WaitGroup
	all.Go(func() {
		gone, cancel := context.WithCancel(t.Context())
		cancel() // the first caller has given up, too
		if list, _ := get(gone); len(list) != 1 {
			t.Error("the first one has no answer")
		}
	})
	<-asked
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if list, problems := get(gone); len(list) > 0 || len(problems) == 0 {
		t.Errorf("one that gave up got %v %v", list, problems)
	}
	if list, _ := m.get(t.Context(), "quick", time.Now, func() ([]int, []string, int) { return []int{2}, nil, 1 }); len(list) != 1 {
		t.Error("another key has no answer")
	}
	for range 5 {
		all.Go(func() {
			if list, problems := get(t.Context()); len(list) != 1 {
				t.Errorf("got %v %v", list, problems)
			}
		})
	}
	close(open)
	all.Wait()
	func() {
		defer func() { _ = recover() }()
		m.get(t.Context(), "panics", time.Now, func() ([]int, []string, int) { panic("x") })
	}()
	if _, problems := m.get(t.Context(), "panics", time.Now, nil); len(problems) != 1 {
		t.Errorf("after a panic: %v", problems)
	}
}

// TestVisits: each client has some places, and all clients together have more. A client that leaves frees its place.
func TestVisits(t *testing.T) {
	v := newVisits()
	v.wait = 10 * time.Millisecond
	var leaves []func()
	enter := func(i byte) bool {
		leave, err := v.enter(t.Context(), fmt.Sprint(i))
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err == nil
	}
	for i := range maxOfClient {
		if !enter(1) {
			t.Fatalf("place %d is refused", i)
		}
	}
	if enter(1) {
		t.Error("a client has too many places")
	}
	for i := maxOfClient; i < maxVisits; i++ {
		if !enter(byte(10 + i)) {
			t.Fatalf("another client is refused: %d", i)
		}
	}
	if enter(2) {
		t.Error("there are too many visits")
	}
	v.wait = time.Minute
	last := leaves[len(leaves)-1]
	leaves = leaves[:len(leaves)-1]
	left := make(chan struct{})
	time.AfterFunc(10*time.Millisecond, func() { last(); close(left) })
	if !enter(2) {
		t.Error("one that waits does not get the place that is free")
	}
	<-left
	for _, leave := range leaves {
		leave()
	}
	if len(v.of) > 0 || len(v.all) > 0 {
		t.Errorf("%d clients and %d places are left", len(v.of), len(v.all))
	}
}
