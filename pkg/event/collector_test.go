// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/machines/otel"
)

// The tests in this file send to a real OpenTelemetry Collector.

func TestSnapshotThenStream(t *testing.T) {
	t.Parallel()
	w := newWorld(3)
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	e := open(t, w, defaults, Options{Endpoint: config.Endpoint, Insecure: true})
	before := time.Now()
	id := w.create()
	w.change(id, model.EventPause, model.ContainerPaused)
	w.change(id, model.EventResume, model.ContainerRunning)
	w.exit(id, 137)
	var all []otel.Record
	within(t, waitLimit, func() string {
		all = records(t, c)
		return map[bool]string{false: fmt.Sprintf("%d records", len(all))}[len(all) == 10]
	})
	var names []string
	for _, r := range all {
		names = append(names, r.Event)
	}
	want := "[container.snapshot.begin container.snapshot container.snapshot container.snapshot container.snapshot.end " +
		"container.create container.start container.pause container.resume container.exit]"
	if fmt.Sprint(names) != want {
		t.Errorf("got %v", names)
	}
	if v := otel.Replay(all); len(v.Wrong) > 0 || v.Snapshots != 1 || v.Missing != 0 || w.differs(v) != "" {
		t.Errorf("%v, %d snapshots, %d missing; %s", v.Wrong, v.Snapshots, v.Missing, w.differs(v))
	}
	last := all[9]
	for name, want := range map[string]string{
		"container.id": id, "container.name": "worker", "container.image.name": "registry/train:1",
		"container.runtime.name": "containerd", "k8s.namespace.name": "train", "k8s.pod.name": "job-4",
		"k8s.pod.uid": "uid-4", "k8s.container.name": "worker", "accelscope.workload": "train/job-4/worker",
		"process.exit.code": "137", "accelscope.event.sequence": "10",
	} {
		if got := last.Attributes[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"service.name": "accelscope", "service.version": "1.2.3", "host.name": "node-1", "k8s.node.name": "node-1",
		"host.ip": `["10.0.0.1"]`,
	} {
		if got := last.Resource[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if last.Severity != "Warn" || all[5].Severity != "Info" {
		t.Errorf("severities %s and %s", last.Severity, all[5].Severity)
	}
	if last.Body != "container train/job-4/worker exited with code 137" {
		t.Errorf("body %q", last.Body)
	}
	for _, at := range []time.Time{last.Time, last.Observed} {
		if at.Before(before.Add(-time.Millisecond)) || at.After(time.Now()) {
			t.Errorf("time %v", at)
		}
	}
	within(t, waitLimit, allTaken(e))
	if s := e.Stats(); !s.Connected || s.Sent != 10 || s.Queued != 0 || s.Resent != 0 {
		t.Errorf("%+v", s)
	}
}

func TestOOMAndHealthRecords(t *testing.T) {
	t.Parallel()
	w := newWorld(0)
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	open(t, w, defaults, Options{Endpoint: config.Endpoint, Insecure: true})
	id := w.create()
	w.mu.Lock()
	sick, killed := w.live[id], uint32(137)
	sick.Health = "unhealthy"
	w.emit(model.Event{Type: model.EventHealth, Container: sick})
	w.emit(model.Event{Type: model.EventOOM, Container: sick})
	sick.Status, sick.ExitCode, sick.Health = model.ContainerExited, &killed, ""
	w.emit(model.Event{Type: model.EventExit, Container: sick, ExitCode: &killed, Signal: 9})
	w.mu.Unlock()
	var all []otel.Record
	within(t, waitLimit, func() string {
		all = records(t, c)
		return map[bool]string{false: fmt.Sprintf("%d records", len(all))}[len(all) == 7]
	})
	for i, want := range []struct{ event, severity, body, attribute, value string }{
		{"container.health", "Info", "container train/job-1/worker is unhealthy", "accelscope.container.health", "unhealthy"},
		{"container.oom", "Warn", "container train/job-1/worker ran out of memory", "container.id", id},
		{
			"container.exit", "Warn", "container train/job-1/worker was ended by signal 9 (killed)",
			"accelscope.exit.signal", "9",
		},
	} {
		r := all[4+i]
		if r.Event != want.event || r.Severity != want.severity || r.Body != want.body || r.Attributes[want.attribute] != want.value {
			t.Errorf("%s %s %q %v, want %+v", r.Event, r.Severity, r.Body, r.Attributes, want)
		}
	}
}

// TestReady checks that no record is sent before the runtimes were listed, and that the first snapshot is correct: a
// container that ended earlier has no exit event.
func TestReady(t *testing.T) {
	t.Parallel()
	w, ready := newWorld(0), make(chan struct{})
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	e := begun(t, w, defaults, Options{Endpoint: config.Endpoint, Insecure: true, Ready: ready})
	w.create()
	w.exit(w.create(), 3)
	time.Sleep(300 * time.Millisecond)
	if all := records(t, c); started(e) || len(all) > 0 {
		t.Errorf("started %v, %d records before the containers are known", started(e), len(all))
	}
	close(ready)
	var all []otel.Record
	within(t, waitLimit, func() string {
		all = records(t, c)
		return map[bool]string{false: fmt.Sprintf("%d records", len(all))}[len(all) == 4]
	})
	v := otel.Replay(all)
	ended := v.Containers[fmt.Sprintf("%064x", 2)].Attributes
	if w.differs(v) != "" || v.Snapshots != 1 || len(v.Exits) > 0 || ended["process.exit.code"] != "3" {
		t.Errorf("%s; %d snapshots, exits %v; %v", w.differs(v), v.Snapshots, v.Exits, ended)
	}
	w.exit(w.create(), 4)
	within(t, waitLimit, func() string { return w.differs(otel.Replay(records(t, c))) })
	if all = records(t, c); len(all) != 7 || all[6].Event != "container.exit" {
		t.Errorf("%d records, the last one %s", len(all), all[len(all)-1].Event)
	}
}

// TestOutage stops and restarts the collector while containers come and go.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(700) // more than one batch
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	e := open(t, w, prompt, Options{Endpoint: config.Endpoint, Insecure: true})
	r := rand.New(rand.NewPCG(1, 2))
	slowly := func(n int) {
		for range n {
			w.churn(r, 5)
			time.Sleep(5 * time.Millisecond)
		}
	}
	slowly(40)
	c.Kill()
	slowly(300)
	within(t, waitLimit, func() string {
		if _, err := e.Read(t.Context()); err == nil || e.Stats().Connected {
			return fmt.Sprintf("connected %v, error %v while the collector is away", e.Stats().Connected, err)
		}
		return ""
	})
	c = collector(t, config)
	back := time.Now()
	slowly(40)
	within(t, waitLimit, func() string { return w.differs(otel.Replay(records(t, c))) })
	t.Logf("right %v after the return", time.Since(back).Round(time.Millisecond))
	within(t, waitLimit, allTaken(e)) // a short-lived container since then makes no difference
	v := otel.Replay(records(t, c))
	w.checkExits(t, v)
	if v.Lost != 0 || v.Missing != 0 {
		t.Errorf("lost %d, missing %d, and the queue had room", v.Lost, v.Missing)
	}
	if _, err := e.Read(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOverflow has more events during the outage than the queue holds.
func TestOverflow(t *testing.T) {
	t.Parallel()
	w := newWorld(10)
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	e := open(t, w, prompt, Options{Endpoint: config.Endpoint, Insecure: true, QueueSize: 64})
	within(t, waitLimit, func() string { return w.differs(otel.Replay(records(t, c))) })
	c.Kill()
	w.churn(rand.New(rand.NewPCG(3, 4)), 1000)
	if s := e.Stats(); s.Queued > 64 || dropped(s, lostOverflow) == 0 {
		t.Errorf("%+v", s)
	}
	c = collector(t, config)
	back := time.Now()
	within(t, waitLimit, func() string { return w.differs(otel.Replay(records(t, c))) })
	t.Logf("right %v after the return", time.Since(back).Round(time.Millisecond))
	within(t, waitLimit, allTaken(e))
	v := otel.Replay(records(t, c))
	w.checkExits(t, v)
	if lost := dropped(e.Stats(), lostOverflow); lost == 0 || uint64(v.Lost) != lost || v.Missing != v.Lost {
		t.Errorf("the snapshot reports %d lost, %d numbers are missing, %d were dropped", v.Lost, v.Missing, lost)
	}
}

// TestHang stops and continues the collector's process: records that it already received arrive again, also after the
// export timed out.
func TestHang(t *testing.T) {
	t.Parallel()
	w := newWorld(10)
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	timing := prompt
	timing.export = 500 * time.Millisecond
	e := open(t, w, timing, Options{Endpoint: config.Endpoint, Insecure: true})
	within(t, waitLimit, func() string { return w.differs(otel.Replay(records(t, c))) })
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(11, 12))
	for range 100 {
		w.churn(r, 2)
		time.Sleep(15 * time.Millisecond)
	}
	within(t, waitLimit, func() string {
		if _, err := e.Read(t.Context()); err == nil || !strings.Contains(err.Error(), "does not answer") {
			return fmt.Sprintf("error %v while the collector hangs", err)
		}
		return ""
	})
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	within(t, waitLimit, func() string { return w.differs(otel.Replay(records(t, c))) })
	within(t, waitLimit, allTaken(e)) // a short-lived container since then makes no difference
	v := otel.Replay(records(t, c))
	w.checkExits(t, v)
	if v.Lost != 0 || v.Missing != 0 {
		t.Errorf("lost %d, missing %d", v.Lost, v.Missing)
	}
	t.Logf("%d duplicates", v.Duplicates)
}

func dropped(s *model.EventStats, reason string) uint64 {
	for _, l := range s.Dropped {
		if l.Reason == reason {
			return l.Count
		}
	}
	return 0
}

// TestOrderUnderLoad runs 5,000 events through one connection.
func TestOrderUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(0)
	config := otel.Config{Dir: t.TempDir(), Endpoint: freePort(t)}
	c := collector(t, config)
	e := open(t, w, defaults, Options{Endpoint: config.Endpoint, Insecure: true})
	const containers = 1250 // of four events each
	for range containers {
		id := w.create()
		w.exit(id, 0)
		w.remove(id)
	}
	within(t, waitLimit, allTaken(e))
	all := records(t, c)
	if len(all) != 2+4*containers {
		t.Errorf("%d records", len(all))
	}
	steps := []string{"container.create", "container.start", "container.exit", "container.delete"}
	at := map[string]int{}
	for _, r := range all[2:] {
		id := r.Attributes["container.id"]
		if r.Event != steps[at[id]] {
			t.Fatalf("%s as number %d of container %s", r.Event, at[id], id)
		}
		at[id]++
	}
	if v := otel.Replay(all); len(v.Wrong) > 0 || v.Missing != 0 || len(v.Containers) != 0 {
		t.Errorf("%v, %d missing, %d containers", v.Wrong, v.Missing, len(v.Containers))
	}
}
