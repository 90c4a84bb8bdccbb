// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// nameDelay is how long names may take after a runtime answers again, or after a container starts: far longer than
// needed even on an emulator, and far shorter than the interval at which the sensor lists all containers of a runtime.
const nameDelay = 20 * time.Second

// period is a time range: in which a container was shown under a name, or in which a runtime did not answer.
type period struct{ first, last time.Time }

// nameLog records the names that the sensor showed, and the true names.
type nameLog struct {
	mu      sync.Mutex
	seen    map[string]map[identity]period // by container id
	truth   map[string]owner               // by container id
	down    []period                       // times at which a runtime did not answer
	foreign map[identity]bool              // identities on RDMA metrics that belong to no container
}

func (d *nameLog) expect(o owner) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.truth[o.id] = o
}

func (d *nameLog) record(m metrics) {
	at := time.Now()
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, family := range m {
		if !strings.HasPrefix(name, "container_") && name != "accelscope_workload_info" {
			continue
		}
		for _, x := range family.GetMetric() {
			is := identityOf(x)
			if is.id == "" {
				if strings.HasPrefix(name, "container_rdma_") && is.workload != "" {
					d.foreign[is] = true
				}
				continue
			}
			if d.seen[is.id] == nil {
				d.seen[is.id] = map[identity]period{}
			}
			when, ok := d.seen[is.id][is]
			if !ok {
				when.first = at
			}
			when.last = at
			d.seen[is.id][is] = when
		}
	}
}

// check returns the wrong names, and how many names were correct or taken from the cgroup path.
func (d *nameLog) check() (wrong []string, names, fromPath int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for is := range d.foreign {
		wrong = append(wrong, fmt.Sprintf("RDMA of %+v, which is no container", is))
	}
	for id, shown := range d.seen {
		o, known := d.truth[id]
		proper, ok := shown[o.identity]
		for is, when := range shown {
			switch {
			case known && is == o.identity:
				names++
			case !known && is.namespace == "load" && is.pod != "":
				names++ // of a request whose response was lost with the runtime
			case strings.HasPrefix(is.workload, "pod:") && is.pod+is.namespace+is.container == "",
				known && is == identity{o.namespace + "/" + o.pod + "/" + id[:12], o.namespace, o.pod, "", id},
				strings.HasPrefix(is.workload, "docker:"+id[:12]):
				// A name from the cgroup path: the container just started, or its runtime does not answer.
				fromPath++
				if ok && proper.first.Before(when.last) {
					wrong = append(wrong, fmt.Sprintf("%.12s had the name %+v and lost it for %+v", id, o.identity, is))
				}
				if limit := d.expectedFrom(when.first).Add(nameDelay); known && when.last.After(limit) {
					wrong = append(wrong, fmt.Sprintf("%.12s was %+v for %v", id, is, when.last.Sub(when.first)))
				}
			default:
				wrong = append(wrong, fmt.Sprintf("%.12s was %+v, want %+v", id, is, o.identity))
			}
		}
	}
	return wrong, names, fromPath
}

// expectedFrom returns the time from which names are expected: at, or the end of the outage that includes it.
func (d *nameLog) expectedFrom(at time.Time) time.Time {
	for _, down := range d.down {
		if at.After(down.first.Add(-nameDelay)) && at.Before(down.last) {
			return down.last
		}
	}
	return at
}

// restarts: runtimes are killed and started again while pods are created and removed; scrapes have no wrong name.
func (w *world) restarts(t *testing.T) {
	ctx := t.Context()
	d := &nameLog{
		seen: map[string]map[identity]period{}, truth: map[string]owner{},
		foreign: map[identity]bool{},
	}
	p := w.runPod(t, &guest.Pod{Namespace: "default", Name: "stays"})
	d.expect(owner{identity: identity{workload: "default/stays", namespace: "default", pod: "stays", id: p.ID}})
	var stays []owner
	for i, name := range []string{"one", "two"} {
		o := inPod(p, name, w.run(t, p, w.member(name, i+1)), i+1)
		stays = append(stays, o)
		d.expect(o)
	}
	id := w.runDocker(t, w.flags("stays"), w.verbs(3)...)
	stays = append(stays, owner{identity: identity{workload: "docker:stays", id: id}, qps: 3})
	d.expect(stays[2])
	for i := range stays {
		stays[i].early = true
	}
	s := start(t)
	eventually(t, 15*time.Second, func() error { return named(s.scrape(), stays) })

	// Pods are created and removed, whether or not their runtime answers.
	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	var made atomic.Int64
	load.Go(func() {
		for i := 0; loading.Err() == nil; i++ {
			if err := w.transient(loading, d, i); err == nil {
				made.Add(1)
			} else if loading.Err() == nil {
				time.Sleep(300 * time.Millisecond)
			}
		}
	})
	scrapes := 0
	// during scrapes until f returns.
	during := func(f func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- f() }()
		for next := time.Now(); ; {
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
				return
			default:
			}
			time.Sleep(time.Until(next))
			next = time.Now().Add(time.Duration(size(200, 500)) * time.Millisecond)
			m := s.scrape()
			d.record(m)
			scrapes++
			for _, o := range stays {
				if m.sum("container_rdma_resources", "container_id", o.id, "workload", o.workload, "type", "qp") != o.qps {
					t.Errorf("%s has lost its name or its QPs: %v", o.workload, m.all("container_rdma_resources", "container_id", o.id))
				}
			}
		}
	}
	pause := func(d time.Duration) func() error { return func() error { time.Sleep(d); return nil } }
	// onePod waits until another pod was created and removed.
	onePod := func() error {
		limit := time.Now().Add(2 * time.Minute)
		for before := made.Load(); made.Load() == before; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(limit) {
				return errors.New("no pod was created and removed")
			}
		}
		return nil
	}
	during(onePod)
	for _, crash := range []struct {
		name         string
		crash, start []func() error
	}{
		{
			"containerd",
			[]func() error{w.containerd.Crash},
			[]func() error{func() error { return w.containerd.Start(ctx) }},
		},
		{
			"dockerd and containerd",
			[]func() error{w.docker.Crash, w.containerd.Crash},
			[]func() error{func() error { return w.containerd.Start(ctx) }, func() error { return w.docker.Start(ctx) }},
		},
	} {
		if len(crash.crash) == 1 && !whole() {
			continue // the next crash includes this one
		}
		began := time.Now()
		for _, f := range crash.crash {
			during(f)
		}
		during(pause(2 * time.Second))
		for _, f := range crash.start {
			during(f)
		}
		answers := time.Now()
		d.mu.Lock()
		d.down = append(d.down, period{began, answers})
		d.mu.Unlock()
		// Another container of each runtime, whose name the sensor lacks.
		var more []owner
		during(func() error {
			name := fmt.Sprint("after-", len(d.down))
			id, err := w.cri.Run(ctx, p, w.member(name, 1))
			if err != nil {
				return err
			}
			o := inPod(p, name, id, 1)
			more = append(more, o)
			d.expect(o)
			return nil
		})
		if len(crash.crash) > 1 {
			during(func() error {
				id, err := w.docker.Run(ctx, w.flags("after"), w.verbs(1)...)
				o := owner{identity: identity{workload: "docker:after", id: id}, qps: 1}
				more = append(more, o)
				d.expect(o)
				return err
			})
		}
		took := eventually(t, nameDelay, func() error {
			m := s.scrape()
			d.record(m)
			return named(m, append(slices.Clone(stays), more...))
		})
		t.Logf("%s answers after %v; a container created after that has its name %v later", crash.name,
			answers.Sub(began).Round(time.Millisecond), took.Round(time.Millisecond))
		during(onePod)
	}
	stop()
	load.Wait()
	during(pause(time.Second))
	if _, err := w.docker.Do(ctx, "rm", "-f", "after"); err != nil {
		t.Error(err)
	}
	wrong, names, fromPath := d.check()
	for i, text := range wrong {
		if i == 20 {
			t.Errorf("and %d more", len(wrong)-i)
			break
		}
		t.Error(text)
	}
	t.Logf("%d scrapes; %d names of %d containers, %d names from the cgroup path; %d pods were created and removed",
		scrapes, names, len(d.truth), fromPath, made.Load())
	// A request whose response was lost with the runtime left a pod that the test does not remove.
	if err := w.sweep(ctx, "load"); err != nil {
		t.Error(err)
	}
	s.stop()
}

func (w *world) transient(ctx context.Context, d *nameLog, i int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	p := &guest.Pod{Namespace: "load", Name: fmt.Sprint("load-", i), HostNetwork: true}
	if err := w.cri.RunPod(ctx, p); err != nil {
		return err
	}
	d.expect(owner{identity: identity{workload: "load/" + p.Name, namespace: "load", pod: p.Name, id: p.ID}})
	defer func() { err = errors.Join(err, w.cri.RemovePod(ctx, p)) }()
	id, err := w.cri.Create(ctx, p, w.member("main", 1))
	if err != nil {
		return err
	}
	d.expect(inPod(p, "main", id, 1))
	if err := w.cri.Start(ctx, id); err != nil {
		return err
	}
	time.Sleep(time.Second)
	return nil
}

func (w *world) sweep(ctx context.Context, namespace string) error {
	pods, err := w.cri.Pods(ctx, namespace)
	if err != nil {
		return err
	}
	var all error
	for _, name := range slices.Sorted(maps.Keys(pods)) {
		all = errors.Join(all, w.cri.RemovePod(ctx, &guest.Pod{ID: pods[name]}))
	}
	return all
}
