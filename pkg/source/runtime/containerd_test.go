// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A daemon is a real containerd of the system's package, started for the test, with real runc.
type daemon struct {
	*testing.T
	dir    string
	cmd    *exec.Cmd
	conn   *conn
	rootfs string
}

// withoutCRI allows containers that imitate the CRI plugin's containers, which would prevent the plugin's start.
const withoutCRI = `disabled_plugins = ["io.containerd.grpc.v1.cri"]
`

func startDaemon(t *testing.T, config string) *daemon {
	t.Helper()
	for program, pkg := range map[string]string{"containerd": "containerd", "runc": "runc", "busybox": "busybox-static"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: install the package %s", err, pkg)
		}
	}
	dir, err := os.MkdirTemp("/tmp", "as-ctd-") // a socket's path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{T: t, dir: dir, rootfs: filepath.Join(dir, "rootfs")}
	t.Cleanup(func() {
		os.RemoveAll(dir)
		for _, tree := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} { // of version 2, of each of version 1
			left, _ := filepath.Glob(filepath.Join(tree, filepath.Base(dir)))
			for _, parent := range left {
				os.Remove(parent)
			}
		}
	})
	d.must(os.MkdirAll(filepath.Join(d.rootfs, "bin"), 0o755))
	path, _ := exec.LookPath("busybox")
	b, err := os.ReadFile(path)
	d.must(err)
	for _, applet := range []string{"sh", "sleep", "tail"} {
		d.must(os.WriteFile(filepath.Join(d.rootfs, "bin", applet), b, 0o755))
	}
	d.must(os.WriteFile(filepath.Join(dir, "config.toml"), fmt.Appendf(nil, `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
%[2]s[grpc]
  address = "%[1]s/containerd.sock"
`, dir, config), 0o600))
	d.start()
	t.Cleanup(d.destroy)
	return d
}

func (d *daemon) socket() string { return filepath.Join(d.dir, "containerd.sock") }

func (d *daemon) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d *daemon) start() {
	d.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	d.must(err)
	defer log.Close()
	d.cmd = child.Command(context.Background(), "containerd", "-c", filepath.Join(d.dir, "config.toml"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.must(d.cmd.Start())
	deadline := time.Now().Add(time.Minute)
	for {
		d.conn, err = dial(d.socket())
		d.must(err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err = version.NewVersionClient(d.conn).Version(ctx, &emptypb.Empty{})
		cancel()
		if err == nil {
			return
		}
		d.conn.Close()
		if time.Now().After(deadline) {
			b, _ := os.ReadFile(filepath.Join(d.dir, "log"))
			d.Fatalf("containerd does not answer: %v\n%s", err, b)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (d *daemon) kill() {
	d.conn.Close()
	d.must(d.cmd.Process.Kill())
	d.cmd.Wait()
	d.cmd = nil
}

// destroy ends all tasks, so that no shim remains, and containerd.
func (d *daemon) destroy() {
	if d.cmd == nil { // the test ended halfway
		d.start()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all, err := namespaces.NewNamespacesClient(d.conn).List(ctx, &namespaces.ListNamespacesRequest{})
	if err != nil {
		d.Error(err)
	}
	for _, ns := range all.GetNamespaces() {
		in := inNamespace(ctx, ns.GetName())
		list, _ := tasks.NewTasksClient(d.conn).List(in, &tasks.ListTasksRequest{})
		for _, t := range list.GetTasks() {
			d.endTask(in, t.GetID())
		}
	}
	d.kill()
}

func (d *daemon) endTask(ctx context.Context, id string) {
	api := tasks.NewTasksClient(d.conn)
	api.Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(unix.SIGKILL), All: true})
	api.Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	if _, err := api.Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id}); err != nil {
		d.Errorf("task %s stays: %v", id, err)
	}
}

func (d *daemon) ctx(ns string) context.Context { return inNamespace(d.Context(), ns) }

var memory = map[string]*specs.LinuxResources{"oom": {Memory: &specs.LinuxMemory{Limit: new(int64(16 << 20))}}}

func (d *daemon) spec(id string, annotations map[string]string, args ...string) *anypb.Any {
	b, err := json.Marshal(&specs.Spec{
		Version: "1.0.2", Annotations: annotations,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: args, Cwd: "/", Env: []string{"PATH=/bin"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{
			Resources:   memory[id],
			CgroupsPath: filepath.Join("/", filepath.Base(d.dir)+"-"+id),
			Namespaces:  []specs.LinuxNamespace{{Type: "pid"}, {Type: "mount"}},
			Devices:     []specs.LinuxDevice{{Path: "/dev/infiniband/uverbs0", Type: "c", Major: 231, Minor: 192}},
		},
	})
	d.must(err)
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec", Value: b}
}

func (d *daemon) create(ns string, c *containers.Container) time.Time {
	d.Helper()
	namespaces.NewNamespacesClient(d.conn).Create(d.Context(), &namespaces.CreateNamespaceRequest{Namespace: &namespaces.Namespace{Name: ns}})
	c.Runtime = &containers.Container_Runtime{Name: "io.containerd.runc.v2"}
	got, err := containers.NewContainersClient(d.conn).Create(d.ctx(ns), &containers.CreateContainerRequest{Container: c})
	d.must(err)
	return got.GetContainer().GetCreatedAt().AsTime()
}

// run makes a container that runs the script and returns its process.
func (d *daemon) run(ns, id, script string) int {
	d.Helper()
	d.create(ns, &containers.Container{ID: id, Image: "img", Spec: d.spec(id, nil, "/bin/sh", "-c", script)})
	return d.startTask(ns, id)
}

func (d *daemon) startTask(ns, id string) int {
	d.Helper()
	own, err := anypb.New(&options.Options{Root: filepath.Join(d.dir, "runc")}) // separate from the ids of other daemons
	d.must(err)
	own.TypeUrl = strings.TrimPrefix(own.TypeUrl, "type.googleapis.com/")
	api := tasks.NewTasksClient(d.conn)
	_, err = api.Create(d.ctx(ns), &tasks.CreateTaskRequest{
		ContainerID: id, Options: own,
		Rootfs: []*types.Mount{{Type: "bind", Source: d.rootfs, Options: []string{"rbind", "rw"}}},
	})
	d.must(err)
	got, err := api.Start(d.ctx(ns), &tasks.StartRequest{ContainerID: id})
	d.must(err)
	return int(got.GetPid())
}

// exec runs a second process in a container and waits for its end. The container continues.
func (d *daemon) exec(ns, id, script string) {
	d.Helper()
	b, err := json.Marshal(&specs.Process{Args: []string{"/bin/sh", "-c", script}, Cwd: "/"})
	d.must(err)
	api := tasks.NewTasksClient(d.conn)
	_, err = api.Exec(d.ctx(ns), &tasks.ExecProcessRequest{
		ContainerID: id, ExecID: "second", Spec: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: b},
	})
	d.must(err)
	_, err = api.Start(d.ctx(ns), &tasks.StartRequest{ContainerID: id, ExecID: "second"})
	d.must(err)
	got, err := api.Wait(d.ctx(ns), &tasks.WaitRequest{ContainerID: id, ExecID: "second"})
	d.must(err)
	if got.GetExitStatus() != 5 {
		d.Errorf("the second process ended with %d", got.GetExitStatus())
	}
}

func (d *daemon) end(ns, id string) {
	d.endTask(d.ctx(ns), id)
	d.delete(ns, id)
}

func (d *daemon) delete(ns, id string) {
	d.Helper()
	_, err := containers.NewContainersClient(d.conn).Delete(d.ctx(ns), &containers.DeleteContainerRequest{ID: id})
	d.must(err)
}

type recorder struct {
	mu     sync.Mutex
	known  map[string]model.Container // at the snapshot
	events []model.Event
}

func record1(s *Source) *recorder {
	r := &recorder{}
	s.Watch(func(e model.Event) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.events = append(r.events, e)
	})
	s.Snapshot(func(all []model.Container) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.known, r.events = byID(all), nil
	})
	return r
}

func (r *recorder) of(id string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.Container.ID == id {
			e.Container.PID = 0
			out = append(out, line(e))
		}
	}
	return out
}

const soon = 30 * time.Second

func eventually(t *testing.T, within time.Duration, what string, f func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !f() {
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}

// listed reads until each socket was listed: on a busy machine this takes longer than the first Read waits.
func listed(t *testing.T, s *Source) model.Snapshot {
	t.Helper()
	began := time.Now()
	snap, err := s.Read(t.Context())
	took := time.Since(began)
	well := func() bool {
		return err == nil && len(snap.DeviceStates) > 0 &&
			!slices.ContainsFunc(snap.DeviceStates, func(d model.DeviceState) bool { return d.State != model.StateOK })
	}
	if !well() && took < firstRead {
		t.Errorf("the first Read did not wait: %v, %+v", err, snap.DeviceStates)
	}
	eventually(t, soon, "the first list", func() bool {
		if !well() {
			snap, err = s.Read(t.Context())
		}
		return well()
	})
	return snap
}

func resolved(s *Source) map[string]model.Container {
	snap, _ := s.Resolve(context.Background(), nil)
	return byID(snap.Containers)
}

func open(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

const (
	podUID    = "0b0ef6b8-2f5e-4b0b-9b0a-0d6a4a2f7c11"
	sandboxID = "1111111111111111111111111111111111111111111111111111111111111111"
	appID     = "2222222222222222222222222222222222222222222222222222222222222222"
)

// createPod creates a sandbox and a container as containerd's CRI plugin does.
func (d *daemon) createPod() (created time.Time) {
	labels := func(kind string) map[string]string {
		return map[string]string{
			labelPodName: "train-0", labelPodNamespace: "ml", labelPodUID: podUID, labelKind: kind,
		}
	}
	sandbox := labels("sandbox")
	sandbox["team"] = "an image's"
	d.create("k8s.io", &containers.Container{
		ID: sandboxID, Image: "registry/pause:3.9", Labels: sandbox, Spec: d.spec(sandboxID, nil, "x"),
		Extensions: map[string]*anypb.Any{extensionSandbox: {
			TypeUrl: "github.com/containerd/cri/pkg/store/sandbox/Metadata",
			Value: []byte(`{"Version":"v1","Metadata":{"ID":"` + sandboxID + `","Config":{"metadata":{"name":"train-0","uid":"` + podUID +
				`","namespace":"ml"},"labels":{"team":"vision"},"annotations":{"owner":"alice","other":"x"}}}}`),
		}},
	})
	app := labels("container")
	app[labelContainerName], app["team"], app["role"] = "worker", "an image's", "an image's"
	return d.create("k8s.io", &containers.Container{
		ID: appID, Image: "sha256:feed", Labels: app,
		Spec: d.spec(appID, map[string]string{annotationSandboxID: sandboxID, annotationImageName: "registry/train:1"}, "/bin/sh", "-c", "sleep 1000"),
		Extensions: map[string]*anypb.Any{extensionContainer: {
			TypeUrl: "github.com/containerd/cri/pkg/store/container/Metadata",
			Value: []byte(`{"Version":"v1","Metadata":{"ID":"` + appID + `","Config":{"metadata":{"name":"worker","attempt":3},` +
				`"image":{"image":"x"},"labels":{"` + labelPodName + `":"train-0","` + labelPodNamespace + `":"ml","` +
				labelPodUID + `":"` + podUID + `"}},"ImageRef":"sha256:beef"}}`),
		}},
	})
}

func TestContainerd(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, withoutCRI)
	created := d.createPod()
	app := d.startTask("k8s.io", appID)
	ran := time.Now()
	d.create("moby", &containers.Container{ID: strings.Repeat("3", 64), Spec: d.spec("3", nil, "x")})
	s := open(t, Options{
		Sockets: []Socket{{"containerd", d.socket()}}, Labels: []string{"team", "owner"},
		CgroupOf: func(pid int, id, path string) (string, bool) {
			if pid == app && id == appID {
				return path, true
			}
			return "", true
		},
	})
	snap := listed(t, s)
	if len(snap.DeviceStates) != 1 || snap.DeviceStates[0] != (model.DeviceState{Source: "runtime", Device: "containerd", State: model.StateOK}) {
		t.Fatalf("%+v", snap.DeviceStates)
	}
	started := resolved(s)[appID].Started // the task was started before the subscription
	if started.Sub(created) < -50*time.Millisecond || started.Sub(ran) > 5*time.Second {
		t.Errorf("started %v, made %v, ran %v", started, created, ran)
	}
	pod := map[string]string{"team": "vision", "owner": "alice"}
	restarts := uint64(3)
	if d := cmp.Diff(map[string]model.Container{
		sandboxID: {
			ID: sandboxID, Runtime: "containerd", Namespace: "ml", Pod: "train-0", PodUID: podUID, Sandbox: true,
			Image: "registry/pause:3.9", Labels: pod, Devices: []string{"/dev/infiniband/uverbs0"},
			Status: "created", Created: resolved(s)[sandboxID].Created,
		},
		appID: {
			ID: appID, Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: podUID,
			Image: "registry/train:1", ImageID: "sha256:beef", Labels: pod, Devices: []string{"/dev/infiniband/uverbs0"},
			PID: app, Status: "running", Restarts: &restarts, Created: created, Started: started,
			Cgroup: "/" + filepath.Base(d.dir) + "-" + appID,
		},
	}, resolved(s)); d != "" {
		t.Fatalf("the containers after the first read:\n%s", d)
	}

	r := record1(s)
	d.run("default", "web", "sleep 2; exit 3")
	eventually(t, soon, "the exit event", func() bool { return len(r.of("web")) == 3 })
	web := resolved(s)["web"]
	if web.Name != "web" || web.Cgroup != "/"+filepath.Base(d.dir)+"-web" || web.Image != "img" || web.Started.IsZero() || !web.Finished.After(web.Started) || web.PID != 0 {
		t.Errorf("%+v", web)
	}
	d.endTask(d.ctx("default"), "web")
	pid := d.startTask("default", "web") // a second run, which is killed
	eventually(t, soon, "the second start", func() bool { return resolved(s)["web"].PID == pid })
	api := tasks.NewTasksClient(d.conn)
	eventually(t, soon, "the pause", func() bool { // runc gives up freezing after a short time, which a busy machine may exceed
		_, err := api.Pause(d.ctx("default"), &tasks.PauseTaskRequest{ContainerID: "web"})
		return err == nil
	})
	_, err := api.Resume(d.ctx("default"), &tasks.ResumeTaskRequest{ContainerID: "web"})
	d.must(err)
	d.must(unix.Kill(pid, unix.SIGKILL))
	eventually(t, soon, "the second exit", func() bool { return resolved(s)["web"].Status == "exited" })
	d.endTask(d.ctx("default"), "web")
	d.delete("default", "web")
	d.run("other", "web", "sleep 1000")
	eventually(t, soon, "the deletion and the other web", func() bool {
		return len(r.of("web")) == 8 && resolved(s)["other/web"].Status == "running"
	})
	if d := cmp.Diff([]string{
		"create web created", "start web running", "exit web exited code=3",
		"start web running", "pause web paused", "resume web running", "exit web exited code=137 signal=9", "delete web exited",
	}, r.of("web")); d != "" {
		t.Error(d)
	}
	d.run("default", "oom", "tail /dev/zero; exit 9")
	eventually(t, soon, "the end by OOM", func() bool { return resolved(s)["oom"].Status == "exited" })
	// The kernel's notice and the exit arrive on different paths: the runtime reports them in either order.
	eventually(t, soon, "what the runtime says of it", func() bool {
		events := strings.Join(r.of("oom"), "\n")
		return strings.Contains(events, "oom oom ") && strings.Contains(events, "exit oom exited code=")
	})
	d.exec("other", "web", "exit 5")
	d.end("other", "web")
	eventually(t, soon, "all of the other web", func() bool { return len(r.of("other/web")) >= 4 })
	if d := cmp.Diff([]string{
		"create other/web created", "start other/web running", "exit other/web exited code=137 signal=9", "delete other/web exited",
	}, r.of("other/web")); d != "" {
		t.Error(d)
	}
	if resolved(s)["web"].Name != "web" || resolved(s)["other/web"].Name != "other/web" {
		t.Errorf("names: %+v", resolved(s))
	}
}

// TestContainerdKilled kills containerd while a container ends and another runs, and reads names all the time.
func TestContainerdKilled(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, withoutCRI)
	d.createPod()
	d.startTask("k8s.io", appID)
	pid := d.run("default", "ends", "sleep 1000")
	d.create("default", &containers.Container{ID: "never", Image: "x", Spec: d.spec("never", nil, "x")})
	s := open(t, Options{Sockets: []Socket{{"containerd", d.socket()}}})
	listed(t, s)
	r := record1(s)
	if len(r.known) != 4 {
		t.Fatalf("%v", r.known)
	}

	stop, wrong := make(chan struct{}), make(chan string, 1)
	var scraper sync.WaitGroup
	scraper.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(2 * time.Millisecond):
			}
			if c := resolved(s)[appID]; c.Pod != "train-0" || c.Name != "worker" || c.Status != "running" {
				select {
				case wrong <- fmt.Sprintf("%+v", c):
				default:
				}
			}
		}
	})
	for round := range 2 {
		d.kill()
		eventually(t, soon, "the state is reported", func() bool { return state(s) != model.StateOK })
		if round == 0 {
			d.must(unix.Kill(pid, unix.SIGKILL))
		}
		time.Sleep(200 * time.Millisecond)
		d.start()
		t.Logf("healed %v after it answered", eventually(t, soon, "followed again", func() bool { return state(s) == model.StateOK }))
		if round == 0 {
			d.endTask(d.ctx("default"), "ends") // events arrive again
			d.delete("default", "ends")
			eventually(t, soon, "events", func() bool { return len(r.of("ends")) == 2 })
		}
	}
	close(stop)
	scraper.Wait()
	select {
	case c := <-wrong:
		t.Error("at a scrape:", c)
	default:
	}
	ends := r.of("ends")
	ends[0] = strings.TrimSuffix(ends[0], " R") // containerd reports it after the list or before
	if d := cmp.Diff([]string{"exit ends exited code=137 signal=9", "delete ends exited"}, ends); d != "" {
		t.Error(d)
	}
	if other := slices.Concat(r.of(appID), r.of(sandboxID), r.of("never")); other != nil {
		t.Errorf("events of an unchanged container: %q", other)
	}
}

// TestContainerdHangs stops containerd. Its socket continues to accept connections.
func TestContainerdHangs(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, withoutCRI)
	d.createPod()
	s := open(t, Options{Sockets: []Socket{{"containerd", d.socket()}}})
	listed(t, s)
	d.must(d.cmd.Process.Signal(unix.SIGSTOP))
	t.Cleanup(func() { d.cmd.Process.Signal(unix.SIGCONT) })
	took := eventually(t, checkEvery+callTimeout+soon, "stuck", func() bool { return state(s) == model.StateStuck })
	if c := resolved(s)[appID]; c.Pod != "train-0" {
		t.Errorf("%+v", c)
	}
	d.must(d.cmd.Process.Signal(unix.SIGCONT))
	t.Logf("noticed after %v, healed after %v", took, eventually(t, soon, "healed", func() bool { return state(s) == model.StateOK }))
}

func state(s *Source) model.State {
	snap, _ := s.Read(context.Background())
	for _, d := range snap.DeviceStates {
		return d.State
	}
	return ""
}
