// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

type testFeed struct {
	*socketFeed
	clock  time.Time
	events []model.Event
}

func newTestFeed() *testFeed {
	f := &testFeed{clock: epoch}
	r := newRegistry(5*time.Minute, func() time.Time { return f.clock })
	r.watch(func(e model.Event) { f.events = append(f.events, e) })
	f.socketFeed = &socketFeed{registry: r, onSync: func() {}}
	return f
}

// line returns an event in short form: R if reconciled, code and signal.
func line(e model.Event) string {
	s := fmt.Sprintf("%s %s %s", e.Type, e.Container.ID, e.Container.Status)
	if e.ExitCode != nil {
		s += fmt.Sprintf(" code=%d", *e.ExitCode)
	}
	if e.Signal != 0 {
		s += fmt.Sprintf(" signal=%d", e.Signal)
	}
	if e.Container.PID != 0 {
		s += fmt.Sprintf(" pid=%d", e.Container.PID)
	}
	if e.Reconciled {
		s += " R"
	}
	return s
}

func lines(events []model.Event) (out []string) {
	for _, e := range events {
		out = append(out, line(e))
	}
	return out
}

func running(id string, pid, started int) model.Container {
	return model.Container{ID: id, PID: pid, Status: model.ContainerRunning, Started: at(started)}
}

func hasExited(id string, pid, finished int, n uint32) model.Container {
	return model.Container{ID: id, PID: pid, Status: model.ContainerExited, Finished: at(finished), ExitCode: new(n)}
}

func ev(t model.EventType, sec int, c model.Container) model.Event {
	return model.Event{Type: t, Time: at(sec), Container: c, ExitCode: c.ExitCode}
}

func TestRegistryEmits(t *testing.T) {
	sync := func(all ...model.Container) func(*testFeed) {
		return func(f *testFeed) { f.sync(all) }
	}
	event := func(t model.EventType, sec int, c model.Container) func(*testFeed) {
		return func(f *testFeed) { f.event(ev(t, sec, c)) }
	}
	a := model.Container{ID: "a", Status: model.ContainerCreated}
	for _, c := range []struct {
		name string
		do   []func(*testFeed)
		want []string
	}{
		{
			"a life",
			[]func(*testFeed){
				sync(), event("create", 1, a), event("start", 2, running("a", 7, 2)),
				event("pause", 3, a), event("resume", 4, a), event("oom", 5, a),
				event("exit", 6, hasExited("a", 7, 6, 3)), event("delete", 7, a),
			},
			[]string{
				"create a created", "start a running pid=7", "pause a paused pid=7", "resume a running pid=7",
				"oom a running pid=7", "exit a exited code=3", "delete a exited",
			},
		},
		{
			"reported twice",
			[]func(*testFeed){
				event("create", 1, a), event("create", 1, a),
				event("start", 2, running("a", 7, 2)), event("start", 2, running("a", 7, 2)),
				event("pause", 3, a), event("pause", 3, a), event("resume", 3, a), event("resume", 3, a),
				event("exit", 6, hasExited("a", 7, 6, 3)), event("exit", 6, hasExited("a", 7, 6, 3)),
				event("delete", 7, a), event("delete", 7, a), event("exit", 6, hasExited("a", 7, 6, 3)),
			},
			[]string{
				"create a created", "start a running pid=7", "pause a paused pid=7", "resume a running pid=7",
				"exit a exited code=3", "delete a exited",
			},
		},
		{
			"a list without earlier events",
			[]func(*testFeed){sync(running("a", 7, 1), hasExited("b", 8, 2, 9), model.Container{ID: "c", Status: "paused"},
				model.Container{ID: "d", Status: "created"}, model.Container{ID: "e"})},
			[]string{
				"create a created R", "start a running pid=7 R", "create b created R", "exit b exited code=9 R",
				"create c created R", "start c running R", "pause c paused R", "create d created R", "create e created R",
			},
		},
		{
			"the same list again",
			[]func(*testFeed){sync(running("a", 7, 1)), sync(running("a", 7, 1))},
			[]string{"create a created R", "start a running pid=7 R"},
		},
		{
			"exited, deleted and started in a gap",
			[]func(*testFeed){
				sync(running("a", 7, 1), running("b", 8, 1), running("c", 9, 1)),
				sync(hasExited("a", 7, 5, 137), running("c", 10, 6)),
			},
			[]string{
				"create a created R", "start a running pid=7 R", "create b created R", "start b running pid=8 R",
				"create c created R", "start c running pid=9 R",
				"exit b exited R", "delete b exited R", "exit a exited code=137 signal=9 R", "exit c exited R", "start c running pid=10 R",
			},
		},
		{
			"a task that was deleted is a run that ended",
			[]func(*testFeed){sync(running("a", 7, 1)), sync(a)},
			[]string{"create a created R", "start a running pid=7 R", "exit a exited R"},
		},
		{
			"an unknown status changes nothing",
			[]func(*testFeed){sync(running("a", 7, 1)), sync(model.Container{ID: "a"})},
			[]string{"create a created R", "start a running pid=7 R"},
		},
		{
			"events older than the list",
			[]func(*testFeed){
				sync(hasExited("a", 7, 5, 4)),
				event("create", 1, a), event("start", 6, running("a", 7, 6)), event("exit", 5, hasExited("a", 7, 5, 4)),
			},
			[]string{"create a created R", "exit a exited code=4 R"},
		},
		{
			"the end of an earlier run",
			[]func(*testFeed){sync(running("a", 8, 6)), event("exit", 5, hasExited("a", 7, 5, 4))},
			[]string{"create a created R", "start a running pid=8 R"},
		},
		{
			"an end before the time of the start belongs to the same run", // runc reports the start after the process ended
			[]func(*testFeed){event("create", 1, a), event("start", 3, running("a", 7, 3)), event("exit", 2, hasExited("a", 7, 2, 0))},
			[]string{"create a created", "start a running pid=7", "exit a exited code=0"},
		},
		{
			"docker restart",
			[]func(*testFeed){
				event("create", 1, a), event("start", 2, running("a", 7, 2)), event("exit", 3, hasExited("a", 0, 3, 0)),
				event("start", 4, running("a", 9, 4)), event("exit", 5, hasExited("a", 0, 5, 143)),
			},
			[]string{
				"create a created", "start a running pid=7", "exit a exited code=0",
				"start a running pid=9", "exit a exited code=143 signal=15",
			},
		},
		{
			"a start without an end of the run before",
			[]func(*testFeed){event("create", 1, a), event("start", 2, running("a", 7, 2)), event("start", 4, running("a", 9, 4))},
			[]string{"create a created", "start a running pid=7", "exit a exited R", "start a running pid=9"},
		},
		{
			"an event of an unknown container",
			[]func(*testFeed){event("start", 2, running("a", 7, 2))},
			[]string{"create a created R", "start a running pid=7"},
		},
		{
			"a name that is used again",
			[]func(*testFeed){
				sync(model.Container{ID: "a", Status: "running", PID: 7, Created: at(0)}),
				sync(model.Container{ID: "a", Status: "running", PID: 9, Created: at(5)}),
			},
			[]string{
				"create a created R", "start a running pid=7 R", "exit a exited R", "delete a exited R",
				"create a created R", "start a running pid=9 R",
			},
		},
		{
			"health",
			[]func(*testFeed){
				event("start", 2, running("a", 7, 2)), event("health", 3, model.Container{ID: "a", Health: "healthy"}),
				event("health", 4, model.Container{ID: "a", Health: "healthy"}),
			},
			[]string{"create a created R", "start a running pid=7", "health a running pid=7"},
		},
		{
			"a clock that is set back",
			[]func(*testFeed){
				sync(), event("create", 0, a), event("start", 3600, running("a", 7, 3600)), event("exit", 1800, hasExited("a", 0, 1800, 3)),
				event("start", 1810, running("a", 7, 1810)), event("exit", 600, hasExited("a", 7, 600, 5)),
				event("start", 500, running("a", 0, 500)), event("pause", 400, a),
			},
			[]string{
				"create a created", "start a running pid=7", "exit a exited code=3", "start a running pid=7", "exit a exited code=5",
				"start a running", "pause a paused",
			},
		},
		{
			"a clock that is set back after a list",
			[]func(*testFeed){
				sync(running("a", 0, 3600), hasExited("b", 8, 3600, 0)),
				event("exit", 1800, hasExited("a", 0, 1800, 3)), // older than the list, as far as is known
				func(f *testFeed) { f.clock = f.clock.Add(lateEvents) },
				event("exit", 1800, hasExited("a", 0, 1800, 4)), event("start", 1900, running("b", 8, 1900)),
			},
			[]string{
				"create a created R", "start a running R", "create b created R", "exit b exited code=0 R",
				"exit a exited code=4", "start b running pid=8",
			},
		},
		{
			"an event ends the doubt about a list",
			[]func(*testFeed){
				sync(running("a", 0, 30)), event("pause", 10, a), event("pause", 31, a), event("exit", 20, hasExited("a", 0, 20, 4)),
			},
			[]string{"create a created R", "start a running R", "pause a paused", "exit a exited code=4"},
		},
		{"no id", []func(*testFeed){event("start", 2, model.Container{}), sync(model.Container{})}, nil},
		{"an event of no kind", []func(*testFeed){sync(a), event("device_open", 2, a)}, []string{"create a created R"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newTestFeed()
			for _, do := range c.do {
				do(f)
			}
			if d := cmp.Diff(c.want, lines(f.events)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(replay(f.events), byID(f.list())); d != "" {
				t.Errorf("state by the events, known state:\n%s", d)
			}
		})
	}
}

// TestRegistryLearnsCodes reports an exit without its code. A list or an event of the same run adds the code later.
func TestRegistryLearnsCodes(t *testing.T) {
	for name, learn := range map[string]func(*testFeed){
		"a list":             func(f *testFeed) { f.sync([]model.Container{hasExited("a", 0, 5, 42)}) },
		"an event":           func(f *testFeed) { f.event(ev(model.EventExit, 5, hasExited("a", 7, 5, 42))) },
		"of another process": func(f *testFeed) { f.event(ev(model.EventExit, 5, hasExited("a", 6, 5, 42))) },
	} {
		f := newTestFeed()
		f.sync([]model.Container{running("a", 7, 1)})
		f.sync([]model.Container{{ID: "a", Status: model.ContainerCreated}})
		learn(f)
		code := f.containers()[0].ExitCode
		if (code != nil && *code == 42) != (name != "of another process") {
			t.Errorf("%s: code %v", name, code)
		}
		if d := cmp.Diff([]string{"create a created R", "start a running pid=7 R", "exit a exited R"}, lines(f.events)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestRegistryOneOfTwo has two sockets report the same containers. Each event is emitted once, as the first socket
// reports it, until this socket no longer has the container.
func TestRegistryOneOfTwo(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(first, second *socketFeed)
		want []string
	}{
		"the second is silent": {
			func(first, second *socketFeed) {
				for _, f := range []*socketFeed{first, second} {
					f.sync([]model.Container{running("a", 7, 1)})
				}
				for _, f := range []*socketFeed{first, second} {
					f.event(ev(model.EventExit, 2, hasExited("a", 7, 2, 3)))
				}
				for _, f := range []*socketFeed{first, second} {
					f.event(ev(model.EventDelete, 3, model.Container{ID: "a"}))
				}
				for _, f := range []*socketFeed{first, second} {
					f.event(ev(model.EventOOM, 2, model.Container{ID: "a"}))
				}
			},
			[]string{"create a created R", "start a running pid=7 R", "exit a exited code=3", "delete a exited"},
		},
		"the first comes later": {
			func(first, second *socketFeed) {
				second.sync([]model.Container{running("a", 7, 1)})
				first.sync([]model.Container{{ID: "a", Name: "n", Status: model.ContainerPaused, PID: 7}})
				second.event(ev(model.EventExit, 2, hasExited("a", 7, 2, 3)))
				second.sync(nil)
				first.event(ev(model.EventExit, 2, hasExited("a", 7, 2, 4)))
			},
			[]string{"create a created R", "start a running pid=7 R", "pause a paused pid=7 R", "exit a exited code=4"},
		},
		"the second takes over": {
			func(first, second *socketFeed) {
				first.sync([]model.Container{running("a", 7, 1), running("b", 8, 1)})
				second.sync([]model.Container{running("a", 7, 1), running("b", 8, 1)})
				first.sync([]model.Container{running("b", 8, 1)})
				first.event(ev(model.EventDelete, 1, model.Container{ID: "b"}))
				second.event(ev(model.EventExit, 2, hasExited("a", 7, 2, 3)))
				second.event(ev(model.EventPause, 2, model.Container{ID: "b"}))
			},
			[]string{
				"create a created R", "start a running pid=7 R", "create b created R", "start b running pid=8 R",
				"exit a exited code=3", "pause b paused pid=8",
			},
		},
		"a name that is used again": {
			func(first, second *socketFeed) {
				first.sync([]model.Container{{ID: "a", Created: at(1)}})
				second.sync([]model.Container{{ID: "a", Created: at(1)}})
				first.sync([]model.Container{{ID: "a", Created: at(9)}})
				first.sync(nil)
			},
			[]string{"create a created R", "delete a created R", "create a created R"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTestFeed()
			c.do(f.socketFeed, &socketFeed{registry: f.registry, socket: 1, onSync: func() {}})
			if d := cmp.Diff(c.want, lines(f.events)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(replay(f.events), byID(f.list())); d != "" {
				t.Errorf("state by the events, known state:\n%s", d)
			}
			if n := len(f.list()); n != len(byID(f.list())) {
				t.Errorf("%d containers in a snapshot", n)
			}
		})
	}
}

// replay returns the state that follows from the events alone.
func replay(events []model.Event) map[string]model.Container {
	known := map[string]model.Container{}
	for _, e := range events {
		if e.Type == model.EventDelete {
			delete(known, e.Container.ID)
			continue
		}
		known[e.Container.ID] = e.Container
	}
	return known
}

func byID(all []model.Container) map[string]model.Container {
	m := map[string]model.Container{}
	for _, c := range all {
		m[c.ID] = c
	}
	return m
}

// world is the true state of a runtime.
type world struct {
	*rand.Rand
	clock      int
	containers map[string]*model.Container
	// pids means that lists and events contain processes, as containerd's do; otherwise they contain times, as Docker's
	// do.
	pids bool
	pid  int
}

func (w *world) step() model.Event {
	w.clock += 2
	id := string(rune('a' + w.IntN(6)))
	c := w.containers[id]
	var typ model.EventType
	switch {
	case c == nil:
		typ = model.EventCreate
		c = &model.Container{ID: id, Name: "name-" + id, Status: model.ContainerCreated, Created: at(w.clock)}
		w.containers[id] = c
	case c.Status == model.ContainerRunning:
		switch w.IntN(5) {
		case 0:
			typ, c.Status = model.EventPause, model.ContainerPaused
		case 1:
			typ = model.EventOOM
		default:
			w.exit(c)
			typ = model.EventExit
		}
	case c.Status == model.ContainerPaused && w.IntN(2) == 0:
		typ, c.Status = model.EventResume, model.ContainerRunning
	case c.Status == model.ContainerPaused:
		w.exit(c)
		typ = model.EventExit
	case w.IntN(3) == 0:
		typ = model.EventDelete
		delete(w.containers, id)
	default:
		w.pid++
		typ, c.Status, c.PID, c.Started = model.EventStart, model.ContainerRunning, w.pid, at(w.clock)
		c.Finished, c.ExitCode = time.Time{}, nil
	}
	e := model.Event{Type: typ, Time: at(w.clock), Container: *c}
	if !w.pids {
		e.Container.PID = 0
	}
	if typ == model.EventExit {
		e.ExitCode = c.ExitCode
	}
	return e
}

func (w *world) exit(c *model.Container) {
	c.Status, c.Finished, c.ExitCode = model.ContainerExited, at(w.clock), new(uint32(w.clock))
}

// list returns a list that is made while the world changes: each container is read at another time. It also returns the
// events meanwhile.
func (w *world) list() (all []model.Container, meanwhile []model.Event) {
	for _, id := range slices.Sorted(maps.Keys(w.containers)) {
		for w.IntN(3) == 0 {
			meanwhile = append(meanwhile, w.step())
		}
		if c := w.containers[id]; c != nil {
			listed := *c
			if w.pids {
				listed.Started = time.Time{}
			} else {
				listed.PID = 0
			}
			all = append(all, listed)
		}
	}
	return all, meanwhile
}

// TestRegistryIsTrue drives a runtime at random, with broken connections, slow lists and events that arrive after newer
// lists. The known state always equals the state by the events. After each list and the events queued behind it, it
// also equals the true state.
func TestRegistryIsTrue(t *testing.T) {
	for seed := range uint64(150) {
		w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), containers: map[string]*model.Container{}, pids: seed%2 == 0}
		f := newTestFeed()
		connected := false
		for range 60 {
			switch w.IntN(12) {
			case 0:
				connected = false
			case 1, 2:
				all, meanwhile := w.list()
				f.clock = at(w.clock)
				f.sync(all)
				for _, e := range meanwhile {
					f.event(e)
				}
				connected = true
			default:
				e := w.step()
				f.clock = at(w.clock)
				if connected {
					f.event(e)
				}
			}
			known := byID(f.list())
			if replayed := replay(f.events); !reflect.DeepEqual(replayed, known) {
				t.Fatalf("seed %d: state by the events, known state:\n%s", seed, cmp.Diff(replayed, known))
			}
			if !connected {
				continue
			}
			if truth, known := states(w.containers), states(pointers(known)); !maps.Equal(truth, known) {
				t.Fatalf("seed %d: true state, known state:\n%s\n%s", seed, cmp.Diff(truth, known),
					strings.Join(lines(f.events), "\n"))
			}
		}
		if err := grammar(f.events); err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, strings.Join(lines(f.events), "\n"))
		}
	}
}

func pointers(m map[string]model.Container) map[string]*model.Container {
	out := map[string]*model.Container{}
	for id, c := range m {
		out[id] = &c
	}
	return out
}

// states returns the part of the state that must be right: if the event of an exit is lost, the code is unknown.
func states(m map[string]*model.Container) map[string]string {
	out := map[string]string{}
	for id, c := range m {
		out[id] = fmt.Sprintf("%s %s", c.Status, c.Name)
	}
	return out
}

// grammar checks a stream of events: everything begins with a create, and a run has one start and one exit.
func grammar(events []model.Event) error {
	status := map[string]model.EventType{}
	for i, e := range events {
		was := status[e.Container.ID]
		var ok bool
		switch e.Type {
		case model.EventCreate:
			ok = was == ""
		case model.EventStart:
			ok = was == model.EventCreate || was == model.EventExit
		case model.EventExit: // a container that was found exited has no start
			ok = was == model.EventStart || was == model.EventCreate
		case model.EventDelete:
			ok = was == model.EventCreate || was == model.EventExit
		default:
			ok = was != ""
		}
		if !ok {
			return fmt.Errorf("event %d, %s, after %q", i, line(e), was)
		}
		switch e.Type {
		case model.EventCreate, model.EventStart, model.EventExit:
			status[e.Container.ID] = e.Type
		case model.EventDelete:
			delete(status, e.Container.ID)
		}
	}
	return nil
}

func TestRegistryKeepsNamesOfRemoved(t *testing.T) {
	f := newTestFeed()
	if f.containers() != nil {
		t.Error("containers are returned before any list")
	}
	f.sync([]model.Container{running("a", 7, 0)})
	f.event(ev(model.EventDelete, 1, model.Container{ID: "a"}))
	f.clock = at(299)
	got := f.containers()
	if len(got) != 1 || got[0].ID != "a" || got[0].Status != model.ContainerExited || len(f.list()) != 0 {
		t.Errorf("returned %v, exist %v", got, f.list())
	}
	if again := f.containers(); &again[0] != &got[0] {
		t.Error("the list was rebuilt without need")
	}
	f.clock = at(301)
	if got := f.containers(); got == nil || len(got) != 0 {
		t.Errorf("after the grace time %v", got)
	}
	f.event(ev(model.EventDelete, 1, model.Container{ID: "a"}))
	f.event(ev(model.EventCreate, 302, model.Container{ID: "a"}))
	if got := f.containers(); len(got) != 1 {
		t.Errorf("a container that was created again is returned %d times", len(got))
	}
}

// TestLabel: the labels of a container are known from its creation on. Docker lacks the pod's labels.
func TestLabel(t *testing.T) {
	f := newTestFeed()
	want := func(when, container, value string, known bool) {
		t.Helper()
		if v, k := f.label(container, "probe"); v != value || k != known {
			t.Errorf("%s: label %q, known %v", when, v, k)
		}
	}
	want("not listed", "a", "", false)
	f.event(ev(model.EventCreate, 1, model.Container{ID: "a", Labels: map[string]string{"probe": "off"}}))
	f.event(ev(model.EventCreate, 1, model.Container{ID: "b"}))
	f.event(ev(model.EventCreate, 1, model.Container{ID: "c", Runtime: model.RuntimeDocker, PodUID: "1"}))
	want("created", "a", "off", true)
	want("without a label", "b", "", true)
	want("of cri-dockerd", "c", "", false)
}

func TestRegistryIsBounded(t *testing.T) {
	f := newTestFeed()
	all := make([]model.Container, maxContainers+3)
	for i := range all {
		all[i] = model.Container{ID: fmt.Sprint(i), Name: strings.Repeat("ü", maxString), Status: model.ContainerRunning}
	}
	f.sync(all)
	if n, lost := len(f.list()), f.losses()[0]; n != maxContainers || lost.Count != 3 || lost.Reason != "containers_full" {
		t.Errorf("%d containers, lost %v", n, lost)
	}
	f.sync(nil)
	if n := len(f.containers()); n != maxRemoved {
		t.Errorf("%d removed containers are kept", n)
	}
}

func TestBound(t *testing.T) {
	c := model.Container{
		Name: "a\x00b\xff\n" + strings.Repeat("é", 300), PID: -4, Image: strings.Repeat("x", 10000),
		Labels: map[string]string{"k": strings.Repeat("v", 100000)}, Devices: make([]string, 5000),
		Cgroup: "/" + strings.Repeat("c", 5000),
	}
	for i := range 1000 {
		c.Labels[fmt.Sprint("l", i)] = ""
	}
	c.Labels["a"] = "two\nlines\t\xff"
	bound(&c)
	if got := c.Labels["a"]; got != "two\nlines\t?" {
		t.Errorf("label %q", got)
	}
	if !strings.HasPrefix(c.Name, "a?b??é") || len(c.Name) > maxString || strings.ToValidUTF8(c.Name, "") != c.Name {
		t.Errorf("name %q", c.Name)
	}
	if c.PID != 0 || len(c.Image) != maxImage || len(c.Labels) != maxLabels || len(c.Labels["k"]) != maxString || len(c.Devices) != maxDevices {
		t.Errorf("%d, image %d, labels %d, value %d, devices %d", c.PID, len(c.Image), len(c.Labels), len(c.Labels["k"]), len(c.Devices))
	}
	if len(c.Cgroup) != maxPath {
		t.Errorf("a path of %d bytes", len(c.Cgroup))
	}
}

// TestNamedContainerBelowAnother: containerd's own clients give containers any names. The path, which events lack,
// shows whether a container has its own cgroup.
func TestNamedContainerBelowAnother(t *testing.T) {
	f := newTestFeed()
	f.cgroupOf = func(pid int, _, path string) (string, bool) {
		if pid != 0 {
			t.Error("a cgroup that has the name of the container only may be that of another one")
		}
		return path, !strings.HasPrefix(path, "/job")
	}
	for path, want := range map[string]bool{"/job/web": true, "/default/web": false} {
		c := running("web", 7, 1)
		c.Cgroup = path
		f.sync([]model.Container{c})
		f.event(ev(model.EventStart, 2, running("web", 8, 2)))
		f.snapshot(func(list []model.Container) {
			if len(list) != 1 || list[0].Cgroup != path || list[0].NoCgroup != want {
				t.Errorf("%s: %+v", path, list)
			}
		})
	}
}
