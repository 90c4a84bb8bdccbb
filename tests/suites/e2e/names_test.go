// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/tests/machines/otel"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const otelcolVar = "ACCELSCOPE_OTELCOL" // the OpenTelemetry Collector

// TestNames checks names, states and usage of containers with the real runtimes: containerd with its CRI, Docker
// Engine, podman.
func TestNames(t *testing.T) {
	runParallel(t)
	for _, n := range nodes(namesScenarios) {
		t.Run(n.String(), func(t *testing.T) {
			if n.tier != "" {
				t.Skip("names do not depend on the tier of the probes")
			}
			opts := n.options(t)
			if os.Getenv(binaryVar) == "" {
				collector, err := otel.Build(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if os.Getenv(churnVar) != "" { // 500 containers take a quarter of an hour
					opts.Timeout = 40 * time.Minute
				}
				opts.Env = append(opts.Env, otelcolVar+"="+collector, churnVar+"="+os.Getenv(churnVar))
			}
			if guest.Enter(t, opts) {
				play(t, n, namesScenarios, newWorld(t))
			}
		})
	}
}

var namesScenarios = []scenario[*world]{
	{"names", (*world).names, "6.1//v1", notMany},
	{"lives", (*world).lives, "6.12", notMany},
	{"usage", (*world).usage, "6.1//v1", notMany},
	{"restarts", (*world).restarts, "6.12", notMany},
	{"events", (*world).events, "6.12", nil},
	{"opt-out", (*world).optOut, "6.12", func(n node) bool { return notMany(n) && n.uprobes() }},
}

// notMany reports whether the test should run more than the events of many containers.
func notMany(node) bool { return os.Getenv(churnVar) == "" }

// world is a guest with all runtimes.
type world struct {
	programs   string
	containerd *guest.Containerd
	cri        *guest.CRI
	docker     *guest.Docker
	podman     *guest.Podman
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{programs: os.Getenv(workloadsVar)}
	var err error
	for _, begin := range []func() error{
		func() error { w.containerd, err = guest.StartContainerd(t.Context()); return err },
		func() error { w.cri, err = w.containerd.StartCRI(t.Context()); return err },
		func() error { w.docker, err = guest.StartDocker(t.Context(), "cgroupfs"); return err },
		func() error { w.podman, err = guest.StartPodman(t.Context()); return err },
	} {
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// identity are the labels that identify the owner of a series.
type identity struct {
	workload, namespace, pod, container, id string
}

func identityOf(x *dto.Metric) identity {
	return identity{
		label(x, "workload"), label(x, "namespace"), label(x, "pod"), label(x, "container"), label(x, "container_id"),
	}
}

// owner is a workload with the labels that the sensor must show.
type owner struct {
	identity
	runtime, image, uid string // labels of accelscope_workload_info
	qps                 float64
	early               bool // it started before the sensor, which may have missed its calls
}

// verbs returns the command of a workload that holds this many QPs, and registers a page for each.
func (w *world) verbs(qps int) []string {
	return []string{filepath.Join(w.programs, "verbs"), "-d", "rxe0", "-q", strconv.Itoa(qps), "-m", strconv.Itoa(qps * 4096)}
}

var uverbs = []string{"/dev/infiniband/uverbs0"}

// member is a container of a pod with that workload.
func (w *world) member(name string, qps int) guest.PodMember {
	return guest.PodMember{Name: name, Command: w.verbs(qps), Devices: uverbs, Mounts: []string{w.programs}}
}

// inPod returns the expected owner of a container of a pod.
func inPod(p *guest.Pod, name, id string, qps int) owner {
	return owner{
		identity{p.Namespace + "/" + p.Name + "/" + name, p.Namespace, p.Name, name, id},
		"containerd", guest.Image, p.UID, float64(qps), false,
	}
}

// flags returns the flags of docker and podman for a container with RDMA.
func (w *world) flags(name string, more ...string) []string {
	return append([]string{
		"--name=" + name, "--network=none", "--device=" + uverbs[0], "--volume=" + w.programs + ":" + w.programs + ":ro",
	}, more...)
}

// runPod runs a pod and removes it at the end of the test.
func (w *world) runPod(t *testing.T, p *guest.Pod) *guest.Pod {
	t.Helper()
	if err := w.cri.RunPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.cri.RemovePod(context.Background(), p) })
	return p
}

func (w *world) run(t *testing.T, p *guest.Pod, m guest.PodMember) string {
	t.Helper()
	id, err := w.cri.Run(t.Context(), p, m)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// runDocker runs a container with docker and removes it at the end of the test.
func (w *world) runDocker(t *testing.T, flags []string, command ...string) string {
	t.Helper()
	id, err := w.docker.Run(t.Context(), flags, command...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = w.docker.Do(context.Background(), "rm", "-f", id) })
	return id
}

// slurm runs a program in the cgroup of a job step.
func (w *world) slurm(t *testing.T, job string, command ...string) *exec.Cmd {
	t.Helper()
	dir := filepath.Join(cgroupRoot(), "system.slice/slurmstepd.scope/job_"+job+"/step_0/user/task_0")
	if strings.HasSuffix(cgroupRoot(), "/memory") {
		dir = filepath.Join(cgroupRoot(), "slurm/uid_1000/job_"+job+"/step_0/task_0")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := child.Command(context.Background(), "sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs"; exec "$@"`, dir}, command...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// names: each workload is shown under its given name, by every runtime.
func (w *world) names(t *testing.T) {
	ctx := t.Context()
	var owners []owner
	qps := 0
	// Some containers exist before the sensor starts; the sensor observes the start of the others.
	pods := []*guest.Pod{
		{Namespace: "default", Name: "train-0", Labels: map[string]string{"app": "train"}},
		{Namespace: "ml", Name: "train-0", Annotations: map[string]string{"team": "vision"}},
	}
	runPod := func(p *guest.Pod) {
		w.runPod(t, p)
		for _, name := range []string{"worker", "sidecar"} {
			qps++
			owners = append(owners, inPod(p, name, w.run(t, p, w.member(name, qps)), qps))
		}
	}
	runDocker := func(name string, flags ...string) {
		qps++
		id := w.runDocker(t, w.flags(name, flags...), w.verbs(qps)...)
		owners = append(owners, owner{identity{workload: "docker:" + name, id: id}, "docker", guest.Image, "", float64(qps), false})
	}
	runPod(pods[0])
	runDocker("before")
	for i := range owners {
		owners[i].early = true
	}
	s := start(t, "--workload.labels=app,team")
	runPod(pods[1])
	runDocker("after")
	runDocker("task", "--cgroup-parent=/ecs/48cb34f5") // as Amazon ECS

	qps++
	id, err := w.podman.Run(ctx, w.flags("solo"), w.verbs(qps)...)
	if err != nil {
		t.Fatal(err)
	}
	defer w.podman.Do(context.Background(), "rm", "-f", "-t", "0", id) //nolint:errcheck // the guest ends with the test
	owners = append(owners, owner{identity{workload: "podman:solo", id: id}, "podman", guest.Image, "", float64(qps), false})

	// ctr, with a cgroup path that does not contain its id.
	qps++
	plain := guest.Container{ID: "plain-1", Cgroup: "/jobs/one", Devices: uverbs, Mounts: []string{w.programs}, Command: w.verbs(qps)}
	if _, err := w.containerd.Run(ctx, plain); err != nil {
		t.Fatal(err)
	}
	defer w.containerd.Delete(context.Background(), plain.ID) //nolint:errcheck // the guest ends with the test
	owners = append(owners, owner{
		identity{workload: "containerd:plain-1", id: guest.Namespace + "/" + plain.ID}, "containerd", "", "", float64(qps), false,
	})

	qps++
	w.slurm(t, "4711", w.verbs(qps)...)
	owners = append(owners, owner{identity{workload: "slurm:4711"}, "slurm", "", "", float64(qps), false})

	took := eventually(t, 30*time.Second, func() error { return named(s.scrape(), owners) })
	t.Logf("all %d names right after %v", len(owners), took.Round(time.Millisecond))
	m := s.fresh()
	if err := named(m, owners); err != nil {
		t.Error(err)
	}
	for _, o := range owners {
		info := m.all("accelscope_workload_info", "workload", o.workload, "container_id", o.id)
		if len(info) != 1 {
			t.Errorf("%d times accelscope_workload_info of %s", len(info), o.workload)
			continue
		}
		for name, want := range map[string]string{"runtime": o.runtime, "image": o.image, "pod_uid": o.uid} {
			if got := label(info[0], name); got != want {
				t.Errorf("%s of %s is %q, want %q", name, o.workload, got, want)
			}
		}
	}
	if n := m.sum("accelscope_slurm_step_info", "workload", "slurm:4711", "job_id", "4711", "step", "0"); n != 1 {
		t.Errorf("%v times accelscope_slurm_step_info of job 4711, step 0", n)
	}
	for _, x := range m["accelscope_workload_info"].GetMetric() {
		app, team := "", ""
		switch label(x, "namespace") {
		case "default":
			app = "train"
		case "ml":
			team = "vision"
		}
		if label(x, "label_app") != app || label(x, "label_team") != team {
			t.Errorf("labels of %v, want %q and %q", x.GetLabel(), app, team)
		}
	}

	// A name belongs to one container: its successor has its own name.
	if err := w.cri.RemovePod(ctx, pods[1]); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error { // the interface of the next container counts from zero, after these series are gone
		if left := s.fresh().all("container_network_receive_bytes_total", "namespace", "ml"); len(left) != 0 {
			return fmt.Errorf("the pod is gone, and has %v", left)
		}
		return nil
	})
	gone := slices.DeleteFunc(slices.Clone(owners), func(o owner) bool { return o.namespace != "ml" })
	again := &guest.Pod{Namespace: "ml", Name: "train-0"}
	w.runPod(t, again)
	qps++
	follower := inPod(again, "worker", w.run(t, again, w.member("worker", qps)), qps)
	eventually(t, 30*time.Second, func() error {
		m := s.scrape()
		if err := named(m, []owner{follower}); err != nil {
			return err
		}
		for _, o := range gone {
			if v := m.sum("container_rdma_resources", "container_id", o.id, "type", "qp"); v != 0 {
				return fmt.Errorf("%s, which is gone, holds %v QPs", o.workload, v)
			}
		}
		return nil
	})
	s.stop()
}

// named returns an error if an owner's objects, or any other value of the owner, have a wrong name.
func named(m metrics, owners []owner) error {
	byID := map[string]owner{}
	for _, o := range owners {
		if o.id != "" {
			byID[o.id] = o
		}
		labels := []string{
			"workload", o.workload, "namespace", o.namespace, "pod", o.pod, "container", o.container, "container_id", o.id,
		}
		if got := m.sum("container_rdma_resources", append(labels, "type", "qp")...); got != o.qps {
			return fmt.Errorf("%s has %v QPs, want %v", o.workload, got, o.qps)
		}
		if got := m.sum("container_rdma_registered_bytes", labels...); got != o.qps*4096 {
			return fmt.Errorf("%s has registered %v bytes, want %v", o.workload, got, o.qps*4096)
		}
		got := m.sum("container_rdma_verbs_total", append(labels, "verb", "create_qp")...)
		if got != o.qps && (!o.early || got != 0) {
			return fmt.Errorf("%s has called create_qp %v times, want %v", o.workload, got, o.qps)
		}
	}
	for name, family := range m {
		if !strings.HasPrefix(name, "container_") && name != "accelscope_workload_info" {
			continue
		}
		for _, x := range family.GetMetric() {
			is := identityOf(x)
			if o, ok := byID[is.id]; ok && is != o.identity {
				return fmt.Errorf("%s of %+v, want %+v", name, is, o.identity)
			}
			if is.workload == "" && is != (identity{}) {
				return fmt.Errorf("%s of %+v, which has no workload", name, is)
			}
		}
	}
	return nil
}

// lives: start, state, health and restarts equal the runtimes' reports.
func (w *world) lives(t *testing.T) {
	ctx := t.Context()
	s := start(t)
	p := w.runPod(t, &guest.Pod{Namespace: "default", Name: "lives", HostNetwork: true})
	sleeper := guest.PodMember{Name: "main", Command: []string{"/bin/busybox", "sleep", "1000"}}
	first := w.run(t, p, sleeper)
	created, err := w.cri.Create(ctx, p, guest.PodMember{Name: "waiting", Command: sleeper.Command})
	if err != nil {
		t.Fatal(err)
	}
	sick := w.runDocker(t, []string{
		"--name=sick", "--network=none", "--health-cmd=test ! -e /tmp/sick", "--health-interval=1s", "--health-retries=1",
	}, "/bin/busybox", "sleep", "1000")
	phoenix := w.runDocker(t, []string{"--name=phoenix", "--network=none", "--restart=always"}, "/bin/busybox", "sleep", "1000")

	started := func(id string) float64 {
		t.Helper()
		at, err := w.docker.Do(ctx, "inspect", "-f", "{{.State.StartedAt}}", id)
		if err != nil {
			t.Fatal(err)
		}
		when, err := time.Parse(time.RFC3339Nano, strings.TrimSpace(at))
		if err != nil {
			t.Fatal(err)
		}
		return float64(when.UnixNano()) / 1e9
	}
	criStarted := func(id string) float64 {
		t.Helper()
		res, err := w.cri.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
		if err != nil {
			t.Fatal(err)
		}
		return float64(res.GetStatus().GetStartedAt()) / 1e9
	}
	is := func(m metrics, id, state string) error {
		want := map[string]float64{"created": 0, "running": 0, "paused": 0, "exited": 0}
		want[state] = 1
		if got := m.by("container_state", "state", "container_id", id); !maps.Equal(got, want) {
			return fmt.Errorf("%.12s: container_state %v, want %s", id, got, state)
		}
		return nil
	}
	starts := func(m metrics, id string, want float64) error {
		if got := m.sum("container_start_time_seconds", "container_id", id); math.Abs(got-want) > 1 {
			return fmt.Errorf("%.12s started at %.3f, want %.3f", id, got, want)
		}
		return nil
	}
	restarts := func(m metrics, id string, want float64) error {
		if got := m.all("container_restarts_total", "container_id", id); len(got) != 1 || got[0].GetCounter().GetValue() != want {
			return fmt.Errorf("%.12s: restarts %v, want %v", id, got, want)
		}
		return nil
	}
	health := func(m metrics, id, want string) error {
		if got := m.by("container_health", "health", "container_id", id); got[want] != 1 || got["healthy"]+got["unhealthy"]+got["starting"] != 1 {
			return fmt.Errorf("%.12s: health %v, want %s", id, got, want)
		}
		return nil
	}

	eventually(t, 60*time.Second, func() error {
		m := s.scrape()
		return errors.Join(
			is(m, first, "running"), is(m, created, "created"), is(m, sick, "running"), is(m, phoenix, "running"),
			starts(m, first, criStarted(first)), starts(m, sick, started(sick)), starts(m, phoenix, started(phoenix)),
			restarts(m, first, 0), restarts(m, phoenix, 0), health(m, sick, "healthy"),
		)
	})

	// The process is killed; its runtime starts another process.
	s.reborn = phoenix
	pid, err := w.docker.Do(ctx, "inspect", "-f", "{{.State.Pid}}", phoenix)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(pid))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(number, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"exec", sick, "/bin/busybox", "touch", "/tmp/sick"}, {"pause", phoenix}} {
		if command[0] == "pause" {
			eventually(t, 60*time.Second, func() error {
				if count, err := w.docker.Do(ctx, "inspect", "-f", "{{.RestartCount}} {{.State.Running}}", phoenix); err != nil || strings.TrimSpace(count) != "1 true" {
					return fmt.Errorf("%q, %w", count, err)
				}
				return nil
			})
			eventually(t, 60*time.Second, func() error {
				m := s.scrape()
				return errors.Join(restarts(m, phoenix, 1), starts(m, phoenix, started(phoenix)), is(m, phoenix, "running"))
			})
		}
		if _, err := w.docker.Do(ctx, command...); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.cri.Stop(ctx, first, 0); err != nil {
		t.Fatal(err)
	}
	// Like the kubelet: a new container with the next attempt number.
	sleeper.Restarts = 1
	second := w.run(t, p, sleeper)
	eventually(t, 60*time.Second, func() error {
		m := s.scrape()
		var exit error
		if code := m.all("container_exit_code", "container_id", first); len(code) != 1 || code[0].GetGauge().GetValue() != 137 {
			exit = fmt.Errorf("exit code of %.12s: %v, want 137", first, code)
		}
		return errors.Join(
			exit, is(m, first, "exited"), is(m, second, "running"), restarts(m, second, 1), starts(m, second, criStarted(second)),
			health(m, sick, "unhealthy"), is(m, phoenix, "paused"),
		)
	})
	if err := w.cri.Remove(ctx, first); err != nil {
		t.Fatal(err)
	}
	eventually(t, 60*time.Second, func() error {
		if left := s.scrape().all("container_state", "container_id", first, "state", "running"); len(left) != 0 && left[0].GetGauge().GetValue() != 0 {
			return fmt.Errorf("a container that was removed is %v", left)
		}
		return nil
	})
	if _, err := w.docker.Do(ctx, "unpause", phoenix); err != nil {
		t.Error(err)
	}
	s.stop()
}
