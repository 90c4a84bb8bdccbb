// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// liveEngine is a real engine of the test, with its own directories, socket and mount namespace, and without network.
type liveEngine struct {
	t      *testing.T
	dir    string
	socket string
	env    []string
	args   []string
	cmd    *exec.Cmd
	log    *bytes.Buffer
	api    *client.Client
}

func newLiveEngine(t *testing.T, debian, program string) *liveEngine {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%v: install the Debian package %s", err, debian)
	}
	dir, err := os.MkdirTemp("", "e") // the path of a socket has a limit
	if err != nil {
		t.Fatal(err)
	}
	e := &liveEngine{t: t, dir: dir, socket: filepath.Join(dir, "s"), args: []string{path}, log: &bytes.Buffer{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the engine's log ends with:\n%s", e.log.Bytes()[max(0, e.log.Len()-4000):])
		}
		os.RemoveAll(dir)
	})
	if e.api, err = client.New(client.WithHost("unix://" + e.socket)); err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *liveEngine) start() {
	e.t.Helper()
	e.cmd = child.Command(context.Background(), e.args[0], e.args[1:]...)
	e.cmd.Env = append(os.Environ(), e.env...)
	e.cmd.Stdout, e.cmd.Stderr = e.log, e.log
	e.cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	e.cmd.WaitDelay = 100 * time.Millisecond // containers may keep the pipe of the log open
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := e.api.Ping(e.t.Context(), client.PingOptions{}); err == nil {
			return
		} else if time.Now().After(deadline) {
			e.t.Fatalf("the engine does not answer: %v", err)
		}
	}
}

func (e *liveEngine) kill() {
	e.cmd.Process.Kill()
	e.cmd.Wait()
}

func (e *liveEngine) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	all, err := e.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		e.t.Error(err)
	}
	for _, c := range all.Items {
		if _, err := e.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			e.t.Error(err)
		}
	}
	e.cmd.Process.Signal(unix.SIGTERM)
	kill := time.AfterFunc(10*time.Second, func() { e.cmd.Process.Kill() })
	e.cmd.Wait()
	kill.Stop()
}

func (e *liveEngine) importImage() {
	e.t.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		e.t.Fatalf("%v: install the Debian package busybox-static", err)
	}
	busybox, err := os.ReadFile(path)
	if err != nil {
		e.t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, d := range []string{"bin/", "proc/", "sys/", "dev/", "etc/", "tmp/"} {
		w.WriteHeader(&tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755})
	}
	w.WriteHeader(&tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(busybox))})
	w.Write(busybox)
	for _, n := range []string{"sh", "sleep", "test", "touch", "kill"} {
		w.WriteHeader(&tar.Header{Name: "bin/" + n, Typeflag: tar.TypeSymlink, Linkname: "busybox"})
	}
	w.Close()
	// The labels of the image imitate a pod.
	answer, err := e.api.ImageImport(e.t.Context(), client.ImageImportSource{Source: &b, SourceName: "-"}, "box",
		client.ImageImportOptions{Changes: []string{
			"LABEL io.kubernetes.pod.name=victim io.kubernetes.pod.namespace=prod io.kubernetes.container.name=main",
		}})
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, answer); err != nil {
		e.t.Fatal(err)
	}
	answer.Close()
}

type option func(*container.Config, *container.HostConfig)

func (e *liveEngine) create(name, script string, options ...option) string {
	e.t.Helper()
	c := &container.Config{Image: "box", Cmd: []string{"/bin/sh", "-c", script}}
	h := &container.HostConfig{NetworkMode: "none"}
	for _, o := range options {
		o(c, h)
	}
	made, err := e.api.ContainerCreate(e.t.Context(), client.ContainerCreateOptions{Name: name, Config: c, HostConfig: h})
	if err != nil {
		e.t.Fatal(err)
	}
	return made.ID
}

func (e *liveEngine) run(name, script string, options ...option) string {
	e.t.Helper()
	id := e.create(name, script, options...)
	if _, err := e.api.ContainerStart(e.t.Context(), id, client.ContainerStartOptions{}); err != nil {
		e.t.Fatal(err)
	}
	return id
}

func (e *liveEngine) must(_ any, err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// truth returns the state in the engine's own API, read without the library.
func (e *liveEngine) truth() map[string]string {
	e.t.Helper()
	c := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial("unix", e.socket)
		},
	}}
	get := func(path string, v any) {
		answer, err := c.Get("http://engine" + path)
		if err != nil {
			e.t.Fatal(err)
		}
		defer answer.Body.Close()
		if err := json.NewDecoder(answer.Body).Decode(v); err != nil {
			e.t.Fatal(err)
		}
	}
	var list []struct{ ID string }
	get("/v1.41/containers/json?all=1", &list)
	out := map[string]string{}
	for _, l := range list {
		var c struct {
			Name  string
			State struct {
				Status        string
				Pid, ExitCode int
			}
		}
		get("/v1.41/containers/"+l.ID+"/json", &c)
		code := -1
		if c.State.Status == "exited" {
			code = c.State.ExitCode
		}
		out[l.ID] = fmt.Sprint(strings.TrimPrefix(c.Name, "/"), " ", c.State.Status, " ", c.State.Pid, " ", code)
	}
	return out
}

type follower struct {
	t     *testing.T
	r     *registry
	mu    sync.Mutex
	log   []model.Event
	syncs int
	errs  []error
}

func follow(t *testing.T, d driver) *follower {
	f := &follower{t: t, r: newRegistry(time.Minute, time.Now)}
	f.r.watch(func(e model.Event) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.log = append(f.log, e)
	})
	feed := &socketFeed{registry: f.r, onSync: func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.syncs++
	}}
	ctx, cancel := context.WithCancel(context.Background())
	var w sync.WaitGroup
	w.Go(func() {
		for ctx.Err() == nil {
			err := d(ctx, feed)
			f.mu.Lock()
			f.errs = append(f.errs, err)
			f.mu.Unlock()
			time.Sleep(20 * time.Millisecond)
		}
	})
	t.Cleanup(func() {
		cancel()
		w.Wait()
		if t.Failed() {
			f.mu.Lock()
			defer f.mu.Unlock()
			for _, e := range f.log[max(0, len(f.log)-200):] {
				t.Log(e.Time.Format("05.000000"), brief(e))
			}
			for _, err := range slices.CompactFunc(f.errs, func(a, b error) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
				t.Log(err)
			}
		}
	})
	return f
}

func brief(e model.Event) string {
	s := e.Container.Name + ": " + string(e.Type)
	if e.ExitCode != nil {
		s += fmt.Sprint(" ", *e.ExitCode)
	}
	if e.Signal != 0 {
		s += fmt.Sprint(" signal ", e.Signal)
	}
	if e.Type == model.EventHealth {
		s += " " + e.Container.Health
	}
	if e.Reconciled {
		s += " reconciled"
	}
	return s
}

func (f *follower) wait(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("not seen: %s", what)
		}
	}
}

// pauses pauses a container. runc gives up freezing after a short time, which a busy machine may exceed.
func (f *follower) pauses(e *liveEngine, id string) {
	f.t.Helper()
	f.wait("the pause", func() bool {
		_, err := e.api.ContainerPause(f.t.Context(), id, client.ContainerPauseOptions{})
		return err == nil
	})
}

func (f *follower) container(id string) (c model.Container) {
	f.r.snapshot(func(all []model.Container) {
		for i := range all {
			if all[i].ID == id {
				c = all[i]
			}
		}
	})
	return c
}

func catches(pid int, s unix.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, mask, _ := strings.Cut(string(status), "SigCgt:")
	mask, _, _ = strings.Cut(strings.TrimSpace(mask), "\n")
	n, _ := strconv.ParseUint(mask, 16, 64)
	return n&(1<<(s-1)) != 0
}

func (f *follower) life(id string) (events []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.log {
		if e.Container.ID == id {
			_, s, _ := strings.Cut(brief(e), ": ")
			events = append(events, s)
		}
	}
	return events
}

func (f *follower) lived(id string, want ...string) {
	f.t.Helper()
	f.wait(strings.Join(want, ", "), func() bool { return len(f.life(id)) >= len(want) })
	time.Sleep(50 * time.Millisecond) // for unexpected events
	if got := f.life(id); !slices.Equal(got, want) {
		f.t.Errorf("%s lived %q, not %q", f.container(id).Name, got, want)
	}
}

func (f *follower) synced() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs
}

func (f *follower) failures() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.errs)
}

// agrees waits until the known state equals the state in the engine.
func (f *follower) agrees(e *liveEngine) {
	f.t.Helper()
	var known, truth map[string]string
	f.wait("agreement", func() bool {
		truth, known = e.truth(), map[string]string{}
		f.r.snapshot(func(all []model.Container) {
			for _, c := range all {
				code := -1
				if c.ExitCode != nil {
					code = int(*c.ExitCode)
				}
				known[c.ID] = fmt.Sprint(c.Name, " ", c.Status, " ", c.PID, " ", code)
			}
		})
		return fmt.Sprint(known) == fmt.Sprint(truth)
	})
	if len(truth) == 0 {
		f.t.Error("the engine has no containers")
	}
}

// dockerd starts an engine and its containerd, which outlives the engine.
func dockerd(t *testing.T) *liveEngine {
	t.Helper()
	e := newLiveEngine(t, "docker.io", "dockerd")
	sub := func(s string) string { return filepath.Join(e.dir, s) }
	path, err := exec.LookPath("containerd")
	if err != nil {
		t.Fatalf("%v: install the Debian package containerd", err)
	}
	e.must(nil, os.WriteFile(sub("c.toml"), []byte(`version = 2
disabled_plugins = ["io.containerd.grpc.v1.cri"]
`), 0o644))
	e.must(nil, os.WriteFile(sub("d.json"), []byte("{}"), 0o644)) // instead of the machine's configuration
	c := child.Command(context.Background(), path, "--config", sub("c.toml"), "--root", sub("c"), "--state", sub("r"), "--address", sub("cs"))
	e.must(nil, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		e.sweep()
	})
	e.args = append(e.args, "--data-root", sub("data"), "--exec-root", sub("x"), "--pidfile", sub("pid"),
		"--config-file", sub("d.json"), "--containerd", sub("cs"), "-H", "unix://"+e.socket,
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs")
	e.start()
	e.importImage()
	return e
}

// sweep ends the processes with the engine's directory in their arguments, and their children: the shims and containers
// of a killed engine.
func (e *liveEngine) sweep() {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lines {
		if b, err := os.ReadFile(l); err != nil || !bytes.Contains(b, []byte(e.dir)) {
			continue
		}
		children, _ := os.ReadFile(filepath.Join(filepath.Dir(l), "task", filepath.Base(filepath.Dir(l)), "children"))
		for _, pid := range append(strings.Fields(string(children)), filepath.Base(filepath.Dir(l))) {
			if n, err := strconv.Atoi(pid); err == nil {
				unix.Kill(n, unix.SIGKILL)
			}
		}
	}
}

// TestDockerEngine follows a real Docker Engine through the lives of real containers, a crash and a hang of the engine.
func TestDockerEngine(t *testing.T) {
	t.Parallel()
	e := dockerd(t)
	t.Cleanup(e.end)
	ctx := t.Context()

	first := e.run("first", "sleep 1000", func(c *container.Config, h *container.HostConfig) {
		c.Labels, c.StopSignal = map[string]string{"com.docker.compose.service": "web", "secret": "s"}, "KILL"
		h.Devices = []container.DeviceMapping{{PathOnHost: "/dev/null", PathInContainer: "/dev/x", CgroupPermissions: "rw"}}
	})
	f := follow(t, func(ctx context.Context, f feed) error {
		d := &dockerEngine{
			feed: f, labels: []string{"com.docker.compose.service"}, runtime: "docker",
			deadline: 10 * time.Second, ping: 200 * time.Millisecond, again: time.Hour,
		}
		return d.follow(ctx, e.socket)
	})
	f.lived(first, "create reconciled", "start reconciled")
	c := f.container(first)
	truth, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.PID))
	if err != nil || !strings.Contains(string(truth), first) {
		t.Errorf("process %d is not of the container: %s %v", c.PID, truth, err)
	}
	if c.Runtime != "docker" || c.Name != "first" || c.Pod != "" || c.Image != "box" || !strings.HasPrefix(c.ImageID, "sha256:") ||
		fmt.Sprint(c.Labels) != "map[com.docker.compose.service:web]" || fmt.Sprint(c.Devices) != "[/dev/null]" ||
		c.Restarts == nil || *c.Restarts != 0 || time.Since(c.Created) > time.Minute || c.Started.Before(c.Created) {
		t.Errorf("first is %+v", c)
	}

	// One privileged container, and one with a GPU request, which is not started.
	privileged := e.create("privileged", "sleep 1000", func(_ *container.Config, h *container.HostConfig) { h.Privileged = true })
	waiting := e.create("waiting", "sleep 1000", func(_ *container.Config, h *container.HostConfig) {
		h.DeviceRequests = []container.DeviceRequest{{DeviceIDs: []string{"1", "GPU-5"}, Capabilities: [][]string{{"gpu"}}}}
	})
	f.lived(privileged, "create")
	f.lived(waiting, "create")
	if c := f.container(privileged); !c.AllDevices || c.GPURequests != nil {
		t.Errorf("privileged is %+v", c)
	}
	if c := f.container(waiting); c.AllDevices || !slices.Equal(c.GPURequests, []string{"1", "GPU-5"}) {
		t.Errorf("waiting is %+v", c)
	}

	// A label exitCode replaces the exit code in Docker's events.
	forged := e.run("forged", "exit 3", func(c *container.Config, _ *container.HostConfig) {
		c.Labels = map[string]string{"exitCode": "42"}
	})
	f.lived(forged, "create", "start", "exit 3")
	short := e.run("short", "exit 4", func(_ *container.Config, h *container.HostConfig) { h.AutoRemove = true })
	f.lived(short, "create", "start", "exit 4", "delete")
	killed := e.run("killed", "sleep 1000")
	f.pauses(e, killed)
	e.must(e.api.ContainerUnpause(ctx, killed, client.ContainerUnpauseOptions{}))
	e.must(e.api.ContainerRename(ctx, killed, client.ContainerRenameOptions{NewName: "renamed"}))
	f.wait("the new name", func() bool { return f.container(killed).Name == "renamed" })
	e.must(e.api.ContainerKill(ctx, killed, client.ContainerKillOptions{Signal: "KILL"}))
	f.wait("the end of what was paused", func() bool { return slices.Contains(f.life(killed), "exit 137 signal 9") })
	time.Sleep(50 * time.Millisecond) // for unexpected events
	paused := f.life(killed)
	if len(paused) > 6 && slices.Equal(paused[2:4], paused[4:6]) { // a busy engine may receive it late from containerd, and report it twice
		paused = slices.Delete(paused, 4, 6)
	}
	if want := []string{"create", "start", "pause", "resume", "exit 137 signal 9"}; !slices.Equal(paused, want) {
		t.Errorf("killed lived %q, not %q", paused, want)
	}
	// The OOM killer ends a child. If the container ends with it, the engine may report only the container's end.
	oom := e.run("oom", "(a=aaaaaaaaaaaaaaaa; while :; do a=$a$a; done); sleep 1000", func(_ *container.Config, h *container.HostConfig) {
		h.Memory = 20 << 20
		h.MemorySwap = h.Memory
	})
	f.lived(oom, "create", "start", "oom")
	e.must(e.api.ContainerKill(ctx, oom, client.ContainerKillOptions{Signal: "KILL"}))
	f.lived(oom, "create", "start", "oom", "exit 137 signal 9")
	again := e.run("again", "trap 'exit 5' TERM; while :; do sleep 0.05; done")
	f.wait("that it catches SIGTERM", func() bool { return catches(f.container(again).PID, unix.SIGTERM) })
	timeout := 60 // the default is 10 s
	e.must(e.api.ContainerRestart(ctx, again, client.ContainerRestartOptions{Timeout: &timeout}))
	f.lived(again, "create", "start", "exit 5", "start")
	policy := e.run("policy", "exit 7", func(_ *container.Config, h *container.HostConfig) {
		h.RestartPolicy = container.RestartPolicy{Name: "on-failure", MaximumRetryCount: 2}
	})
	f.lived(policy, "create", "start", "exit 7", "start", "exit 7", "start", "exit 7")
	if n := f.container(policy).Restarts; n == nil || *n != 2 {
		t.Errorf("restarts: %v", n)
	}
	health := e.run("health", "trap 'touch /ok' USR1; while :; do sleep 0.05; done", func(c *container.Config, _ *container.HostConfig) {
		c.StopSignal = "KILL"
		c.Healthcheck = &container.HealthConfig{
			Test: []string{"CMD", "/bin/test", "-e", "/ok"}, Interval: 100 * time.Millisecond, Timeout: time.Minute, Retries: 1,
		}
	})
	f.lived(health, "create", "start", "health unhealthy")
	f.wait("that it catches SIGUSR1", func() bool { return catches(f.container(health).PID, unix.SIGUSR1) })
	e.must(e.api.ContainerKill(ctx, health, client.ContainerKillOptions{Signal: "USR1"}))
	f.lived(health, "create", "start", "health unhealthy", "health healthy")
	f.agrees(e)

	// The engine is killed. Its next start ends the running containers.
	never := e.create("never", "exit 0")
	f.lived(never, "create")
	before := f.container(first)
	e.kill()
	f.wait("the failure", func() bool { return f.failures() > 2 })
	if now := f.container(first); now.PID != before.PID || now.Name != before.Name {
		t.Errorf("without its engine %+v is known as %+v", before, now)
	}
	e.start()
	started := time.Now()
	f.agrees(e)
	t.Logf("healed %v after the engine answered", time.Since(started))
	if life := f.life(first); len(life) != 3 || !strings.HasPrefix(life[2], "exit 137") || !strings.HasSuffix(life[2], "reconciled") {
		t.Errorf("first lived %q", life)
	}

	// The engine hangs, and continues.
	n, failures := f.synced(), f.failures()
	e.must(nil, e.cmd.Process.Signal(unix.SIGSTOP))
	f.wait("that it hangs", func() bool { return f.failures() > failures })
	e.must(nil, e.cmd.Process.Signal(unix.SIGCONT))
	f.wait("a new list", func() bool { return f.synced() > n })
	late := e.run("late", "exit 6")
	f.wait("life after it", func() bool { return len(f.life(late)) >= 3 })
	f.agrees(e)
}

// TestPodman follows podman through the socket that serves Docker's API.
func TestPodman(t *testing.T) {
	t.Parallel()
	e := newLiveEngine(t, "podman", "podman")
	config := filepath.Join(e.dir, "containers.conf")
	e.env = []string{"CONTAINERS_CONF=" + config}
	e.must(nil, os.WriteFile(config, []byte(`
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
events_logger = "file"
cgroup_manager = "cgroupfs"
runtime = "runc"
`), 0o644))
	e.args = append(e.args, "--root", filepath.Join(e.dir, "root"), "--runroot", filepath.Join(e.dir, "run"),
		"--tmpdir", filepath.Join(e.dir, "tmp"), "--storage-driver", "vfs", "--cgroup-manager", "cgroupfs",
		"system", "service", "--time=0", "unix://"+e.socket)
	e.start()
	t.Cleanup(e.sweep)
	t.Cleanup(e.end)
	e.importImage()
	ctx := t.Context()

	first := e.run("first", "sleep 1000", func(c *container.Config, h *container.HostConfig) {
		c.Labels = map[string]string{"io.podman.compose.project": "p"}
		h.Devices = []container.DeviceMapping{{PathOnHost: "/dev/null", PathInContainer: "/dev/x", CgroupPermissions: "rw"}}
	})
	f := follow(t, func(ctx context.Context, f feed) error {
		return docker(ctx, Options{Labels: []string{"io.podman.compose.project"}}, e.socket, f)
	})
	f.lived(first, "create reconciled", "start reconciled")
	c := f.container(first)
	truth, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.PID))
	if err != nil || !strings.Contains(string(truth), first) {
		t.Errorf("process %d is not of the container: %s %v", c.PID, truth, err)
	}
	if c.Runtime != "podman" || c.Name != "first" || c.Pod != "" || !strings.Contains(c.Image, "box") || c.ImageID == "" ||
		fmt.Sprint(c.Labels) != "map[io.podman.compose.project:p]" || fmt.Sprint(c.Devices) != "[/dev/null]" {
		t.Errorf("first is %+v", c)
	}
	forged := e.run("forged", "exit 3", func(c *container.Config, _ *container.HostConfig) {
		c.Labels = map[string]string{"exitCode": "42"}
	})
	f.lived(forged, "create", "start", "exit 3")
	e.must(e.api.ContainerRename(ctx, forged, client.ContainerRenameOptions{NewName: "renamed"}))
	f.wait("the new name", func() bool { return f.container(forged).Name == "renamed" })
	killed := e.run("killed", "sleep 1000")
	f.pauses(e, killed)
	e.must(e.api.ContainerUnpause(ctx, killed, client.ContainerUnpauseOptions{}))
	e.must(e.api.ContainerKill(ctx, killed, client.ContainerKillOptions{Signal: "KILL"}))
	f.lived(killed, "create", "start", "pause", "resume", "exit 137 signal 9")
	again := e.run("again", "trap 'exit 5' TERM; while :; do sleep 0.05; done")
	timeout := 60 // podman has no default
	f.wait("that it catches SIGTERM", func() bool { return catches(f.container(again).PID, unix.SIGTERM) })
	e.must(e.api.ContainerRestart(ctx, again, client.ContainerRestartOptions{Timeout: &timeout}))
	f.lived(again, "create", "start", "exit 5", "start")
	f.agrees(e)

	// Containers run on without the service, and end without it.
	e.kill()
	if out, err := e.podman("rm", "-f", "-t", "0", "again"); err != nil {
		t.Fatalf("podman rm: %v: %s", err, out)
	}
	e.start()
	f.lived(again, "create", "start", "exit 5", "start", "exit reconciled", "delete reconciled")
	f.agrees(e)
	f.lived(first, "create reconciled", "start reconciled")
}

// podman runs a command in the engine's directories without the service.
func (e *liveEngine) podman(args ...string) ([]byte, error) {
	global := e.args[1:slices.Index(e.args, "system")]
	cmd := child.Command(context.Background(), e.args[0], slices.Concat(global, args)...)
	cmd.Env = append(os.Environ(), e.env...)
	return cmd.CombinedOutput()
}
