// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

// Limits of the search for the GPUs of Slurm steps.
const (
	gresInterval  = 30 * time.Second
	gresDeadline  = time.Second // per job
	maxSteps      = 1024
	maxTasks      = 256     // per step
	maxProcesses  = 8       // per task
	maxEnviron    = 1 << 20 // bytes of an environment
	maxDeviceList = 256 << 10
	maxJobGPUs    = 64
)

// gres finds the GPUs of Slurm steps in the background: the kernel reads the environment of a process under its
// mmap_lock, which a process that hangs in a driver's mmap or munmap holds.
type gres struct {
	background[[]model.JobGPUs]

	devices string // devices hierarchy of cgroup v1, or ""
	v2      bool   // device programs in place of device lists
	mount   string // of the followed hierarchy
	procfs  string
	jobs    hang.Group[string, []model.JobGPUs]
	unread  error // why a device program is not readable
}

func newGres(o Options) *gres {
	g := &gres{devices: o.Devices, v2: o.Programs, mount: o.Mount, procfs: o.Procfs}
	g.start()
	return g
}

// read returns the results of the last round, and starts a round if they are old.
func (g *gres) read(cgroups iter.Seq[Cgroup], now time.Time) ([]model.JobGPUs, error) {
	return g.next(gresInterval, now, func() func() ([]model.JobGPUs, error) {
		list := stepsOf(cgroups)
		g.unread = nil
		return func() ([]model.JobGPUs, error) {
			found, err := g.find(list)
			g.mu.Lock()
			defer g.mu.Unlock()
			if err == nil && g.unread != nil {
				err = fmt.Errorf("%w: device programs (CAP_SYS_ADMIN, before Linux 6.9 also CAP_NET_ADMIN): %w",
					model.ErrUnsupported, g.unread)
			}
			return found, err
		}
	})
}

// find returns the GPUs of the steps, or nil if the node has no steps or no GPU driver.
func (g *gres) find(steps []Cgroup) ([]model.JobGPUs, error) {
	if len(steps) == 0 {
		return nil, nil
	}
	text, err := boundedfile.ReadFile(filepath.Join(g.procfs, "devices"), nil, maxDeviceList)
	if err != nil {
		return nil, fmt.Errorf("drivers of GPUs: %w", err)
	}
	majors := gpuMajors(text)
	if len(majors) == 0 {
		return nil, nil
	}
	jobs := byJob(steps)
	out, errs := []model.JobGPUs{}, []error{}
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		steps := jobs[job]
		found, err := g.jobs.Do(g.ctx, job, gresDeadline, func() ([]model.JobGPUs, error) { return g.ofSteps(steps, majors) })
		if errors.Is(err, hang.ErrStuck) {
			err = fmt.Errorf("the environments of the Slurm job at %s could not be read in time", job)
		}
		out, errs = append(out, found...), append(errs, err)
	}
	if len(steps) > maxSteps {
		errs = append(errs, fmt.Errorf("GPUs of the first %d of %d Slurm steps only", maxSteps, len(steps)))
	}
	return out, errors.Join(errs...)
}

func (g *gres) ofSteps(steps []Cgroup, majors map[uint64]string) ([]model.JobGPUs, error) {
	var out []model.JobGPUs
	var first error
	for _, s := range steps {
		found, err := g.ofStep(s, majors)
		if err != nil && first == nil {
			first = fmt.Errorf("step of Slurm %s: %w", s.Path, err)
		}
		if found != nil {
			found.Cgroup = s.ID
			out = append(out, *found)
		}
	}
	return out, first
}

// ofStep returns the GPUs of a step: the device nodes that its device cgroup or device program allows, if it restricts
// them, or else the GPUs in the environments of its processes. It returns nil if neither names a GPU.
func (g *gres) ofStep(s Cgroup, majors map[uint64]string) (*model.JobGPUs, error) {
	if g.devices != "" {
		text, err := boundedfile.ReadFile(filepath.Join(g.devices, s.Path, "devices.list"), nil, maxDeviceList)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if nodes, ok := allowedNodes(text, majors); ok && err == nil {
			return &model.JobGPUs{Nodes: nodes}, nil
		}
	}
	if g.v2 { // the steps batch, extern and interactive have the program of the job
		nodes, ok, err := programNodes(filepath.Join(g.mount, s.Path, "user"), majors)
		if ok {
			return &model.JobGPUs{Nodes: nodes}, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			g.mu.Lock()
			g.unread = err
			g.mu.Unlock()
		}
	}
	var out model.JobGPUs
	pids, first := g.processes(s.Path)
	for _, pid := range pids {
		text, err := g.environ(pid)
		if first == nil {
			first = err
		}
		addEnvironment(&out, text)
	}
	if out.UUIDs == nil && out.Numbers == nil {
		return nil, first
	}
	return &out, first
}

// environ returns the environment of a user's process, or nil if the process has ended. slurmstepd runs as root with
// another environment.
func (g *gres) environ(pid string) ([]byte, error) {
	dir := filepath.Join(g.procfs, pid)
	if uid := procfile.RealUser(dir); uid == "" || uid == "0" {
		return nil, nil
	}
	text, err := boundedfile.ReadFile(filepath.Join(dir, "environ"), nil, maxEnviron)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	return text, err
}

// processes returns the first processes of each task of a step. The tasks are in step_S/task_T (version 1), and in
// step_S/user/task_T. With an error, tasks are missing.
func (g *gres) processes(path string) (pids []string, err error) {
	step := filepath.Join(g.mount, path)
	var tasks []string
	for _, dir := range []string{step, filepath.Join(step, "user")} {
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(4 * maxTasks) // with the files of the cgroup
		_ = f.Close()
		for _, name := range names {
			if strings.HasPrefix(name, "task_") {
				tasks = append(tasks, filepath.Join(dir, name))
			}
		}
	}
	if len(tasks) > maxTasks {
		err = fmt.Errorf("more than %d tasks", maxTasks)
	}
	for _, task := range tasks[:min(len(tasks), maxTasks)] {
		pids = append(pids, firstProcesses(task, maxProcesses)...)
	}
	return pids, err
}

// firstProcesses returns up to n processes in a cgroup, without the cgroups below.
func firstProcesses(dir string, n int) (pids []string) {
	text, err := boundedfile.ReadOnce(filepath.Join(dir, "cgroup.procs"), make([]byte, 32*n))
	if err != nil {
		return nil
	}
	for line := range strings.SplitAfterSeq(string(text), "\n") {
		pid, whole := strings.CutSuffix(line, "\n") // the last line may be cut
		if number, err := strconv.Atoi(pid); whole && err == nil && number > 0 && len(pids) < n {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stepsOf returns the cgroups of steps, in the order of their paths.
func stepsOf(cgroups iter.Seq[Cgroup]) (steps []Cgroup) {
	for c := range cgroups {
		if c.isStep() {
			steps = append(steps, c)
		}
	}
	slices.SortFunc(steps, func(a, b Cgroup) int { return strings.Compare(a.Path, b.Path) })
	return steps
}

// byJob returns the first maxSteps steps by the path of their job.
func byJob(steps []Cgroup) map[string][]Cgroup {
	jobs := map[string][]Cgroup{}
	for _, s := range steps[:min(len(steps), maxSteps)] {
		jobs[s.Top] = append(jobs[s.Top], s)
	}
	return jobs
}
