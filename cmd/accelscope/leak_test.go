// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/machines/containerd"
)

// TestSimulatedDay simulates a day in a few seconds: each minute one container starts and another ends. At the end the sensor
// must hold as much as at the beginning. The containerd is a real one, which is killed and restarted now and then; the
// cgroups are files of a fixture, as no processes run in these containers.
func TestSimulatedDay(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	const (
		minutes = 24 * 60
		alive   = 20 // containers at a time
		morning = 240
		grace   = time.Second
	)
	dir, err := os.MkdirTemp("", "day-") // a short path, because a socket is in it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	m, err := fixtures.Write(filepath.Join(dir, "node"), fixtures.Node())
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := containerd.Start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = daemon.Kill() }()
	url, process, stop := startProcess(t, build(t),
		"--path.sysfs="+m.SysFS(), "--path.procfs="+m.ProcFS(), "--path.cgroup="+m.CgroupFS(), "--path.host="+dir,
		"--runtime.socket=containerd:"+daemon.Socket, "--no-collector.probe", "--no-collector.node", "--grace="+grace.String(),
		// No receiver accepts the events.
		"--events.otlp-endpoint=127.0.0.1:1", "--events.otlp-insecure", "--events.queue-size=64")
	ready(t, url)

	// A running container must also be listed by the REST API.
	first := comes(t, m, daemon, minutes)
	named(t, url, fmt.Sprintf("pod=\"pod-%d\"", minutes))
	if code, _, body := get(t, url+"/pods", ""); code != 200 || !strings.Contains(body, first.ID) ||
		!strings.Contains(body, fmt.Sprintf("\"pod_name\":\"pod-%d\"", minutes)) {
		t.Errorf("/pods: %d %s", code, body)
	}
	goes(t, m, daemon, first)

	var running []fixtures.Container
	var before, after held
	var slowest time.Duration // until a name is shown
	for minute := range minutes {
		c := comes(t, m, daemon, minute)
		if running = append(running, c); len(running) > alive {
			goes(t, m, daemon, running[0])
			running = running[1:]
		}
		switch {
		case minute%180 == 179:
			slowest = max(slowest, named(t, url, fmt.Sprintf("pod=\"pod-%d\"", minute)))
		case minute%360 == 300:
			if err := daemon.Kill(); err != nil {
				t.Fatal(err)
			}
			if daemon, err = containerd.Start(t.Context(), dir); err != nil {
				t.Fatal(err)
			}
		}
		if minute == morning {
			before = rest(t, url, process, 2*grace)
		}
	}
	// On a busy machine it may take longer until ended containers are forgotten; a leak remains.
	for end := time.Now().Add(quickly); ; {
		after = rest(t, url, process, 2*grace)
		if after.goroutines <= before.goroutines+2 && after.descriptors <= before.descriptors+2 &&
			after.series <= before.series+2 && after.heap <= before.heap+2e6 || time.Now().After(end) {
			break
		}
	}
	t.Logf("a name takes up to %v; a scrape is good for 1 s", slowest)
	t.Logf("after %d minutes %+v, after %d minutes %+v", morning, before, minutes, after)
	if after.goroutines > before.goroutines+2 {
		t.Errorf("%v goroutines, were %v", after.goroutines, before.goroutines)
	}
	if after.descriptors > before.descriptors+2 {
		t.Errorf("%v descriptors, were %v", after.descriptors, before.descriptors)
	}
	if after.series > before.series+2 {
		t.Errorf("%v series, were %v", after.series, before.series)
	}
	if after.heap > before.heap+2e6 {
		t.Errorf("%v bytes of heap, were %v", after.heap, before.heap)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// held are the resources that the sensor uses, and the series that it exports.
type held struct{ goroutines, descriptors, heap, series float64 }

// rest returns the resources in use after ended containers should be forgotten: the minimum of several scrapes, after
// several garbage collections.
func rest(t *testing.T, url string, process *os.Process, pause time.Duration) held {
	t.Helper()
	time.Sleep(pause)
	var h held
	for i := range 4 {
		e := scrape(t, url)
		descriptors, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		now := held{
			e.gauge("go_goroutines"), float64(len(descriptors)), e.gauge("go_gc_heap_live_bytes"), float64(strings.Count(e.body, "\n")),
		}
		if i == 0 {
			h = now
		}
		h = held{
			min(h.goroutines, now.goroutines), min(h.descriptors, now.descriptors), min(h.heap, now.heap), min(h.series, now.series),
		}
		time.Sleep(1100 * time.Millisecond)
	}
	return h
}

// named returns how long it takes until a scrape shows a label.
func named(t *testing.T, url, label string) time.Duration {
	t.Helper()
	began := time.Now()
	for !strings.Contains(scrape(t, url).body, label) {
		if time.Since(began) > quickly {
			t.Fatalf("no %s after %v", label, time.Since(began))
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(began)
}

// comes creates container number n in its own pod: in containerd, and as a cgroup.
func comes(t *testing.T, m fixtures.Manifest, daemon *containerd.Daemon, n int) fixtures.Container {
	t.Helper()
	c := fixtures.Container{ID: fmt.Sprintf("%064x", n+1), PodUID: fmt.Sprintf("00000000-0000-4000-8000-%012x", n)}
	c.Cgroup = fmt.Sprintf("/kubepods/burstable/pod%s/%s", c.PodUID, c.ID)
	if err := os.MkdirAll(m.CgroupFS()+c.Cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"cgroup.procs", "cpu.stat", "memory.current", "pids.current"} {
		if err := os.Link(m.CgroupFS()+m.Containers[0].Cgroup+"/"+file, m.CgroupFS()+c.Cgroup+"/"+file); err != nil {
			t.Fatal(err)
		}
	}
	if err := daemon.Create(t.Context(), c.ID, "ml", fmt.Sprintf("pod-%d", n), c.PodUID, "main"); err != nil {
		t.Fatal(err)
	}
	return c
}

func goes(t *testing.T, m fixtures.Manifest, daemon *containerd.Daemon, c fixtures.Container) {
	t.Helper()
	if err := daemon.Delete(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(m.CgroupFS() + c.Cgroup)); err != nil {
		t.Fatal(err)
	}
}
