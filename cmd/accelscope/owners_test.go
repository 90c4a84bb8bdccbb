// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// ownerNode is a node with cgroups made by hand, whose processes use one GPU.
type ownerNode struct {
	gpuNode
	next int // process
}

func newOwnerNode(t *testing.T) *ownerNode {
	t.Helper()
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &ownerNode{gpuNode: gpuNode{Manifest: m, Scenario: s}, next: 2000}
	n.AddH100(0)
	n.bind(t, 1)
	return n
}

// begin starts the sensor and waits for the memory of each workload on the GPU, in bytes.
func (n *ownerNode) begin(t *testing.T, binary, library string, want map[string]float64, more ...string) exposition {
	t.Helper()
	n.Balance()
	n.write(t)
	n.start(t, binary, library, time.Second, append([]string{
		"--path.procfs=" + n.ProcFS(), "--path.cgroup=" + n.CgroupFS(), "--container.scope=all", "--collector.container",
	}, more...)...)
	used := map[string]float64{}
	for end := time.Now().Add(quickly); time.Now().Before(end); time.Sleep(300 * time.Millisecond) {
		e := scrape(t, n.url)
		used = e.by("container_gpu_memory_used_bytes", "workload")
		delete(used, "")
		if maps.Equal(used, want) {
			return e
		}
	}
	t.Fatalf("GPU memory by workload (-want +got):\n%s", cmp.Diff(want, used))
	return exposition{}
}

func (n *ownerNode) file(t *testing.T, path, text string) {
	t.Helper()
	path = filepath.Join(n.Dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// process adds a process of root in cgroups, a line for each hierarchy, and returns its number.
func (n *ownerNode) process(t *testing.T, cgroups string) int {
	t.Helper()
	n.next++
	dir := fmt.Sprintf("proc/%d/", n.next)
	n.file(t, dir+"cgroup", cgroups)
	n.file(t, dir+"comm", "python3\n")
	n.file(t, dir+"status", "Name:\tpython3\nUid:\t0\t0\t0\t0\n")
	n.file(t, dir+"stat", fmt.Sprintf("%d (python3) S 1 1 1 0 -1 0 0 0 0 0 1 1 0 0 20 0 1 0 1000 1 1%s\n", n.next, strings.Repeat(" 0", 28)))
	return n.next
}

// v2 makes a cgroup of version 2 with one process, and returns the number of the process.
func (n *ownerNode) v2(t *testing.T, path string) int {
	t.Helper()
	pid := n.process(t, "0::"+path+"\n")
	n.file(t, "sys/fs/cgroup"+path+"/cgroup.procs", strconv.Itoa(pid)+"\n")
	n.file(t, "sys/fs/cgroup"+path+"/memory.current", "4096\n")
	return pid
}

// uses makes a process use the GPU.
func (n *ownerNode) uses(pid int, memory uint64) {
	n.Processes = append(n.Processes, nvml.Process{Device: "0", PID: pid, Memory: memory, Kinds: "C"})
}

// container is an answer of Docker.
func dockerContainer(id, name, parent string, pid int) map[string]any {
	return map[string]any{
		"Id": id, "Name": "/" + name, "Created": "2025-01-01T00:00:00Z", "Image": "sha256:" + id,
		"State":      map[string]any{"Status": "running", "Pid": pid, "StartedAt": "2025-01-01T00:00:01Z"},
		"Config":     map[string]any{"Image": "i"},
		"HostConfig": map[string]any{"CgroupParent": parent, "DeviceRequests": []any{map[string]any{"Driver": "nvidia", "Count": -1}}},
	}
}

// docker serves the API of Docker for these containers, and returns the socket.
func docker(t *testing.T, containers ...map[string]any) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := any(map[string]string{"message": "none"})
		switch _, path, _ := strings.Cut(r.URL.Path, "/v1."); {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
			w.Header().Set("Api-Version", "1.52")
		case strings.HasSuffix(path, "/events"):
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		case strings.HasSuffix(path, "/containers/json"):
			list := []any{}
			for _, c := range containers {
				list = append(list, map[string]any{"Id": c["Id"], "Names": []any{c["Name"]}, "State": "running"})
			}
			answer = list
		default:
			i := slices.IndexFunc(containers, func(c map[string]any) bool { return strings.Contains(path, fmt.Sprint(c["Id"])) })
			if i < 0 {
				w.WriteHeader(http.StatusNotFound)
				break
			}
			answer = containers[i]
		}
		_ = json.NewEncoder(w).Encode(answer)
	})}
	go server.Serve(l) //nolint:errcheck // until it is closed
	t.Cleanup(func() { _ = server.Close() })
	return socket
}

// generated returns a container id.
func generated(digit string) string { return strings.Repeat(digit, 64) }

// TestOwnersDockerParents: what Docker lists names its containers, whatever their parents.
func TestOwnersDockerParents(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	n := newOwnerNode(t)
	var containers []map[string]any
	want := map[string]float64{}
	for i, parent := range []string{"", "/ecs/48cb34f5", "/actions_job", "gpu.slice", "user-1000.slice", "/gpu.slice"} {
		id, name := generated(strconv.Itoa(i+1)), fmt.Sprint("c", i)
		path := parent + "/" + id
		switch parent {
		case "":
			path = "/docker/" + id
		case "gpu.slice":
			path = "/gpu.slice/docker-" + id + ".scope"
		case "user-1000.slice":
			path = "/user.slice/user-1000.slice/docker-" + id + ".scope"
		}
		pid := n.v2(t, path)
		n.uses(pid, uint64(i+1)<<20)
		want["docker:"+name] = float64((i + 1) << 20)
		containers = append(containers, dockerContainer(id, name, parent, pid))
	}
	e := n.begin(t, binary, library, want, "--collector.runtime", "--runtime.socket=docker:"+docker(t, containers...))
	defer ends(t, n.stop)
	one := map[string]float64{}
	for workload := range want {
		one[workload] = 1
	}
	processes := e.by("container_gpu_processes", "workload")
	delete(processes, "")
	if d := cmp.Diff(one, processes); d != "" {
		t.Errorf("processes: (-want +got)\n%s", d)
	}
	n.until(t, "the memory of the containers is shown", func(e exposition) bool {
		memory := e.by("container_memory_usage_bytes", "workload")
		for workload := range want {
			if memory[workload] != 4096 {
				return false
			}
		}
		return true
	})
}

// TestOwnersBelowOthers: what a container below a job, a service or a guest uses belongs to them, so that its own figures are not zero.
func TestOwnersBelowOthers(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	n := newOwnerNode(t)
	var containers []map[string]any
	want := map[string]float64{}
	for i, parent := range []struct{ path, owner string }{
		{"/lsf/cluster1/job.12.10492.1519752391", "lsf:12"},
		{"/pbs_jobs.service/jobid/12.pbs", "pbs:12.pbs"},
		{"/system.slice/slurmstepd.scope/job_7/step_0", "slurm:7"},
		{"/system.slice/foo.service/docker", "unit:foo.service"},
		{"/lxc/101", "lxc:101"},
	} {
		id := generated(strconv.Itoa(i + 1))
		pid := n.v2(t, parent.path+"/"+id)
		n.uses(pid, uint64(i+1)<<20)
		want[parent.owner] = float64((i + 1) << 20)
		containers = append(containers, dockerContainer(id, fmt.Sprint("c", i), parent.path, pid))
	}
	n.begin(t, binary, library, want, "--collector.runtime", "--runtime.socket=docker:"+docker(t, containers...))
	defer ends(t, n.stop)
	n.until(t, "the GPU is given to all containers", func(e exposition) bool {
		processes := e.by("container_gpu_processes", "workload")
		for workload := range processes {
			if strings.HasPrefix(workload, "docker:") {
				t.Fatalf("processes of the containers: %v", processes)
			}
		}
		return len(e.by("container_gpu_allocated", "workload")) == len(containers)
	})
}

// TestOwnersGuests: what a guest or a container makes in its own cgroup belongs to it, whatever the name.
func TestOwnersGuests(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	n := newOwnerNode(t)
	victim, lab := generated("1"), generated("2")
	pids := []int{}
	for i, path := range []string{
		"/docker/" + victim, "/lxc/101/ns/docker/" + victim, "/lab/" + lab + "/docker/" + victim, "/lxc.payload/web/docker/" + victim,
		"/lxc.payload.web/docker/" + victim, "/lxc/101/ns/system.slice/ssh.service", "/lxc/101/ns/system.slice/cron.service",
		"/lxc/102/ns/kubepods/burstable/pod11111111-2222-3333-4444-555555555555/" + generated("4"),
	} {
		pids = append(pids, n.v2(t, path))
		n.uses(pids[i], 1<<(20+i))
	}
	n.begin(t, binary, library, map[string]float64{
		"docker:victim": 1 << 20, "lxc:101": 1<<21 + 1<<25 + 1<<26, "cgroup:/lab/" + lab: 1 << 22, "lxc:web": 1<<23 + 1<<24, "lxc:102": 1 << 27,
	}, "--collector.runtime", "--runtime.socket=docker:"+docker(t, dockerContainer(victim, "victim", "", pids[0])))
	ends(t, n.stop)
}

// TestOwnersSLUID has jobs of Slurm 26.05: one with its slurmstepd, one without it, and one in the form of earlier releases.
func TestOwnersSLUID(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	n := newOwnerNode(t)
	const scope = "/system.slice/slurmstepd.scope/"
	for i, path := range []string{"s5K1KKYAYG5D00/step_0/user/task_0", "s5K1KKYAYG5E00/step_batch/user/task_0", "job_77/step_0/user/task_0"} {
		n.uses(n.v2(t, scope+path), 1<<(20+i))
	}
	n.file(t, fmt.Sprintf("proc/%d/environ", n.v2(t, scope+"s5K1KKYAYG5D00/step_0/slurm")), "SLURM_JOB_ID=4711\x00")
	e := n.begin(t, binary, library, map[string]float64{"slurm:4711": 1 << 20, "slurm:s5K1KKYAYG5E00": 1 << 21, "slurm:77": 1 << 22})
	defer ends(t, n.stop)
	steps := map[string]float64{"slurm:4711 0": 1, "slurm:s5K1KKYAYG5E00 batch": 1, "slurm:77 0": 1}
	if d := cmp.Diff(steps, e.by("accelscope_slurm_step_info", "workload", "step")); d != "" {
		t.Errorf("steps: (-want +got)\n%s", d)
	}
}

// TestOwnersSLUIDNumberedLater: the number of a job is found after the use of its first steps was shown. It stays one workload.
func TestOwnersSLUIDNumberedLater(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	n := newOwnerNode(t)
	const job = "/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/"
	for i, step := range []string{"step_0", "step_1"} {
		n.uses(n.v2(t, job+step+"/user/task_0"), 1<<(20+i))
	}
	n.begin(t, binary, library, map[string]float64{"slurm:s5K1KKYAYG5D00": 3 << 20})
	defer ends(t, n.stop)
	n.file(t, fmt.Sprintf("proc/%d/environ", n.v2(t, job+"step_2/slurm")), "SLURM_JOB_ID=4711\x00")
	n.uses(n.v2(t, job+"step_2/user/task_0"), 1<<22)
	n.write(t)
	n.until(t, "all steps belong to the job", func(e exposition) bool {
		used := e.by("container_gpu_memory_used_bytes", "workload")
		delete(used, "")
		return maps.Equal(used, map[string]float64{"slurm:4711": 7 << 20})
	})
}

// TestOwnersSlurmWithoutMemory: on cgroup v1 two of three jobs have no cgroup in memory.
func TestOwnersSlurmWithoutMemory(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	n := newOwnerNode(t)
	if err := os.RemoveAll(n.CgroupFS()); err != nil {
		t.Fatal(err)
	}
	controllers := []string{"memory", "cpuset", "devices", "freezer", "cpuacct", "cpu", "pids"}
	for _, c := range controllers {
		n.file(t, "sys/fs/cgroup/"+c+"/release_agent", "\n")
	}
	for i, job := range []struct{ path, in string }{
		{"/slurm/uid_1000/job_11/step_0/task_0", "cpuset devices freezer"},
		{"/slurm/uid_1001/job_12/step_0/task_0", "cpuset devices freezer"},
		{"/slurm/uid_1001/job_13/step_batch", "memory cpuset devices freezer cpuacct cpu"},
	} {
		lines := ""
		for number, c := range controllers {
			path := "/system.slice/slurmd.service"
			if slices.Contains(strings.Fields(job.in), c) {
				path = job.path
			}
			n.file(t, "sys/fs/cgroup/"+c+path+"/cgroup.procs", "")
			lines += fmt.Sprintf("%d:%s:%s\n", 12-number, c, path)
		}
		n.uses(n.process(t, lines), 1<<(20+i))
	}
	e := n.begin(t, binary, library, map[string]float64{"slurm:11": 1 << 20, "slurm:12": 1 << 21, "slurm:13": 1 << 22})
	defer ends(t, n.stop)
	if !strings.Contains(e.only("accelscope_device_state{"), `device="hierarchy"`) {
		t.Errorf("no state of the hierarchy:\n%s", e.only("accelscope_device_state{"))
	}
}
