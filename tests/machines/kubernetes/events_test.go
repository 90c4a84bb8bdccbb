// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/otel"
)

const eventsEndpoint = "127.0.0.1:4317"

// eventsWatch has what happens to the containers of a namespace twice: from the sensor, whose events a real Collector receives, and from
// containerd, whose client prints its events. It learns from the API server which containers are in the namespace.
type eventsWatch struct {
	namespace string
	collector *otel.Collector
	runtime   *daemon

	mu  sync.Mutex
	ids map[string]string // "POD CONTAINER", by container id
}

// watchEvents starts the Collector, before the sensor and the containers.
func watchEvents(t *testing.T, namespace string) *eventsWatch {
	t.Helper()
	collector, err := otel.Start(t.Context(), os.Getenv(eventsVar), otel.Config{Dir: t.TempDir(), Endpoint: eventsEndpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(collector.Stop)
	w := &eventsWatch{namespace: namespace, collector: collector, ids: map[string]string{}}
	w.runtime = running.daemon("ctr", "--namespace=k8s.io", "events")
	if err := w.runtime.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.runtime.stop(syscall.SIGKILL) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			w.look(ctx)
			time.Sleep(200 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// look remembers the containers that the API server lists. A container is listed until the next one of its name ends, which takes
// seconds in a pod that crashes.
func (w *eventsWatch) look(ctx context.Context) {
	pods, err := running.pods(ctx)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range pods {
		if pods[i].Namespace != w.namespace {
			continue
		}
		for _, s := range statuses(&pods[i]) {
			listed := []string{s.ContainerID}
			if last := s.LastTerminationState.Terminated; last != nil {
				listed = append(listed, last.ContainerID)
			}
			for _, id := range listed {
				if _, id, ok := strings.Cut(id, "://"); ok {
					w.ids[id] = pods[i].Name + " " + s.Name
				}
			}
		}
	}
}

// happened returns how often each event was, as "POD CONTAINER ID EVENT", from containerd.
func (w *eventsWatch) happened(context.Context) (map[string]float64, error) {
	text, err := os.ReadFile(w.runtime.log)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		head, body, ok := strings.Cut(line, " {")
		fields := strings.Fields(head)
		if !ok || len(fields) == 0 {
			continue
		}
		var e struct {
			Container string `json:"container_id"`
			ID        string `json:"id"`
			Status    uint32 `json:"exit_status"`
		}
		if err := json.Unmarshal([]byte("{"+body), &e); err != nil {
			continue // the line is being written
		}
		topic, id, event := fields[len(fields)-1], e.Container, ""
		switch topic {
		case "/containers/create":
			id, event = e.ID, "create"
		case "/containers/delete":
			id, event = e.ID, "delete"
		case "/tasks/start":
			event = "start"
		case "/tasks/oom":
			event = "oom"
		case "/tasks/exit":
			if e.ID != "" && e.ID != e.Container { // a process of kubectl exec
				continue
			}
			event = fmt.Sprint("exit ", e.Status)
		default:
			continue
		}
		if name, ok := w.ids[id]; ok {
			out[name+" "+id+" "+event]++
		}
	}
	return out, nil
}

// arrived returns the same from the records that the Collector received.
func (w *eventsWatch) arrived(context.Context) (map[string]float64, error) {
	records, err := w.collector.Records()
	out := map[string]float64{}
	for _, r := range records {
		a := r.Attributes
		event, ok := strings.CutPrefix(r.Event, "container.")
		if !ok || strings.HasPrefix(event, "snapshot") || a["k8s.namespace.name"] != w.namespace || a["k8s.container.name"] == "" {
			continue
		}
		if event == "exit" {
			event += " " + a["process.exit.code"]
		}
		out[strings.Join([]string{a["k8s.pod.name"], a["k8s.container.name"], a["container.id"], event}, " ")]++
	}
	return out, err
}

// once waits until both are the same, with at least the given numbers of events of each pod. Each event must be there once.
func (w *eventsWatch) once(t *testing.T, least map[string]int) {
	t.Helper()
	same(t, "events", func(ctx context.Context) (map[string]float64, error) {
		events, err := w.happened(ctx)
		counts := map[string]int{}
		for key, n := range events {
			f := strings.Fields(key)
			counts[f[0]+" "+strings.Join(f[3:], " ")]++
			if n != 1 && f[3] != "oom" { // the kernel may report several
				err = errors.Join(err, fmt.Errorf("%s: %v times", key, n))
			}
		}
		for event, want := range least {
			if counts[event] < want {
				err = errors.Join(err, fmt.Errorf("%s: %d, want at least %d: %v", event, counts[event], want, counts))
			}
		}
		return events, err
	}, w.arrived)
	records, err := w.collector.Records()
	if err != nil {
		t.Fatal(err)
	}
	if v := otel.Replay(records); v.Missing != 0 || v.Lost != 0 || v.Duplicates != 0 || len(v.Wrong) > 0 {
		t.Errorf("the receiver: missing %d, lost %d, duplicates %d, %q", v.Missing, v.Lost, v.Duplicates, v.Wrong)
	}
}

// exactly waits until each container that the API server has listed has had these events, once each, and no other. It needs no
// client of containerd, which an upgrade disconnects.
func (w *eventsWatch) exactly(t *testing.T, containers int, events ...string) {
	t.Helper()
	same(t, "events "+strings.Join(events, ", "), func(context.Context) (map[string]float64, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		want := map[string]float64{}
		for id, name := range w.ids {
			for _, event := range events {
				want[name+" "+id+" "+event] = 1
			}
		}
		if len(w.ids) != containers {
			return want, fmt.Errorf("%d containers, want %d", len(w.ids), containers)
		}
		return want, nil
	}, func(ctx context.Context) (map[string]float64, error) {
		arrived, err := w.arrived(ctx)
		got := map[string]float64{}
		for key, n := range arrived {
			event, _, _ := strings.Cut(key, " exit ") // without the code
			if event != key {
				event += " exit"
			}
			got[event] += n
		}
		return got, err
	})
}
