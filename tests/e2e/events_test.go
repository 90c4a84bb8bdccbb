// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/otel"
	"github.com/accelscope/accelscope/tests/vm/guest"
)

// churnVar is the number of containers that live and die during the test of events; 40 if it is not set.
const churnVar = "ACCELSCOPE_CHURN"

// reconciled is how long a receiver's state may be wrong after a gap. An emulator may take a multiple of it.
const (
	reconciled = 10 * time.Second
	slowly     = 3
)

// mill runs short-lived containers, each with an exit code, a few pods at a time.
type mill struct {
	w     *world
	pods  []*guest.Pod
	total int
	slow  int // index of the first container that lives longer

	gate sync.RWMutex // held for writing: no container is started or removed
	next atomic.Int64
	done atomic.Int64

	mu    sync.Mutex
	codes map[string]uint32       // exit codes that the CRI reported, by container id
	lives map[string][2]time.Time // from before creation until after removal
	lost  []error                 // errors of requests whose response was lost when the runtime was killed
}

func (m *mill) run(ctx context.Context) {
	var workers sync.WaitGroup
	for _, p := range m.pods {
		for range 2 {
			workers.Go(func() {
				for i := m.next.Add(1); i <= int64(m.total); i = m.next.Add(1) {
					for try := 0; ctx.Err() == nil; try++ {
						m.gate.RLock()
						err := m.one(ctx, p, int(i), try)
						m.gate.RUnlock()
						if err == nil {
							break
						}
						m.mu.Lock()
						m.lost = append(m.lost, err)
						m.mu.Unlock()
						time.Sleep(300 * time.Millisecond)
					}
					m.done.Add(1)
				}
			})
		}
	}
	workers.Wait()
}

// one runs a container and removes it, except every third. Some live long enough to outlive a kill of their runtime.
func (m *mill) one(ctx context.Context, p *guest.Pod, i, try int) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	begin := time.Now()
	code := uint32(i%100 + 1)
	script := fmt.Sprint("exit ", code)
	if i >= m.slow && i < m.slow+4 {
		script = "sleep 3; " + script
	}
	id, err := m.w.cri.Run(ctx, p, guest.PodMember{
		Name: fmt.Sprint("short-", i), Restarts: uint32(try), Command: []string{"/bin/sh", "-c", script},
	})
	if err != nil {
		return err
	}
	// The runtime may be down for a moment, but keeps its state.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		var got uint32
		if got, err = m.w.cri.Wait(ctx, id); err == nil {
			if got != code {
				return fmt.Errorf("%.12s exited with %d, want %d", id, got, code)
			}
			break
		}
		if time.Now().After(end) {
			return err
		}
	}
	if i%3 != 0 {
		err = m.w.cri.Remove(ctx, id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.codes[id], m.lives[id] = code, [2]time.Time{begin, time.Now()}
	return err
}

// until waits until this many containers have ended.
func (m *mill) until(t *testing.T, count int) {
	t.Helper()
	for m.done.Load() < int64(count) {
		if t.Context().Err() != nil {
			t.Fatal(t.Context().Err())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// truth returns the containers that exist according to ctr, and whether they run.
func (w *world) truth(ctx context.Context) (map[string]bool, error) {
	all, err := w.containerd.Ctr(ctx, "containers", "ls", "-q")
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for id := range strings.FieldsSeq(all) {
		out[id] = false
	}
	running, err := w.containerd.Ctr(ctx, "tasks", "ls")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(running) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" {
			out[f[0]] = true
		}
	}
	return out, nil
}

// events: the records that a real OpenTelemetry Collector receives match what happened, also across the gaps when the
// collector or the runtime is killed.
func (w *world) events(t *testing.T) {
	ctx := t.Context()
	total, _ := strconv.Atoi(os.Getenv(churnVar))
	total = cmp.Or(total, 40)
	config := otel.Config{Dir: t.TempDir(), Endpoint: "127.0.0.1:43170"}
	collector, err := otel.Start(ctx, os.Getenv(otelcolVar), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { collector.Kill() }()
	s := start(t, "--events.otlp-endpoint="+config.Endpoint, "--events.otlp-insecure", "--node.name=guest")
	m := &mill{w: w, total: total, slow: total*2/3 - 1, codes: map[string]uint32{}, lives: map[string][2]time.Time{}}
	for _, name := range []string{"mill-0", "mill-1"} {
		m.pods = append(m.pods, w.runPod(t, &guest.Pod{Namespace: "default", Name: name, HostNetwork: true}))
	}
	w.run(t, m.pods[0], w.member("device", 1))
	var last *otel.View
	right := func() error {
		records, err := collector.Records()
		if err != nil {
			return err
		}
		last = otel.Replay(records)
		want, err := w.truth(ctx)
		if err != nil {
			return err
		}
		got := map[string]bool{}
		for id, r := range last.Containers {
			got[id] = r.Attributes["accelscope.container.status"] == "running"
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			return fmt.Errorf("what exists and runs (-ctr +receiver):\n%s", diff)
		}
		return nil
	}
	eventually(t, 20*time.Second, right)

	churning, stop := context.WithCancel(ctx)
	defer stop()
	var milling sync.WaitGroup
	begin := time.Now()
	milling.Go(func() { m.run(churning) })
	quiet := func(what string, since func() time.Time) {
		t.Helper()
		m.gate.Lock()
		defer m.gate.Unlock()
		answered, waited := since(), time.Now()
		eventually(t, slowly*reconciled, right)
		t.Logf("%s: right %v after it answered, %v after the last change", what,
			time.Since(answered).Round(time.Millisecond), time.Since(waited).Round(time.Millisecond))
	}

	m.until(t, total/6)
	collector.Kill()
	time.Sleep(20 * time.Second)
	quiet("Collector", func() time.Time {
		if collector, err = otel.Start(ctx, os.Getenv(otelcolVar), config); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	})

	m.until(t, total*2/3)
	down := time.Now()
	if err := w.containerd.Crash(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := w.containerd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	quiet("containerd", func() time.Time { return up })

	milling.Wait()
	took := time.Since(begin)
	// during reports whether a container may have lived while no events were sent.
	during := func(id string) bool {
		return m.lives[id][0].Before(up.Add(reconciled)) && m.lives[id][1].After(down)
	}
	eventually(t, slowly*reconciled, func() error {
		if err := right(); err != nil {
			return err
		}
		for id := range m.codes { // a container that came and went in a gap may have no record
			if len(last.Exits[id]) == 0 && !during(id) {
				return fmt.Errorf("no exit of %.12s has arrived", id)
			}
		}
		return nil
	})

	// Each exit arrives once, or is marked as not observed.
	seen, marked, hidden := 0, 0, 0
	for id, code := range m.codes {
		exits := last.Exits[id]
		switch {
		case len(exits) == 1 && exits[0].Int("process.exit.code") == int64(code) && exits[0].Attributes["process.exit.code"] != "":
			seen++
		case len(exits) == 1 && exits[0].Attributes["accelscope.event.reconciled"] == "true" && during(id):
			marked++
		case len(exits) == 0 && during(id):
			hidden++ // it lived and was removed while no events were sent
		default:
			t.Errorf("%.12s exited with %d; %d exits arrived: %v", id, code, len(exits), attributes(exits))
		}
	}
	t.Logf("%d containers in %v: %d exits arrived once, %d marked as found later, %d in the gap; %d requests died with the runtime: %v",
		total, took.Round(time.Second), seen, marked, hidden, len(m.lost), m.lost)
	t.Logf("%d records said lost, %d missing, %d sent again, %d snapshots", last.Lost, last.Missing, last.Duplicates, last.Snapshots)
	if len(m.codes) < total || seen < total*2/3 {
		t.Errorf("%d of %d containers ended with their exit code, %d exits were seen", len(m.codes), total, seen)
	}
	if last.Lost+last.Missing != 0 {
		t.Errorf("%d events were lost, %d are missing: the queue is long enough for all", last.Lost, last.Missing)
	}
	for _, wrong := range last.Wrong {
		t.Error(wrong)
	}
	opened := slices.Sorted(maps.Keys(last.Opened))
	if !slices.ContainsFunc(opened, func(id string) bool { return last.Opened[id]["rxe0"] }) {
		t.Errorf("no open of rxe0: %v", last.Opened)
	}
	records, err := collector.Records()
	if err != nil {
		t.Fatal(err)
	}
	if node := records[0].Resource["k8s.node.name"]; node != "guest" {
		t.Errorf("the node is %q", node)
	}
	if err := w.sweep(ctx, "default"); err != nil {
		t.Error(err)
	}
	s.stop()
}

func attributes(records []otel.Record) []map[string]string {
	var out []map[string]string
	for _, r := range records {
		out = append(out, r.Attributes)
	}
	return out
}
