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

	"github.com/accelscope/accelscope/tests/machines/otel"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// churnVar is the number of containers that live and die during the test of events; 40 if unset.
const churnVar = "ACCELSCOPE_CHURN"

// reconciled is how long a receiver's state may be wrong after a gap. An emulator may take a multiple of it.
const (
	reconciled = 10 * time.Second
	slowly     = 3
)

// churn runs short-lived containers, each with an exit code, a few pods at a time.
type churn struct {
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
	lost  []error                 // of repeated requests, such as requests at which the runtime was killed
}

func (c *churn) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var workers sync.WaitGroup
	for _, p := range c.pods {
		for range 2 {
			workers.Go(func() {
				for i := c.next.Add(1); i <= int64(c.total); i = c.next.Add(1) {
					end := time.Now().Add(2 * time.Minute)
					for try := 0; ctx.Err() == nil; try++ {
						c.gate.RLock()
						err := c.runContainer(ctx, p, int(i), try)
						c.gate.RUnlock()
						if err == nil {
							break
						}
						c.mu.Lock()
						c.lost = append(c.lost, err)
						c.mu.Unlock()
						if time.Now().After(end) {
							stop() // missing containers fail the test
						}
						time.Sleep(300 * time.Millisecond)
					}
					c.done.Add(1)
				}
			})
		}
	}
	workers.Wait()
}

// runContainer runs a container and removes it, except every third. Some live long enough to outlive a kill of their
// runtime.
func (c *churn) runContainer(ctx context.Context, p *guest.Pod, i, try int) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	begin := time.Now()
	code := uint32(i%100 + 1)
	script := fmt.Sprint("exit ", code)
	if i >= c.slow && i < c.slow+4 {
		script = "sleep 3; " + script
	}
	id, err := c.w.cri.Run(ctx, p, guest.PodMember{
		Name: fmt.Sprint("short-", i), Restarts: uint32(try), Command: []string{"/bin/sh", "-c", script},
	})
	if err != nil {
		return err
	}
	// The runtime may be down for a moment, but keeps its state.
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		var got uint32
		if got, err = c.w.cri.Wait(ctx, id); err == nil {
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
		err = c.w.cri.Remove(ctx, id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.codes[id], c.lives[id] = code, [2]time.Time{begin, time.Now()}
	return err
}

func (c *churn) waitEnded(t *testing.T, count int) {
	t.Helper()
	for c.done.Load() < int64(count) {
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

// events: the records that a real OpenTelemetry Collector receives match the facts, also across the gaps when the
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
	c := &churn{w: w, total: total, slow: total*2/3 - 1, codes: map[string]uint32{}, lives: map[string][2]time.Time{}}
	for _, name := range []string{"churn-0", "churn-1"} {
		c.pods = append(c.pods, w.runPod(t, &guest.Pod{Namespace: "default", Name: name, HostNetwork: true}))
	}
	w.run(t, c.pods[0], w.member("device", 1))
	var last *otel.View
	checkState := func() error {
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
	eventually(t, 20*time.Second, checkState)

	churning, stop := context.WithCancel(ctx)
	defer stop()
	var churnDone sync.WaitGroup
	begin := time.Now()
	churnDone.Go(func() { c.run(churning) })
	checkAfter := func(restarted string, restart func() time.Time) {
		t.Helper()
		c.gate.Lock()
		defer c.gate.Unlock()
		answered, waited := restart(), time.Now()
		eventually(t, slowly*reconciled, checkState)
		t.Logf("%s: state correct %v after it answered, %v after the last change", restarted,
			time.Since(answered).Round(time.Millisecond), time.Since(waited).Round(time.Millisecond))
	}

	c.waitEnded(t, total/6)
	collector.Kill()
	time.Sleep(20 * time.Second)
	checkAfter("Collector", func() time.Time {
		if collector, err = otel.Start(ctx, os.Getenv(otelcolVar), config); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	})

	c.waitEnded(t, total*2/3)
	down := time.Now()
	if err := w.containerd.Crash(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	if err := w.containerd.Start(ctx); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	checkAfter("containerd", func() time.Time { return up })

	churnDone.Wait()
	took := time.Since(begin)
	// during reports whether a container may have lived while no events were sent.
	during := func(id string) bool {
		return c.lives[id][0].Before(up.Add(reconciled)) && c.lives[id][1].After(down)
	}
	eventually(t, slowly*reconciled, func() error {
		if err := checkState(); err != nil {
			return err
		}
		for id := range c.codes { // a container that came and went in a gap may have no record
			if len(last.Exits[id]) == 0 && !during(id) {
				return fmt.Errorf("no exit of %.12s has arrived", id)
			}
		}
		return nil
	})

	// Each exit arrives once, or is marked as not observed.
	seen, marked, hidden := 0, 0, 0
	for id, code := range c.codes {
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
	t.Logf("%d containers in %v: %d exits arrived once, %d marked as found later, %d in the gap; %d requests failed with the runtime: %v",
		total, took.Round(time.Second), seen, marked, hidden, len(c.lost), c.lost)
	t.Logf("%d records reported lost, %d missing, %d sent again, %d snapshots", last.Lost, last.Missing, last.Duplicates, last.Snapshots)
	if len(c.codes) < total || seen < total*2/3 {
		t.Errorf("%d of %d containers ended with their exit code, %d exits were seen", len(c.codes), total, seen)
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
