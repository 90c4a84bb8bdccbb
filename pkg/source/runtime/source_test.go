// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestParseSocket(t *testing.T) {
	for in, want := range map[string]Socket{
		"containerd:/run/containerd/containerd.sock":   {"containerd", "/run/containerd/containerd.sock"},
		"containerd:///run/containerd/containerd.sock": {"containerd", "/run/containerd/containerd.sock"},
		"cri:unix:///run/containerd/containerd.sock":   {"cri", "/run/containerd/containerd.sock"},
		"unix:///run/crio/crio.sock":                   {"cri", "/run/crio/crio.sock"},
		"unix:/run/containerd/containerd.sock":         {"containerd", "/run/containerd/containerd.sock"},
		"unix:///run/user/1000/podman/podman.sock":     {"docker", "/run/user/1000/podman/podman.sock"},
		"/run/docker.sock":                             {"docker", "/run/docker.sock"},
		"docker:/a/../b//c.sock":                       {"docker", "/b/c.sock"},
		"":                                             {},
		"containerd:":                                  {},
		"containerd:run/x.sock":                        {},
		"ftp:/x":                                       {},
		"docker:tcp://127.0.0.1:2375":                  {},
		"docker:/a\x00b":                               {},
	} {
		got, err := ParseSocket(in)
		if got != want || (err == nil) != (want != Socket{}) {
			t.Errorf("%q: %v, %v; want %v", in, got, err, want)
		}
	}
}

// TestLocate uses a node's root that is mounted elsewhere, with links in it.
func TestLocate(t *testing.T) {
	root := t.TempDir()
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(root, "run/x"), 0o755))
	must(os.MkdirAll(filepath.Join(root, "var"), 0o755))
	must(os.Symlink("/run", filepath.Join(root, "var/run")))
	must(os.Symlink("../run/x/../../../../run/x", filepath.Join(root, "run/y")))
	must(os.Symlink("loop", filepath.Join(root, "loop")))
	must(os.WriteFile(filepath.Join(root, "run/file"), nil, 0o600))
	l, err := net.Listen("unix", filepath.Join(root, "run/x/s.sock"))
	must(err)
	defer l.Close()
	for path, want := range map[string]string{
		"/run/x/s.sock": "run/x/s.sock", "/var/run/x/s.sock": "run/x/s.sock", "/var/run/y/s.sock": "run/x/s.sock",
		"/run/x/no.sock": "", "/loop": "", "/run/file": "", "/run": "",
	} {
		got, err := node{root: root}.locate(path)
		if want != "" {
			want = filepath.Join(root, want)
		}
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
}

// TestLocateRun mounts the node's /run separately: with the rest of its root, and without.
func TestLocateRun(t *testing.T) {
	dir, err := os.MkdirTemp("", "run")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, sub := range []string{"run/x", "host/var/snap", "host/run/x", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/run", filepath.Join(dir, "host/var/run")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"run/x/s.sock", "host/var/snap/c.sock", "host/run/x/decoy.sock"} {
		l, err := net.Listen("unix", filepath.Join(dir, path))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
	for root, want := range map[string]map[string]string{
		"host": {
			"/run/x/s.sock": "run/x/s.sock", "/var/run/x/s.sock": "run/x/s.sock", "/var/snap/c.sock": "host/var/snap/c.sock",
			"/run/x/decoy.sock": "", "/running": "",
		},
		"empty":   {"/run/x/s.sock": "run/x/s.sock", "/var/run/x/s.sock": "run/x/s.sock", "/var/snap/c.sock": ""},
		"missing": {"/run/x/s.sock": "run/x/s.sock", "/var/run/x/s.sock": "run/x/s.sock", "/var/snap/c.sock": ""},
	} {
		n := node{filepath.Join(dir, root), filepath.Join(dir, "run")}
		for path, want := range want {
			if want != "" {
				want = filepath.Join(dir, want)
			}
			if got, err := n.locate(path); got != want || (err == nil) != (want != "") {
				t.Errorf("%s of %s: %q, %v; want %q", path, root, got, err, want)
			}
		}
	}
}

func TestNoSocket(t *testing.T) {
	for _, sockets := range [][]Socket{nil, {{"containerd", "/run/none.sock"}}} {
		s := open(t, Options{Root: t.TempDir(), Sockets: sockets})
		snap, err := s.Read(t.Context())
		if !errors.Is(err, model.ErrAbsent) || !strings.Contains(err.Error(), "--runtime.socket") {
			t.Errorf("%v", err)
		}
		if snap, _ := s.Resolve(t.Context(), nil); snap.Containers != nil {
			t.Errorf("containers %v without a list", snap.Containers)
		}
		if len(snap.DeviceStates) != len(sockets) {
			t.Errorf("%v", snap.DeviceStates)
		}
	}
	if _, err := New(Options{Sockets: []Socket{{"rkt", "/x"}}}); err == nil {
		t.Error("a kind that does not exist")
	}
}

// TestSocketAppears creates the socket of CRI-O later, at a place with two paths. One path is configured as
// containerd's.
func TestSocketAppears(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := open(t, Options{Root: root, Sockets: []Socket{{"cri", "/run/crio/crio.sock"}, {"cri", "/var/run/crio/crio.sock"}}})
	if _, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
		t.Fatal(err)
	}
	f := &fakeCRI{name: "cri-o", containers: map[string]*api.ContainerStatus{"c1": criStatus("c1", api.ContainerState_CONTAINER_RUNNING, 0)}}
	path := startCRI(t, f)
	for link, target := range map[string]string{"run/crio": filepath.Dir(path), "var": "/"} {
		os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755)
		if link == "run/crio" { // the mounted directory
			os.MkdirAll(filepath.Join(root, link), 0o755)
			if err := os.Rename(path, filepath.Join(root, link, "crio.sock")); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	once := []model.DeviceState{{Source: "runtime", Device: "cri", State: "ok"}}
	eventually(t, soon, "it is found once", func() bool {
		snap, _ := s.Read(t.Context())
		return cmp.Equal(once, snap.DeviceStates)
	})
	time.Sleep(50 * time.Millisecond)
	snap, _ := s.Read(t.Context())
	if d := cmp.Diff(once, snap.DeviceStates); d != "" {
		t.Error(d)
	}
	if all, _ := s.Resolve(t.Context(), nil); len(all.Containers) != 2 {
		t.Errorf("%v", all.Containers)
	}
}

// TestRuntimeNeverAnswers follows a runtime that accepts connections and never answers, and a second runtime that
// answers.
func TestRuntimeNeverAnswers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := &fakeCRI{name: "cri-o", containers: map[string]*api.ContainerStatus{"c1": criStatus("c1", api.ContainerState_CONTAINER_RUNNING, 0)}}
	other := startCRI(t, f)
	began := time.Now()
	s := open(t, Options{Sockets: []Socket{{"containerd", path}, {"cri", other}}})
	s.Read(t.Context())
	if took := time.Since(began); took >= callTimeout {
		t.Errorf("Read waits for the one that hangs: %v", took)
	}
	eventually(t, soon, "the other is followed", func() bool {
		snap, err := s.Read(t.Context())
		if snap.DeviceStates[0].State == model.StateOK {
			t.Fatalf("%+v", snap.DeviceStates)
		}
		return err == nil && snap.DeviceStates[1].State == model.StateOK && resolved(s)["c1"].Pod != ""
	})
	eventually(t, callTimeout+soon, "stuck", func() bool { return state(s) == model.StateStuck })
	if snap, err := s.Read(t.Context()); err != nil || !strings.Contains(snap.DeviceStates[0].Reason, "restart it") {
		t.Errorf("%v, %+v", err, snap.DeviceStates)
	}
}

// TestRefused uses the socket file of a runtime that ended.
func TestRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	s := open(t, Options{Sockets: []Socket{{"containerd", path}}})
	eventually(t, soon, "why", func() bool {
		snap, err := s.Read(t.Context())
		if err == nil || len(snap.DeviceStates) != 1 || snap.DeviceStates[0].State != model.StateFailed {
			t.Fatalf("%v, %+v", err, snap.DeviceStates)
		}
		return strings.Contains(snap.DeviceStates[0].Reason, "the runtime does not run")
	})
	if time.Sleep(0); resolved(s) == nil {
		t.Error("nil")
	}
}

// TestSameSocket has one socket under two paths that are not links of each other, as with two
// mounts.
func TestSameSocket(t *testing.T) {
	t.Parallel()
	f := &fakeCRI{name: "cri-o", containers: map[string]*api.ContainerStatus{"c1": criStatus("c1", api.ContainerState_CONTAINER_RUNNING, 0)}}
	path := startCRI(t, f)
	second := filepath.Join(t.TempDir(), "s.sock")
	if err := os.Link(path, second); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Sockets: []Socket{{"cri", path}, {"cri", second}}})
	if d := cmp.Diff([]model.DeviceState{{Source: "runtime", Device: "cri", State: "ok"}}, listed(t, s).DeviceStates); d != "" {
		t.Error(d)
	}
	s.mu.Lock()
	if !s.places[1].alias {
		t.Error("the socket is followed twice")
	}
	s.mu.Unlock()
	// The first path is gone: the second is an independent socket.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if s.isAlias(s.places[1], second) {
		t.Error("still taken for the first")
	}
}

// TestReady follows a runtime that answers late, and a runtime that never answers.
func TestReady(t *testing.T) {
	t.Parallel()
	f := &fakeCRI{name: "cri-o"}
	path := startCRI(t, f)
	f.mu.Lock() // it lists nothing
	s := open(t, Options{Sockets: []Socket{{"cri", path}}})
	select {
	case <-s.Ready():
		t.Error("ready before the list")
	case <-time.After(300 * time.Millisecond):
	}
	f.mu.Unlock()
	<-s.Ready()
	s.Snapshot(func(all []model.Container) {
		if len(all) != 1 {
			t.Errorf("ready with %d containers", len(all))
		}
	})
	<-open(t, Options{Root: t.TempDir()}).Ready() // nothing to wait for

	e := newFakeEngine(t)
	e.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		return r.URL.Path == "/containers/json" && hang(w, r)
	})
	began := time.Now()
	slow := open(t, Options{Sockets: []Socket{{"docker", e.socket}}})
	<-slow.Ready()
	if took := time.Since(began); took < readyWithin || took > 2*dockerDeadline { // the list fails after three of them
		t.Errorf("ready after %v", took)
	}
}

// TestReconnectStorm has connections that break right after the list. The pauses, half of them random, start at 0.1 s
// and double up to 2 s.
func TestReconnectStorm(t *testing.T) {
	t.Parallel()
	e := newFakeEngine(t)
	e.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/containers/json" {
			stream := e.stream()
			time.AfterFunc(10*time.Millisecond, func() { close(stream) })
		}
		return false
	})
	began := time.Now()
	open(t, Options{Sockets: []Socket{{"docker", e.socket}}})
	eventually(t, 2*soon, "8 lists", func() bool { return e.count("/containers/json") >= 8 })
	if took := time.Since(began); took < 3*time.Second {
		t.Errorf("8 lists in %v", took)
	}
}

// TestFailedSockets: the error of a Read matches the errors of the sockets.
func TestFailedSockets(t *testing.T) {
	p := &place{Socket: Socket{model.APICRI, "/run/x.sock"}, at: "/run/x.sock"}
	s := &Source{registry: newRegistry(time.Minute, time.Now), settled: make(chan struct{}), places: []*place{p}}
	s.opt.Logger = zap.NewNop()
	close(s.settled)
	for _, err := range []error{unix.EACCES, unix.ECONNREFUSED} {
		state, reason := judge(p, fmt.Errorf("dial: %w", err))
		s.note(p, state, reason, fmt.Errorf("dial: %w", err))
		if _, got := s.Read(t.Context()); !errors.Is(got, err) || got.Error() != "runtime: "+reason {
			t.Errorf("%v; want %q, of %v", got, reason, err)
		}
	}
}
