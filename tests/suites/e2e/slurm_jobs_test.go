// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// hold is a step with one task. Its standard input is /dev/null: srun's own ends at once.
const hold = "srun --exact --ntasks=1 --mem=150M holding "

// held returns the objects of a job's processes that netlink lists, by device.
func (l *slurm) held(t *testing.T, id, kind string) map[string]float64 {
	t.Helper()
	var entries []resource
	if err := json.Unmarshal([]byte(sh(t, "rdma", "-j", "resource", "show", kind)), &entries); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, e := range entries {
		cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", e.PID))
		if err == nil && strings.Contains(string(cgroup), "/job_"+id+"/") {
			out[e.Ifname]++
		}
	}
	return out
}

// holds waits until the sensor shows the queue pairs of a job that netlink lists, and its steps as squeue lists them.
func (l *slurm) holds(t *testing.T, id string, qps map[string]float64) metrics {
	t.Helper()
	var m metrics
	eventually(t, time.Minute, func() error {
		m = l.s.fresh()
		if diff := cmp.Diff(qps, l.held(t, id, "qp")); diff != "" {
			return fmt.Errorf("queue pairs of job %s that netlink lists (-want +got):\n%s", id, diff)
		}
		shown := m.by("container_rdma_resources", "device", "workload", "slurm:"+id, "type", "qp")
		maps.DeleteFunc(shown, func(_ string, n float64) bool { return n == 0 })
		if diff := cmp.Diff(qps, shown); diff != "" {
			return fmt.Errorf("queue pairs of job %s (-netlink +sensor):\n%s", id, diff)
		}
		if diff := cmp.Diff(l.listed(t, id), m.exported(id)); diff != "" {
			return fmt.Errorf("steps of job %s (-squeue +sensor):\n%s", id, diff)
		}
		return nil
	})
	return m
}

// cgroups returns the paths of a file or cgroup below the cgroup of a job. For version 1 its name starts with the controller.
func (l *slurm) cgroups(t *testing.T, id, file, fileV1 string) []string {
	t.Helper()
	pattern := "/sys/fs/cgroup/system.slice/*slurmstepd.scope/job_" + id + "/" + file
	if l.n.cgroup != "" {
		controller, name, _ := strings.Cut(fileV1, "/")
		pattern = "/sys/fs/cgroup/" + controller + "/slurm*/uid_*/job_" + id + "/" + name
	}
	found, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// number reads a number from a file of the cgroup of a job.
func (l *slurm) number(t *testing.T, id, file, fileV1 string) float64 {
	t.Helper()
	found := l.cgroups(t, id, file, fileV1)
	if len(found) != 1 {
		t.Fatalf("%s of job %s: %v", file, id, found)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(strings.TrimPrefix(string(text), "usage_usec "))
	value, err := strconv.ParseFloat(words[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// cpu returns the CPU time of a job in seconds, from its cgroup.
func (l *slurm) cpu(t *testing.T, id string) float64 {
	t.Helper()
	if value := l.number(t, id, "cpu.stat", "cpuacct/cpuacct.usage"); l.n.cgroup != "" {
		return value / 1e9
	} else {
		return value / 1e6
	}
}

// steps: a job with two steps at once, its name, its objects and what it uses.
func (l *slurm) steps(t *testing.T) {
	const registered = 64 << 20
	id := l.submit(t, fmt.Sprintf(`%[1]s verbs -d rxe0 -q 3 -m %[2]d &
		until grep -q ready slurm-$SLURM_JOB_ID.out; do sleep 0.5; done # so that it is step 0
		%[1]s verbs -d rxe1 -q 2 &
		wait`, hold, registered),
		"--ntasks=2", "--mem=400M", "--job-name=train-llm")
	l.printed(t, id, "ready", 2)
	m := l.holds(t, id, map[string]float64{"rxe0": 3, "rxe1": 2})
	workload := "slurm:" + id
	if got := m.sum("container_rdma_registered_bytes", "workload", workload, "memory", "host"); got != registered {
		t.Errorf("registered %v bytes, want %d", got, registered)
	}
	if len(m.all("accelscope_workload_info", "workload", workload, "job_kind", "Slurm", "job_name", id, "user", "alice", "runtime", "slurm")) != 1 {
		t.Errorf("%v", m.all("accelscope_workload_info", "workload", workload))
	}
	eventually(t, time.Minute, func() error { // a round of 15 s
		names := strings.Split(strings.TrimSpace(sh(t, "squeue", "-h", "-j", id, "-o", "%a|%P|%j")), "|")
		series := l.s.scrape().all("accelscope_slurm_step_info", "workload", workload, "account", names[0], "partition", names[1], "name", names[2])
		if steps := l.listed(t, id); len(series) != len(steps) || names[0] != "physics" || names[2] != "train-llm" {
			return fmt.Errorf("%d of the steps %v have the names %v", len(series), steps, names)
		}
		return nil
	})
	before := l.cpu(t, id)
	m = l.s.fresh()
	if got, after := m.sum("container_cpu_usage_seconds_total", "workload", workload), l.cpu(t, id); got < before || got > after || got == 0 {
		t.Errorf("CPU time %v s, the cgroup has %v to %v", got, before, after)
	}
	eventually(t, time.Minute, func() error {
		rss := slurmSays(t, "sstat", "-n", "-P", "--noconvert", "-j", id+".0", "-o", "MaxRSS")
		bytes, err := strconv.ParseFloat(rss, 64)
		if err != nil || bytes < registered {
			return fmt.Errorf("sstat shows MaxRSS %q: %w", rss, err)
		}
		before := l.number(t, id, "memory.current", "memory/memory.usage_in_bytes")
		got := l.s.fresh().sum("container_memory_usage_bytes", "workload", workload)
		if after := l.number(t, id, "memory.current", "memory/memory.usage_in_bytes"); got != before || got != after || got < registered {
			return fmt.Errorf("memory %v, the cgroup has %v and %v; sstat shows %v for a step", got, before, after, bytes)
		}
		t.Logf("memory %.0f MiB, sstat shows MaxRSS %.0f MiB for the step", got/(1<<20), bytes/(1<<20))
		return nil
	})
	eventually(t, time.Minute, func() error { // two rounds of 15 s
		if rank := l.s.scrape().all("accelscope_workload_info", "workload", workload, "rank", "0"); len(rank) != 1 {
			return fmt.Errorf("no rank: %v", l.s.scrape().all("accelscope_workload_info", "workload", workload))
		}
		return nil
	})
	sh(t, "scancel", "--signal=TERM", id+".0")
	l.holds(t, id, map[string]float64{"rxe1": 2})
}

// totals: the counts of steps stay with the job when they end, and when the job ends. A file in slurmJobs lets the
// script continue.
func (l *slurm) totals(t *testing.T) {
	first, second := filepath.Join(slurmJobs, "trace0"), filepath.Join(slurmJobs, "trace1")
	id := l.submit(t, `
		pause() { echo "$1"; while [ ! -e "$1" ]; do sleep 0.2; done; }
		srun -n1 uverbs-trace -o `+first+` failures -d rxe0 -n 7; pause one
		srun -n1 uverbs-trace -o `+second+` failures -d rxe1 -n 3; pause two
		srun -n1 posts -d rxe0 -o write -s 1000 -n 50 -l 4 -q 3; pause three`, "--ntasks=1", "--mem=300M")
	proceed := func(name string) { write(t, filepath.Join(slurmJobs, name), "") }
	workload := "slurm:" + id
	count := func(m metrics) map[string]float64 {
		return m.by("container_rdma_verbs_total", "verb", "workload", workload)
	}
	want := map[string]float64{}
	for _, part := range []struct{ name, trace string }{{"one", first}, {"two", second}} {
		l.printed(t, id, part.name, 1)
		calls, _ := traced(t, part.trace)
		for verb, n := range calls {
			want[verb] += n
		}
		m := l.holds(t, id, map[string]float64{})
		if diff := cmp.Diff(want, count(m)); diff != "" || len(want) == 0 {
			t.Errorf("verbs after part %s (-ptrace +sensor):\n%s", part.name, diff)
		}
		proceed(part.name)
	}
	l.printed(t, id, "three", 1)
	moved := posted(t, "write", 150, strings.Split(l.output(t, id), "\n"))
	if l.n.preempts() { // a skipped hook of a queue pair costs its first durations
		delete(moved, opcodes["write"][1]+" durations")
	}
	same := func(when string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			if err := moved.differs(l.s.fresh().movedOf("workload", workload)); err != nil {
				return fmt.Errorf("%s: %w", when, err)
			}
			return nil
		})
	}
	same("after the step")
	verbs := count(l.s.fresh())
	proceed("three")
	l.ended(t, id)
	same("after the job")
	if diff := cmp.Diff(verbs, count(l.s.fresh())); diff != "" {
		t.Errorf("verbs before and after the end of the job:\n%s", diff)
	}
}

// gpus: two jobs have a GPU each, and a third job has no GPU. The kernel refuses the other GPU.
func (l *slurm) gpus(t *testing.T) {
	script := `: <>/dev/infiniband/uverbs0 && echo uverbs0
		for n in 0 1; do
			if { : <>/dev/nvidia$n; } 2>&1 | grep -q 'not permitted'; then echo denied $n; else echo allowed $n; fi
		done
		exec sleep 10000`
	write(t, slurmJobs+"/gpu.sh", script)
	want := map[string]float64{}
	method := "device_cgroup"
	if l.n.cgroup != "" {
		method = "environment" // devices.list of version 1 does not show what is denied
	}
	var none string
	for _, gres := range []string{"--gres=gpu:1", "--gres=gpu:1", "--gres=none"} {
		id := l.submit(t, hold+"bash "+slurmJobs+"/gpu.sh", "--ntasks=1", "--mem=200M", gres)
		l.printed(t, id, "uverbs0", 1)
		for n := range 2 {
			state := "denied"
			if index := l.field(t, id, "GRES"); strings.HasSuffix(index, fmt.Sprintf("(IDX:%d)", n)) {
				state = "allowed"
				want["slurm:"+id+" "+nvml.UUID(n)+" "+method] = 1
			}
			l.printed(t, id, fmt.Sprint(state, " ", n), 1)
		}
		none = id
	}
	if len(want) != 2 || l.field(t, none, "GRES") != "" {
		t.Fatalf("Slurm has allocated %v, and %q to job %s", want, l.field(t, none, "GRES"), none)
	}
	eventually(t, 2*time.Minute, func() error {
		got := map[string]float64{}
		for _, x := range l.s.fresh().all("container_gpu_allocated") {
			got[label(x, "workload")+" "+label(x, "uuid")+" "+label(x, "method")] = x.GetGauge().GetValue()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("allocated (-scontrol +sensor):\n%s", diff)
		}
		return nil
	})
	for _, x := range l.s.scrape().all("accelscope_device_state", "device", "GPUs of Slurm steps") {
		t.Errorf("GPUs of steps: %v", x)
	}
}

// array: each task of an array is a job with its own number.
func (l *slurm) array(t *testing.T) {
	id := l.submit(t, hold+"verbs -d rxe0 -q $SLURM_ARRAY_TASK_ID", "--ntasks=1", "--mem=200M", "--array=1-2")
	eventually(t, slurmLimit, func() error {
		jobs := strings.Fields(sh(t, "squeue", "-h", "-r", "-t", "R", "-j", id, "-o", "%A"))
		if len(jobs) != 2 || jobs[0] == jobs[1] {
			return fmt.Errorf("running: %v", jobs)
		}
		return nil
	})
	for line := range strings.Lines(sh(t, "squeue", "-h", "-r", "-j", id, "-o", "%A %K")) {
		job, task, _ := strings.Cut(strings.TrimSpace(line), " ")
		qps, err := strconv.ParseFloat(task, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		l.holds(t, job, map[string]float64{"rxe0": qps})
	}
}

// heterogeneous: each component is a job with its own number, with one step over both.
func (l *slurm) heterogeneous(t *testing.T) {
	id := l.submit(t, "srun --het-group=0,1 holding verbs -d rxe0 -q 2",
		"--partition=pair", "--nodelist=guest", "--ntasks=1", "--mem=200M",
		":", "--account=physics", "--partition=pair", "--nodelist=guest2", "--ntasks=1", "--mem=200M")
	l.printed(t, id, "ready", 2)
	number, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{id, strconv.Itoa(number + 1)} {
		l.holds(t, job, map[string]float64{"rxe0": 2})
	}
}

// suspend: a suspended job keeps its objects and its steps, and its processes do not run.
func (l *slurm) suspend(t *testing.T) {
	id := l.submit(t, hold+"verbs -d rxe0 -q 4 &\n"+hold+"sh -c 'echo busy $$; while :; do :; done'", "--ntasks=2", "--mem=400M")
	l.printed(t, id, "ready", 1)
	l.printed(t, id, "busy", 1)
	_, text, _ := strings.Cut("\n"+l.output(t, id), "\nbusy ")
	busy, err := strconv.Atoi(strings.Fields(text)[0])
	if err != nil {
		t.Fatal(err)
	}
	qps := map[string]float64{"rxe0": 4}
	l.holds(t, id, qps)
	sh(t, "scontrol", "suspend", id)
	eventually(t, slurmLimit, func() error {
		if state := l.field(t, id, "JobState"); state != "SUSPENDED" {
			return fmt.Errorf("the job is %s", state)
		}
		return nil
	})
	l.holds(t, id, qps)
	still := cpu(t, busy)
	before := l.cpu(t, id) // slurmstepd goes on
	got := l.s.fresh().sum("container_cpu_usage_seconds_total", "workload", "slurm:"+id)
	if after := l.cpu(t, id); got < before || got > after || got < still {
		t.Errorf("CPU time of the suspended job %v s, the cgroup has %v to %v, its process %v", got, before, after, still)
	}
	if now := cpu(t, busy); now != still {
		t.Errorf("the process of the suspended job has run: %v s, %v s", still, now)
	}
	sh(t, "scontrol", "resume", id)
	eventually(t, slurmLimit, func() error {
		now := cpu(t, busy)
		if got := l.s.fresh().sum("container_cpu_usage_seconds_total", "workload", "slurm:"+id); now <= still || got < now {
			return fmt.Errorf("CPU time of the resumed process: %v s, was %v s; of the job: %v s", now, still, got)
		}
		return nil
	})
	l.holds(t, id, qps)
}

// requeue: the job runs again with its number, in a new cgroup. Each scrape checks that counters of RDMA do not fall.
func (l *slurm) requeue(t *testing.T) {
	id := l.submit(t, hold+"verbs -d rxe0 -q 2", "--ntasks=1", "--mem=200M", "--requeue", "--open-mode=append")
	l.printed(t, id, "ready", 1)
	qps := map[string]float64{"rxe0": 2}
	verbs := l.holds(t, id, qps).sum("container_rdma_verbs_total", "workload", "slurm:"+id, "verb", "create_qp")
	l.s.reborn = "workload=slurm:" + id
	defer func() { l.s.reborn = "" }()
	sh(t, "scontrol", "requeue", id)
	eventually(t, slurmLimit, func() error {
		_ = child.Command(t.Context(), "scontrol", "update", "jobid="+id, "starttime=now").Run() // not before the job has ended
		l.s.scrape()
		if restarts, state := l.field(t, id, "Restarts"), l.field(t, id, "JobState"); restarts != "1" || state != "RUNNING" {
			return fmt.Errorf("the job is %s after %s restarts", state, restarts)
		}
		return nil
	})
	l.printed(t, id, "ready", 2)
	m := l.holds(t, id, qps)
	if got := m.sum("container_rdma_verbs_total", "workload", "slurm:"+id, "verb", "create_qp"); got != 2*verbs || verbs == 0 {
		t.Errorf("%v calls of create_qp, %v before the job was requeued", got, verbs)
	}
}

// restart: after a restart of the sensor or slurmd, running jobs are found again.
func (l *slurm) restart(t *testing.T) {
	id := l.submit(t, hold+"verbs -d rxe1 -q 3", "--ntasks=1", "--mem=200M")
	l.printed(t, id, "ready", 1)
	qps := map[string]float64{"rxe1": 3}
	l.holds(t, id, qps)
	l.s.stop()
	l.begin(t)
	l.holds(t, id, qps)
	sh(t, "systemctl", "restart", "slurmd")
	l.holds(t, id, qps)
	l.s.stop()
}

func cpu(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	f := strings.Fields(rest)
	user, err := strconv.ParseFloat(f[11], 64)
	if err != nil {
		t.Fatal(err)
	}
	system, err := strconv.ParseFloat(f[12], 64)
	if err != nil {
		t.Fatal(err)
	}
	return (user + system) / 100
}
