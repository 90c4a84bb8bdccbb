// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/otel"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	collectorAddress = "127.0.0.1:43170"
	sensorCgroup     = "/sys/fs/cgroup/accelscope"
	// soakContainers is the number of containers that are only cgroups. Every tenth holds two QPs of churnDevice. At
	// any time some have just been replaced, so usually three quarters of these QPs or more exist.
	soakContainers = 200
	churnDevice    = "rxe1"
	usualQPs       = soakContainers / 10 * 2 * 3 / 4
	trafficDevice  = "rxe0"                 // of the two pods with traffic
	soakPace       = 700 * time.Millisecond // between the ends of two of them
)

// soakLoad is what the sensor observes: runtimes, containers that stay, containers that come and go, and the collector.
type soakLoad struct {
	t          *testing.T
	ctx        context.Context
	dir        string // of the file that permits RDMA
	containerd *guest.Containerd
	docker     *guest.Docker
	otel       otel.Config
	collector  *otel.Collector
	steady     []owner  // containers that hold QPs whenever RDMA is permitted
	stay       []string // cgroups of all containers that stay

	mu    sync.Mutex
	truth map[string]owner

	made, pods atomic.Int64 // containers that came and went; containerd's
	full       atomic.Bool  // soakContainers exist: from now on they are replaced
}

func startSoakLoad(ctx context.Context, t *testing.T) *soakLoad {
	t.Helper()
	l := &soakLoad{t: t, ctx: ctx, dir: t.TempDir(), truth: map[string]owner{}}
	l.otel = otel.Config{Dir: t.TempDir(), Endpoint: collectorAddress}
	l.permit(true)
	var err error
	for _, begin := range []func() error{
		func() error { return os.MkdirAll(sensorCgroup, 0o755) },
		func() error { l.containerd, err = guest.StartContainerd(ctx); return err },
		func() error { l.docker, err = guest.StartDocker(ctx, "cgroupfs"); return err },
		l.startCollector, l.startSteady,
	} {
		if err := begin(); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// startChurn starts the containers that come and go. The sensor runs: its maps have their actions from the start on,
// like the actions of the containers that replace them.
func (l *soakLoad) startChurn() {
	var running sync.WaitGroup
	stop, cancel := context.WithCancel(l.ctx)
	l.ctx = stop
	running.Go(l.churn)
	running.Go(l.churnPods)
	l.t.Cleanup(func() { cancel(); running.Wait() })
}

// startCollector starts the collector. Its output is in the memory of the guest, and is not read.
func (l *soakLoad) startCollector() (err error) {
	if err := os.Truncate(l.otel.Output(), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l.collector, err = otel.Start(l.ctx, os.Getenv(otelcolVar), l.otel)
	return err
}

// permit permits containers to use RDMA, or forbids it and ends all processes that have a verbs context.
func (l *soakLoad) permit(rdma bool) {
	file := filepath.Join(l.dir, "rdma")
	if rdma {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			l.t.Error(err)
		}
		return
	}
	if err := os.Remove(file); err != nil {
		l.t.Error(err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		users := verbsProcesses()
		if len(users) == 0 {
			return
		}
		for _, pid := range users {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(end) {
			l.t.Errorf("processes %v do not end", users)
			return
		}
	}
}

// verbsProcesses returns the processes that have a file of /dev/infiniband open.
func verbsProcesses() (pids []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, "/dev/infiniband/") {
			var pid int
			if _, err := fmt.Sscanf(link, "/proc/%d/", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// whilePermitted returns a command that runs another whenever RDMA is permitted.
func (l *soakLoad) whilePermitted(command string) []string {
	return []string{"sh", "-c", "while :; do [ ! -e " + l.dir + "/rdma ] || " + command + "; sleep 0.5; done"}
}

// startSteady starts two pods with traffic between them, and a containerd and a Docker container that hold QPs.
func (l *soakLoad) startSteady() error {
	programs := os.Getenv(workloadsVar)
	// At its end perftest measures the clock of the CPU by the time of day, and spins for an hour if the time was set
	// back an hour meanwhile.
	const write = "timeout -s KILL 30 ib_write_bw -F -d " + trafficDevice + " -x 1 -D 5 -s 65536"
	for i, command := range []string{write, write + " 10.70.0.1", programs + "/verbs -d rxe0 -q 3 -m 8192"} {
		name := fmt.Sprint("stays-", i)
		c := guest.PodContainer("default", name, "worker", l.whilePermitted(command)...)
		c.Mounts, c.Devices = []string{programs, l.dir}, uverbs
		if _, err := l.containerd.Run(l.ctx, c); err != nil {
			return err
		}
		// perftest polls constantly, and there are only two emulated CPUs.
		if err := os.WriteFile(filepath.Join("/sys/fs/cgroup", c.Cgroup, "cpu.max"), []byte("10000 100000"), 0o644); err != nil {
			return err
		}
		o := owner{identity: identity{"default/" + name + "/worker", "default", name, "worker", c.ID}, qps: 3}
		l.expect(o)
		if i == 2 {
			l.steady = append(l.steady, o)
		}
		l.stay = append(l.stay, c.Cgroup)
	}
	flags := []string{
		"--name=stays", "--network=none", "--device=" + uverbs[0],
		"--volume=" + programs + ":" + programs + ":ro", "--volume=" + l.dir + ":" + l.dir + ":ro",
	}
	id, err := l.docker.Run(l.ctx, flags, l.whilePermitted(programs+"/verbs -d rxe0 -q 2 -m 8192")...)
	o := owner{identity: identity{workload: "docker:stays", id: id}, qps: 2}
	l.expect(o)
	l.steady = append(l.steady, o)
	l.stay = append(l.stay, "docker/"+id)
	return err
}

// sent returns how many packets the device of the pods with traffic has sent, by the kernel (hw_counters/sent_pkts).
func (l *soakLoad) sent() string {
	text, _ := os.ReadFile("/sys/class/infiniband/" + trafficDevice + "/ports/1/hw_counters/sent_pkts") // none while the driver is away
	return strings.TrimSpace(string(text))
}

// staying returns what the processes of the containers that stay wait for, and the kernel's queue pairs.
func (l *soakLoad) staying() string {
	b := &strings.Builder{}
	for _, dir := range l.stay {
		pids, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", dir, "cgroup.procs"))
		fmt.Fprintln(b, dir, err)
		for pid := range strings.FieldsSeq(string(pids)) {
			for _, file := range []string{"cmdline", "syscall", "stack"} {
				text, _ := os.ReadFile(filepath.Join("/proc", pid, file))
				fmt.Fprintln(b, pid, file, strings.TrimSpace(strings.ReplaceAll(string(text), "\x00", " ")))
			}
		}
	}
	text, err := child.Command(l.ctx, "rdma", "resource", "show", "qp").CombinedOutput()
	fmt.Fprintln(b, string(text), err)
	return b.String()
}

func (l *soakLoad) expect(o owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.truth[o.id] = o
}

func (l *soakLoad) truths() map[string]owner {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.truth)
}

type cell struct {
	dir string
	cmd *exec.Cmd
}

// churn keeps soakContainers cells, and replaces one after another.
func (l *soakLoad) churn() {
	cells := make([]*cell, soakContainers)
	defer func() {
		for _, c := range cells {
			c.end()
		}
	}()
	for i := 0; l.ctx.Err() == nil; i++ {
		slot := i * 7 % soakContainers
		if cells[slot] != nil {
			l.full.Store(true)
			time.Sleep(soakPace)
			cells[slot].end()
			l.made.Add(1)
		}
		program := []string{"sleep", "1000000"}
		if slot%10 == 0 {
			program = l.whilePermitted("verbs -d " + churnDevice + " -q 2 -m 8192")
		}
		c, err := l.newCell(fmt.Sprint("cell ", i), program...)
		if err != nil && l.ctx.Err() == nil {
			l.t.Error(err)
		}
		cells[slot] = c
	}
}

func (l *soakLoad) newCell(name string, program ...string) (*cell, error) {
	return l.newCellAt(filepath.Join(cgroupRoot(), "kubepods", "pod"+digest("pod of " + name)[:32], digest(name)), program...)
}

func (l *soakLoad) newCellAt(dir string, program ...string) (*cell, error) {
	c := &cell{dir: dir}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	group, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer group.Close()
	c.cmd = child.Command(l.ctx, program[0], program[1:]...)
	c.cmd.SysProcAttr.UseCgroupFD, c.cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(err, syscall.Rmdir(dir))
	}
	return c, nil
}

// end kills the processes and removes the cgroup, and its pod's cgroup.
func (c *cell) end() {
	if c == nil {
		return
	}
	_ = os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0o644) // since Linux 5.14
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	for range 50 { // EBUSY while the process is being reaped
		if err := syscall.Rmdir(c.dir); err != syscall.EBUSY {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	_ = syscall.Rmdir(filepath.Dir(c.dir)) // refused if other containers are in it
}

// churnPods runs pods of containerd, one after another. While it does not answer they fail.
func (l *soakLoad) churnPods() {
	left := map[string]int{} // attempts to delete containers
	for i := 0; l.ctx.Err() == nil; i++ {
		name := fmt.Sprint("load-", i)
		c := guest.PodContainer("load", name, "main", "sleep", "1000000")
		l.expect(owner{identity: identity{"load/" + name + "/main", "load", name, "main", c.ID}})
		ctx, cancel := context.WithTimeout(l.ctx, 30*time.Second)
		_, _ = l.containerd.Run(ctx, c)
		left[c.ID] = 0
		time.Sleep(2 * time.Second)
		for id, tries := range left {
			err := l.containerd.Delete(ctx, id)
			if left[id]++; err == nil {
				l.pods.Add(1)
				l.made.Add(1)
			}
			if err == nil || tries > 5 { // it may never have been made
				delete(left, id)
				l.containerd.RemoveLog(id)
			}
		}
		cancel()
		time.Sleep(3 * time.Second)
	}
}
