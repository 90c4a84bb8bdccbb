// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/api/types/network"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// fakeEngine answers with the types of the Docker Engine API, for failures that a real engine cannot be made to have.
type fakeEngine struct {
	socket string
	api    string // the highest supported version
	server *httptest.Server
	over   chan struct{}

	mu         sync.Mutex
	containers map[string]*container.InspectResponse
	calls      map[string]int
	filters    string
	streams    []chan string
	// handle answers instead of the engine if it is set and returns true.
	handle func(w http.ResponseWriter, r *http.Request) bool
}

var versioned = regexp.MustCompile(`^/v(1\.\d+)(/.*)`)

func newFakeEngine(t *testing.T) *fakeEngine {
	t.Helper()
	dir, err := os.MkdirTemp("", "f")
	if err != nil {
		t.Fatal(err)
	}
	e := &fakeEngine{
		socket: filepath.Join(dir, "s"), api: "1.41", over: make(chan struct{}),
		containers: map[string]*container.InspectResponse{}, calls: map[string]int{},
	}
	l, err := net.Listen("unix", e.socket)
	if err != nil {
		t.Fatal(err)
	}
	e.server = httptest.NewUnstartedServer(e)
	e.server.Listener.Close()
	e.server.Listener = l
	e.server.Start()
	t.Cleanup(func() {
		close(e.over)
		e.server.CloseClientConnections()
		e.server.Close()
		os.RemoveAll(dir)
	})
	return e
}

func (e *fakeEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if m := versioned.FindStringSubmatch(path); m != nil {
		path = m[2]
	}
	e.mu.Lock()
	e.calls[path]++
	handle := e.handle
	e.mu.Unlock()
	r.URL.Path = path
	w.Header().Set("Api-Version", e.api)
	if handle != nil && handle(w, r) {
		return
	}
	id, inspect := strings.CutSuffix(strings.TrimPrefix(path, "/containers/"), "/json")
	switch {
	case path == "/_ping":
	case path == "/events":
		stream := make(chan string, 100)
		e.mu.Lock()
		e.filters = r.URL.Query().Get("filters")
		e.streams = append(e.streams, stream)
		e.mu.Unlock()
		w.(http.Flusher).Flush()
		for {
			select {
			case s, ok := <-stream:
				if !ok {
					return
				}
				io.WriteString(w, s)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	case path == "/containers/json":
		e.mu.Lock()
		defer e.mu.Unlock()
		all := make([]container.Summary, 0, len(e.containers))
		for _, id := range slices.Sorted(maps.Keys(e.containers)) {
			c := e.containers[id]
			all = append(all, container.Summary{
				ID: c.ID, Names: []string{"/other/alias", c.Name}, Image: "img", ImageID: "sha256:1",
				Created: 1700000000, State: c.State.Status, Labels: c.Config.Labels,
			})
		}
		json.NewEncoder(w).Encode(all)
	case inspect:
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.containers[id] == nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"message":"No such container: `+id+`"}`)
			return
		}
		json.NewEncoder(w).Encode(e.containers[id])
	default:
		http.NotFound(w, r)
	}
}

func (e *fakeEngine) intercept(f func(w http.ResponseWriter, r *http.Request) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.handle = f
}

func hang(_ http.ResponseWriter, r *http.Request) bool {
	<-r.Context().Done()
	return true
}

func (e *fakeEngine) count(path string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for p, c := range e.calls {
		if strings.HasPrefix(p, path) {
			n += c
		}
	}
	return n
}

func (e *fakeEngine) stream() chan string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.streams) == 0 {
		return nil
	}
	return e.streams[len(e.streams)-1]
}

func (e *fakeEngine) send(action, id string, at time.Time, attributes ...string) {
	m := events.Message{
		Type: "container", Action: events.Action(action), Time: at.Unix(), TimeNano: at.UnixNano(),
		Actor: events.Actor{ID: id, Attributes: map[string]string{"image": "img", "name": "c" + id[60:]}},
	}
	for i := 0; i < len(attributes); i += 2 {
		m.Actor.Attributes[attributes[i]] = attributes[i+1]
	}
	b, _ := json.Marshal(m)
	select {
	case e.stream() <- string(b) + "\n":
	case <-e.over:
	}
}

func (e *fakeEngine) put(n int, status container.ContainerState, started, finished time.Time, change ...func(*container.InspectResponse)) string {
	id := fmt.Sprintf("%064d", n)
	c := &container.InspectResponse{
		ID: id, Name: "/c" + id[60:], Image: "sha256:1", Created: "2026-01-01T00:00:00.5Z",
		State: &container.State{
			Status: status, Running: status == "running", Pid: n + 1000,
			StartedAt: started.Format(time.RFC3339Nano), FinishedAt: finished.Format(time.RFC3339Nano),
		},
		Config: &container.Config{Image: "img"}, HostConfig: &container.HostConfig{},
		NetworkSettings: &container.NetworkSettings{Networks: map[string]*network.EndpointSettings{}},
	}
	if status != "running" {
		c.State.Pid = 0
	}
	for _, f := range change {
		f(c)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.containers[id] = c
	return id
}

func (e *fakeEngine) drop(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.containers, id)
}

type driver func(ctx context.Context, f feed) error

func (e *fakeEngine) driver(deadline time.Duration) driver {
	return func(ctx context.Context, f feed) error { return withDeadline(f, deadline).follow(ctx, e.socket) }
}

func withDeadline(f feed, deadline time.Duration) *dockerEngine {
	return &dockerEngine{
		feed: f, runtime: "docker", labels: []string{"app"},
		deadline: deadline, ping: 100 * time.Millisecond, again: time.Hour,
	}
}

func (e *fakeEngine) try(t *testing.T, f feed, deadline time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := e.driver(deadline)(ctx, f)
	if ctx.Err() != nil || err == nil {
		t.Fatalf("the driver did not fail: %v", err)
	}
	return err
}

type nothing struct{}

func (nothing) sync([]model.Container) {}
func (nothing) event(model.Event)      {}
func (nothing) knows(string) bool      { return false }

// TestDockerOrder inspects containers in a newer state than the received events.
func TestDockerOrder(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t)
	t0 := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	at := func(s int) time.Time { return t0.Add(time.Duration(s) * time.Second) }
	id := e.put(1, "running", at(30), at(20)) // its third run
	f := follow(t, e.driver(10*time.Second))
	f.lived(id, "create reconciled", "start reconciled")

	e.send("die", id, at(10), "exitCode", "1") // of the first run: older than the list
	e.send("start", id, at(30).Add(time.Millisecond))
	e.send("die", id, at(40), "exitCode", "2")
	e.put(1, "running", at(60), at(55)) // two runs later
	e.send("start", id, at(45))
	e.send("die", id, at(55), "exitCode", "130")
	e.send("start", id, at(61))
	f.lived(id, "create reconciled", "start reconciled", "exit 2", "start", "exit 130 signal 2", "start")
	if c := f.container(id); !c.Started.Equal(at(60)) || c.PID != 1001 || c.Status != model.ContainerRunning {
		t.Errorf("after all %+v", c)
	}

	// Created and removed, so every inspection fails.
	gone := fmt.Sprintf("%064d", 2)
	e.send("create", gone, at(70), "app", "x", "secret", "y")
	e.send("start", gone, at(71))
	e.send("oom", gone, at(71))
	e.send("die", gone, at(72), "exitCode", "193")
	f.lived(gone, "create", "start", "oom", "exit 193")
	if c := f.container(gone); c.Name != "c0002" || c.Image != "img" || fmt.Sprint(c.Labels) != "map[app:x]" {
		t.Errorf("gone is %+v", c)
	}
	e.send("destroy", gone, at(73))
	f.lived(gone, "create", "start", "oom", "exit 193", "delete")

	// Health by event; the event of podman does not contain it.
	health := func(s container.HealthStatus) func(*container.InspectResponse) {
		return func(c *container.InspectResponse) { c.State.Health = &container.Health{Status: s} }
	}
	well := e.put(3, "running", at(80), time.Time{}, health("starting"))
	e.send("create", well, at(79))
	e.send("start", well, at(80))
	f.lived(well, "create", "start")
	e.send("health_status: healthy", well, at(81))
	e.send("health_status: healthy", well, at(82))
	e.send("health_status: unhealthy", well, at(83))
	f.lived(well, "create", "start", "health healthy", "health unhealthy")
	e.put(3, "running", at(80), time.Time{}, health("healthy"))
	e.send("health_status", well, at(84))

	// Unknown events and events of other objects are ignored.
	for _, action := range []string{"", "update", "exec_die", "resize", "health", "diet", "\x00", "kill", "stop", "restart"} {
		e.send(action, well, at(85), "exitCode", "9")
	}
	last := e.stream()
	last <- `{"Type":"network","Action":"die","Actor":{"ID":"` + well + `"}}` + "\n"
	last <- `{"Type":"container","Action":"die","Actor":{"ID":"../../` + well[6:] + `"}}` + "\n{}\n\x1e null []\n"
	f.wait("another subscription", func() bool { return e.stream() != last }) // the last line is no event
	e.send("die", well, at(90), "exitCode", "-1")
	f.lived(well, "create", "start", "health healthy", "health unhealthy", "health healthy", "exit")
	if want := "died"; !strings.Contains(e.filters, want) || strings.Contains(e.filters, "exec") {
		t.Errorf("filters %s", e.filters)
	}
}

// TestDockerGap has the events end right after the list.
func TestDockerGap(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t)
	at := time.Now().Add(-time.Minute)
	stays, ends, goes := e.put(1, "running", at, time.Time{}), e.put(2, "running", at, time.Time{}), e.put(3, "running", at, time.Time{})
	f := follow(t, e.driver(10*time.Second))
	f.lived(stays, "create reconciled", "start reconciled")
	f.lived(goes, "create reconciled", "start reconciled")
	e.put(2, "exited", at, at.Add(time.Second), func(c *container.InspectResponse) { c.State.ExitCode = 3 })
	e.drop(goes)
	comes := e.put(4, "running", at.Add(time.Second), time.Time{})
	close(e.stream())
	f.lived(ends, "create reconciled", "start reconciled", "exit 3 reconciled")
	f.lived(goes, "create reconciled", "start reconciled", "exit reconciled", "delete reconciled")
	f.lived(comes, "create reconciled", "start reconciled")
	f.lived(stays, "create reconciled", "start reconciled")

	// Events between the subscription and the list, some of them of containers that are not in the
	// list.
	e.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/containers/json" {
			now := time.Now()
			e.send("die", goes, now, "exitCode", "1") // a duplicate
			e.send("destroy", goes, now)
			e.send("create", fmt.Sprintf("%064d", 5), now)
			e.send("die", stays, at.Add(-time.Second), "exitCode", "1")
			e.send("die", ends, at.Add(time.Second), "exitCode", "3")
			time.Sleep(50 * time.Millisecond)
		}
		return false
	})
	n := f.synced()
	close(e.stream())
	f.wait("a new list", func() bool { return f.synced() > n })
	f.lived(fmt.Sprintf("%064d", 5), "create")
	f.lived(goes, "create reconciled", "start reconciled", "exit reconciled", "delete reconciled")
	f.lived(ends, "create reconciled", "start reconciled", "exit 3 reconciled")
	f.lived(stays, "create reconciled", "start reconciled")
}

// TestDockerCodes: exits during a list keep their codes, in a repeated list and in the next connection's list.
func TestDockerCodes(t *testing.T) {
	t.Parallel()
	for name, reconnect := range map[string]bool{"again": false, "reconnect": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFakeEngine(t)
			at := time.Now().Add(-time.Minute)
			var ids [4]string
			for i := range ids {
				ids[i] = e.put(i+1, "running", at, time.Time{})
			}
			gone, again, oom, other := ids[0], ids[1], ids[2], fmt.Sprintf("%064d", 9)
			var armed atomic.Bool
			var engine atomic.Pointer[dockerEngine]
			f := follow(t, func(ctx context.Context, f feed) error {
				d := &dockerEngine{feed: f, runtime: "docker", deadline: 10 * time.Second, ping: time.Hour, again: 100 * time.Millisecond}
				engine.Store(d)
				return d.follow(ctx, e.socket)
			})
			f.lived(ids[3], "create reconciled", "start reconciled")
			forger := e.put(8, "running", at, time.Time{}, func(c *container.InspectResponse) {
				c.Config.Labels = map[string]string{"exitCode": "99"}
			})
			e.send("create", forger, at, "exitCode", "99")
			f.lived(forger, "create", "start reconciled")
			e.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/events" {
					armed.Store(true) // no list is requested on the closed stream
				}
				if r.URL.Path != "/containers/json" || !armed.CompareAndSwap(true, false) {
					return false
				}
				now := time.Now()
				ms := func(n int) time.Time { return now.Add(time.Duration(n) * time.Millisecond) }
				e.drop(gone)
				if !reconnect {
					e.drop(forger)
					e.send("die", forger, now, "exitCode", "99") // the exit code in its label
					e.send("destroy", forger, now)
				}
				e.put(2, "running", ms(2), ms(1), func(c *container.InspectResponse) { c.State.Pid = 2002 })
				e.put(3, "exited", at, ms(3), func(c *container.InspectResponse) { c.State.ExitCode = 137 })
				e.send("die", gone, now, "exitCode", "42")
				e.send("destroy", gone, now)
				e.send("pause", again, now) // of the run that ends
				e.send("die", again, ms(1), "exitCode", "43")
				e.send("start", again, ms(2))
				e.send("oom", oom, ms(3))
				e.send("die", oom, ms(3), "exitCode", "137")
				e.put(4, "paused", at, time.Time{})
				e.send("pause", ids[3], now)
				e.put(9, "running", now, time.Time{})
				e.send("create", other, now)
				e.send("start", other, now)
				sent := 10
				if !reconnect {
					sent = 12
				}
				for len(engine.Load().queue) < sent && r.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
				return false
			})
			n := f.synced()
			if armed.Store(!reconnect); reconnect {
				close(e.stream())
			}
			f.wait("the list", func() bool { return f.synced() > n && !armed.Load() })
			f.lived(gone, "create reconciled", "start reconciled", "exit 42", "delete")
			f.lived(again, "create reconciled", "start reconciled", "exit 43", "start")
			if !reconnect {
				f.lived(forger, "create", "start reconciled", "exit", "delete")
			}
			f.lived(oom, "create reconciled", "start reconciled", "oom", "exit 137 signal 9")
			f.lived(ids[3], "create reconciled", "start reconciled", "pause reconciled")
			f.lived(other, "create", "start")
			if c := f.container(again); c.PID != 2002 || c.Status != model.ContainerRunning {
				t.Errorf("%+v", c)
			}
		})
	}
}

// TestDockerBad: the driver ends if an engine hangs or sends invalid answers, and leaks nothing.
func TestDockerBad(t *testing.T) {
	t.Parallel()
	at := time.Now().Add(-time.Minute)
	on := func(path string, f func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return strings.HasPrefix(r.URL.Path, path) && f(w, r)
		}
	}
	say := func(s string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { io.WriteString(w, s); return true }
	}
	for name, c := range map[string]struct {
		handle func(http.ResponseWriter, *http.Request) bool
		want   string
	}{
		"ping hangs":        {on("/_ping", hang), "ping: "},
		"events hang":       {on("/events", hang), "/events"},
		"list hangs":        {on("/containers/json", hang), "list: "},
		"events garbage":    {on("/events", say("garbage\n")), "invalid character"},
		"events end":        {on("/events", say("")), "EOF"},
		"events refused":    {on("/events", func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true }), "/events"},
		"list garbage":      {on("/containers/json", say(`{"a":1}`)), "list: json"},
		"list is cut short": {on("/containers/json", say(`[{"Id":"`)), "list: unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newFakeEngine(t)
			e.put(1, "running", at, time.Time{})
			e.intercept(c.handle)
			deadline := 10 * time.Second
			if strings.Contains(name, "hang") {
				deadline = 5 * time.Second // for an engine that does not hang, on a busy machine
			}
			if err := e.try(t, nothing{}, deadline); !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q, want %q", err, c.want)
			}
		})
	}
	t.Run("old", func(t *testing.T) {
		t.Parallel()
		e := newFakeEngine(t)
		e.api = "1.24"
		if err := e.try(t, nothing{}, time.Minute); !strings.Contains(err.Error(), `version "1.24" of the API is not supported`) {
			t.Error(err)
		}
	})
	t.Run("ended", func(t *testing.T) {
		t.Parallel()
		e := newFakeEngine(t)
		e.server.Listener.(*net.UnixListener).SetUnlinkOnClose(false)
		e.server.Listener.Close()
		if err := e.try(t, nothing{}, time.Minute); !errors.Is(err, unix.ECONNREFUSED) {
			t.Error(err)
		}
		os.Remove(e.socket)
		if err := e.try(t, nothing{}, time.Minute); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	})
	t.Run("hangs later", func(t *testing.T) {
		t.Parallel()
		e := newFakeEngine(t)
		e.put(1, "running", at, time.Time{})
		r := newRegistry(time.Minute, time.Now)
		err := e.try(t, &socketFeed{registry: r, onSync: func() { e.intercept(hang) }}, 5*time.Second)
		if !strings.HasPrefix(err.Error(), "ping: ") || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("too many events", func(t *testing.T) {
		t.Parallel()
		e := newFakeEngine(t)
		id := e.put(1, "running", at, time.Time{})
		r := newRegistry(time.Minute, time.Now)
		var sent atomic.Int64
		f := &blocked{feed: &socketFeed{registry: r, onSync: func() {
			go func() {
				for range 2 * dockerQueue {
					e.send("pause", id, time.Now())
					sent.Add(1)
				}
			}()
		}}, sent: &sent}
		f.engine = withDeadline(f, time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		if err := f.engine.follow(ctx, e.socket); !errors.Is(err, errDockerEvents) {
			t.Error(err)
		}
	})
}

// blocked takes the first event when the queue is full and no more can be sent.
type blocked struct {
	feed
	engine *dockerEngine
	once   sync.Once
	sent   *atomic.Int64
}

func (b *blocked) event(e model.Event) {
	b.once.Do(func() {
		for n := int64(-1); n != b.sent.Load() || len(b.engine.queue) < dockerQueue && n < 2*dockerQueue; time.Sleep(time.Second) {
			n = b.sent.Load()
		}
	})
	b.feed.event(e)
}

// TestDockerInspectFails: a container without inspection lacks only its details.
func TestDockerInspectFails(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t)
	at := time.Now().Add(-time.Minute)
	stuck, odd, well := e.put(1, "running", at, time.Time{}), e.put(2, "exited", at, at), e.put(3, "running", at, time.Time{})
	gone := e.put(4, "running", at, time.Time{})
	e.put(5, "running", at, time.Time{}, func(c *container.InspectResponse) { c.ID = "short" })
	e.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.Contains(r.URL.Path, stuck):
			return hang(w, r)
		case strings.Contains(r.URL.Path, odd): // of another container
			e.mu.Lock()
			defer e.mu.Unlock()
			json.NewEncoder(w).Encode(e.containers[well])
			return true
		case strings.Contains(r.URL.Path, gone):
			e.drop(gone)
		}
		return false
	})
	f := follow(t, e.driver(5*time.Second))
	f.lived(stuck, "create reconciled", "start reconciled")
	f.lived(odd, "create reconciled", "exit reconciled")
	f.lived(well, "create reconciled", "start reconciled")
	f.lived(gone)
	for _, id := range []string{stuck, odd} {
		c := f.container(id)
		if c.Name != "c"+id[60:] || c.Image != "img" || c.Created.Unix() != 1700000000 || c.PID != 0 || c.Restarts != nil {
			t.Errorf("%+v", c)
		}
	}
	if c := f.container(well); c.PID != 1003 {
		t.Errorf("%+v", c)
	}
}

// TestDockerMany: 5,000 containers are listed with one call each, and no call follows.
func TestDockerMany(t *testing.T) {
	e := newFakeEngine(t)
	at := time.Now().Add(-time.Minute)
	for i := range 5000 {
		e.put(i, "running", at, time.Time{})
	}
	started := time.Now()
	f := follow(t, e.driver(time.Minute))
	f.wait("the list", func() bool { return f.synced() == 1 })
	t.Logf("5,000 containers listed in %v", time.Since(started))
	n := e.count("/containers/")
	for i := range 1000 {
		e.send("die", fmt.Sprintf("%064d", i), time.Now(), "exitCode", "0")
	}
	f.lived(fmt.Sprintf("%064d", 999), "create reconciled", "start reconciled", "exit 0")
	for range 100 {
		f.r.containers()
	}
	if all := e.count("/containers/"); n != 5001 || all != n || e.count("/containers/json") != 1 {
		t.Errorf("%d calls for the list, %d in all", n, all)
	}
	if e.count("/events") != 1 {
		t.Errorf("subscribed %d times: %v", e.count("/events"), f.errs)
	}
}

// TestDockerVersions: the version is negotiated. Docker 29 supports 1.44 and later.
func TestDockerVersions(t *testing.T) {
	t.Parallel()
	for api, want := range map[string]string{"1.41": "1.41", "1.52": "1.52", "1.99": "1.56"} {
		e := newFakeEngine(t)
		e.api = api
		got := make(chan string, 1)
		e.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if m := versioned.FindStringSubmatch(r.URL.Path); m != nil && m[2] == "/containers/json" {
				select {
				case got <- m[1]:
				default:
				}
			}
			e.ServeHTTP(w, r)
		})
		follow(t, e.driver(10*time.Second))
		select {
		case v := <-got:
			if v != want {
				t.Errorf("the engine supports %s, the request used %s", api, v)
			}
		case <-time.After(soon):
			t.Errorf("%s: no list", api)
		}
	}
}

func TestDockerPods(t *testing.T) {
	labels := map[string]string{
		"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u",
		"io.kubernetes.container.name": "main", "io.kubernetes.docker.type": "container",
	}
	sandbox := maps.Clone(labels)
	sandbox["io.kubernetes.container.name"], sandbox["io.kubernetes.docker.type"] = "POD", "podsandbox"
	for _, c := range []struct {
		name   string
		labels map[string]string
		want   string
	}{
		{"/k8s_main_p_ns_u_0", labels, "ns p u main false"},
		{"/k8s_POD_p_ns_u_0", sandbox, "ns p u POD true"},
		{"/web", labels, "   web false"}, // the labels come from its image
		{"/k8s_mine", nil, "   k8s_mine false"},
	} {
		i := &container.InspectResponse{Name: c.name, Config: &container.Config{Labels: c.labels}}
		m := inspected(t, i)
		if got := fmt.Sprint(m.Namespace, " ", m.Pod, " ", m.PodUID, " ", m.Name, " ", m.Sandbox); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func inspected(t *testing.T, i *container.InspectResponse) model.Container {
	t.Helper()
	b, err := json.Marshal(i)
	if err != nil {
		t.Fatal(err)
	}
	var ours dockerInspection
	if err := json.Unmarshal(b, &ours); err != nil {
		t.Fatal(err)
	}
	return dockerInspected(&ours, "docker", nil)
}

// TestDockerBody: an endless answer is cut.
func TestDockerBody(t *testing.T) {
	b := &dockerBody{ReadCloser: io.NopCloser(forever{})}
	if n, err := io.Copy(io.Discard, b); !errors.Is(err, errDockerBody) || n < dockerMaxBody {
		t.Errorf("%d bytes, %v", n, err)
	}
	b.read.Store(0)
	if _, err := b.Read(make([]byte, 10)); err != nil {
		t.Error(err)
	}
}

type forever struct{}

func (forever) Read(p []byte) (int, error) { return len(p), nil }

// FuzzDockerInspect checks the limits of a container for any answer of an engine.
func FuzzDockerInspect(f *testing.F) {
	f.Add([]byte(`{"Id":"a","Created":"2026-01-01T00:00:00Z","Name":"/k8s_a","RestartCount":-1,"State":{"Status":"exited","ExitCode":-1,
		"StartedAt":"2026-01-01T00:00:00Z","Health":{"Status":"x"}},"Config":{"Image":"\ud800","Labels":{"a":"\u0000"}},
		"HostConfig":{"Devices":[{"PathOnHost":"/dev/x"}]}}`))
	f.Add([]byte(`{"State":null,"Config":null,"HostConfig":null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var i dockerInspection
		if json.Unmarshal(b, &i) != nil {
			return
		}
		c := dockerInspected(&i, "docker", []string{"a"})
		bound(&c)
		if !utf8.ValidString(c.Name+c.Image+c.Pod+c.Labels["a"]) || c.PID < 0 || len(c.Labels) > 1 || c.Devices == nil {
			t.Errorf("%+v", c)
		}
	})
}

// FuzzDockerEvents checks the limits of a container for any event of an engine.
func FuzzDockerEvents(f *testing.F) {
	id := strings.Repeat("a", 64)
	f.Add([]byte(`{"Type":"container","Action":"die","Actor":{"ID":"` + id + `","Attributes":{"exitCode":"137"}},"timeNano":1}`))
	f.Add([]byte(`{"Type":"container","Action":"health_status: healthy","Actor":{"ID":"` + id + `"},"time":-5}`))
	f.Add([]byte(`{"Type":"container","Action":"start","Actor":{"ID":"` + id + `"}}{"Type":"container","Action":"destroy"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newRegistry(time.Minute, time.Now)
		d := &dockerEngine{
			feed: &socketFeed{registry: r, onSync: func() {}}, runtime: "docker", deadline: time.Second,
			api: newDockerAPI("/nowhere/none", time.Second), forged: map[string]bool{},
		}
		for dec := json.NewDecoder(strings.NewReader(string(b))); ; {
			var m dockerEvent
			if dec.Decode(&m) != nil {
				break
			}
			d.handle(t.Context(), m)
		}
		for _, c := range r.containers() {
			if !isID(c.ID) || !utf8.ValidString(c.Name+c.Image) || c.PID != 0 {
				t.Errorf("%+v", c)
			}
		}
	})
}
