// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// doctor reports that the main job works, with the tier that this kernel supports.
func (n node) doctor(t *testing.T) {
	t.Logf("%s", sh(t, os.Getenv(binaryVar), append([]string{"doctor"}, n.args()...)...))
	s := start(t, n.args()...)
	m := s.fresh()
	for _, hook := range []string{"ib_uverbs_ioctl", "ib_uverbs_write"} {
		if m.sum("accelscope_probe_hook_state", "hook", hook, "tier", n.wantTier(), "state", "ok") != 1 {
			t.Errorf("%s is not hooked by %s: %v", hook, n.wantTier(), m.all("accelscope_probe_hook_state", "hook", hook))
		}
	}
	objects := n.tier
	if objects == "" {
		objects = "kprobe" // which does not pin the module
	}
	if n.counts() && n.kernel != "5.10" {
		// This kernel supports all hooks, except hooks of functions that it lacks: a missing hook is a failure.
		without := []string{"ib_peer_umem_get"} // of MLNX_OFED
		for _, f := range dmabufFunctions {
			if slices.Contains(f.in, n.kernel) {
				f.verifyArguments(t)
			} else {
				without = append(without, f.name)
			}
		}
		for hook := range m.by("accelscope_probe_hook_state", "hook") {
			hooked := m.sum("accelscope_probe_hook_state", "hook", hook, "state", "ok") == 1
			if exists := !slices.Contains(without, hook); hooked != exists {
				t.Errorf("%s is hooked: %v, want %v", hook, hooked, exists)
			}
		}
	}
	if n.tier != "tracepoint" {
		// No hook is attached to system calls, so calls without RDMA do not get slower.
		var programs []struct{ Type, Name string }
		if err := json.Unmarshal([]byte(sh(t, "bpftool", "-j", "prog", "show")), &programs); err != nil {
			t.Fatal(err)
		}
		if len(programs) < 5 {
			t.Errorf("bpftool shows only %v", programs)
		}
		for _, p := range programs {
			if p.Type == "tracepoint" {
				t.Errorf("program %s is on a system call", p.Name)
			}
		}
	}
	if n.counts() && m.sum("accelscope_probe_hook_state", "hook", "rdma_restrack_add", "tier", objects, "state", "ok") != 1 {
		t.Errorf("rdma_restrack_add is not hooked by %s", objects)
	}
	s.stop()
}

// netlink runs the tests of the RDMA source on the live stack. They compare its dumps, counters and number of requests
// with iproute2 and sysfs, and with the kernel modules virtual functions and a device in another network namespace.
func (n node) netlink(t *testing.T) {
	// The devices are created again, without changes by other scenarios. movable can be unloaded after the devices were
	// removed.
	_ = child.Command(t.Context(), "sh", "-c", "rdma link delete rxe0; rdma link delete rxe1; rmmod movable").Run()
	for _, m := range []string{"ib_uverbs", "rdma_rxe"} {
		sh(t, "modprobe", m)
	}
	for _, end := range []string{"0", "1"} {
		sh(t, "rdma", "link", "add", "rxe"+end, "type", "rxe", "netdev", "v"+end)
	}
	tests := []string{"TestGuest", "TestGuest/Namespaces", "TestGuest/Reload", "TestGuestCounters", "TestGuestPorts"}
	if n.module(t, vfsVar) != "" && n.module(t, movableVar) != "" {
		n.packageTests(t, vfTestVar, "../../../pkg/source/rdma/vf", "^TestGuestVFs$", "TestGuestVFs")
	}
	n.packageTests(t, rdmaTestVar, "../../../pkg/source/rdma", "^(TestGuest|TestGuestCounters|TestGuestPorts)$", tests...)
}

// packageTests runs tests of a package, compiled outside the guest, in the directory of the package. Each named test
// must pass: a skipped or missing test is a failure.
func (n node) packageTests(t *testing.T, variable, dir, run string, names ...string) {
	t.Helper()
	cmd := child.Command(t.Context(), os.Getenv(variable), "-test.run="+run, "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "ACCELSCOPE_GUEST=1", "ACCELSCOPE_WORKLOADS="+os.Getenv(workloadsVar))
	var out strings.Builder
	cmd.Stdout = io.MultiWriter(os.Stdout, &out) // at once: a guest that prints nothing for long is ended
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		t.Errorf("failed: %v", err)
	}
	for _, name := range names {
		if !strings.Contains(out.String(), "--- PASS: "+name+" (") {
			t.Errorf("%s did not pass", name)
		}
	}
}

// resource is an entry of `rdma -j resource show TYPE`.
type resource struct {
	Ifname string
	PID    int
}

// dumped returns the objects that `rdma resource` shows, counted by device and container id. It uses iproute2's netlink
// client, and finds the container through /proc. It is the ground truth as long as the threads that created the objects
// live.
func dumped(t *testing.T, kind string) map[string]map[string]float64 {
	t.Helper()
	var entries []resource
	if err := json.Unmarshal([]byte(sh(t, "rdma", "-j", "resource", "show", kind)), &entries); err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`[0-9a-f]{64}`)
	out := map[string]map[string]float64{}
	for _, e := range entries {
		if e.PID == 0 {
			continue // an object of the kernel
		}
		cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", e.PID))
		if err != nil {
			continue // the process has ended meanwhile
		}
		if out[e.Ifname] == nil {
			out[e.Ifname] = map[string]float64{}
		}
		out[e.Ifname][id.FindString(string(cgroup))]++
	}
	return out
}

// windows returns the arguments that create memory windows, which rxe of 5.10 does not support.
func (n node) windows(count string) []string {
	if n.kernel == "5.10" {
		return nil
	}
	return []string{"-w", count}
}

// truth compares the objects of two real containers with traffic, and of idle containers, with netlink.
func (n node) truth(t *testing.T) {
	s := start(t, n.args()...)
	d, err := guest.StartContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop() //nolint:errcheck // the guest ends with the test
	// The traffic continues until the containers are deleted, however long that takes.
	const write, port = "exec ib_write_bw -F -d rxe0 -x 1 -D 3600 -q 3 -s 65536 -p 22000", 22000
	server := guest.PodContainer("default", "train-0", "worker", "sh", "-c", write)
	client := guest.PodContainer("default", "train-1", "worker", "sh", "-c", write+" 10.70.0.1")
	var pids []int
	for i, c := range []*guest.Container{&server, &client} {
		if i == 1 {
			listening(t, port)
		}
		c.Devices = []string{"/dev/infiniband/uverbs0"}
		if n.cgroup != "" {
			c.Cgroup = strings.Replace(c.Cgroup, "burstable/", "", 1)
		}
		pid, err := d.Run(t.Context(), *c)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Delete(t.Context(), c.ID) //nolint:errcheck // the guest ends with the test
		pids = append(pids, pid)
	}
	still := enter(t, "still", "verbs", "-d", "rxe0", "-p", "2", "-c", "3", "-q", "5", "-m", "8388608", "-m", "3145728")
	other := enter(t, "other", append([]string{"verbs", "-d", "rxe1", "-q", "2", "-m", "1048576", "-a", "3"}, n.windows("2")...)...)
	still.line(t, "device")
	other.line(t, "device")

	kinds := []string{"qp", "cq", "mr", "pd"}
	if n.kernel != "5.10" {
		kinds = append(kinds, "ctx") // 5.10 does not dump contexts
	}
	owners := map[string]int{server.ID: pids[0], client.ID: pids[1], still.id: still.cmd.Process.Pid, other.id: other.cmd.Process.Pid}
	eventually(t, 60*time.Second, func() error {
		before := map[string]map[string]map[string]float64{}
		for _, kind := range kinds {
			before[kind] = dumped(t, kind)
		}
		if before["qp"]["rxe0"][server.ID] != 3 || before["qp"]["rxe0"][client.ID] != 3 {
			return fmt.Errorf("the traffic has not begun: %v", before["qp"])
		}
		m := s.scrape()
		for _, kind := range kinds {
			if diff := cmp.Diff(before[kind], dumped(t, kind)); diff != "" {
				return fmt.Errorf("%s changed meanwhile", kind)
			}
			for _, device := range []string{"rxe0", "rxe1"} {
				for id := range owners {
					want := before[kind][device][id]
					got := m.sum("container_rdma_resources", "container_id", id, "device", device, "type", kind)
					if got != want {
						return fmt.Errorf("%s of %.12s on %s: %v, netlink has %v", kind, id, device, got, want)
					}
				}
			}
		}
		for id, pid := range owners {
			want, memory := pinned(t, pid), "host"
			if !n.counts() {
				memory = "unknown" // netlink does not report the kind
			}
			if got := m.sum("container_rdma_registered_bytes", "container_id", id, "memory", memory); got != want {
				return fmt.Errorf("%.12s has registered %v bytes, VmPin is %v", id, got, want)
			}
		}
		for id, want := range map[string]string{server.ID: "default/train-0/worker", client.ID: "default/train-1/worker"} {
			for _, x := range m.all("container_rdma_resources", "container_id", id) {
				if w := label(x, "workload"); w != want {
					return fmt.Errorf("workload %q, want %s", w, want)
				}
			}
		}
		if v := m.sum("rdma_stat_sent_pkts", "device", "rxe0", "port", "1"); v == 0 {
			return errors.New("the port has sent no packet")
		}
		return nil
	})
	m := s.fresh()
	t.Logf("objects of the still container: %v", m.by("container_rdma_resources", "type", "container_id", still.id))
	if n.counts() && n.kernel != "5.10" {
		// The generic uobject layer, which also sees DEVX: there is no DEVX here, but there are AHs and MWs.
		got := m.by("container_rdma_resources", "type", "container_id", other.id)
		if got["ah"] != 3 || got["mw"] != 2 {
			t.Errorf("the uobject layer shows %v AHs and %v MWs, want 3 and 2", got["ah"], got["mw"])
		}
	}
	still.rest(t)
	other.rest(t)
	eventually(t, 20*time.Second, func() error {
		m := s.scrape()
		for _, id := range []string{still.id, other.id} {
			if v := m.sum("container_rdma_resources", "container_id", id) + m.sum("container_rdma_registered_bytes", "container_id", id); v != 0 {
				return fmt.Errorf("%.12s still holds %v", id, m.by("container_rdma_resources", "type", "container_id", id))
			}
		}
		return nil
	})
	if n.counts() {
		n.burst(t, s)
	}
	s.stop()
}

// burst creates 4,000 protection domains without a pause: maps that grow get their elements in time.
func (n node) burst(t *testing.T, s *sensor) {
	const domains = 4000
	c := enter(t, "burst", "verbs", "-d", "rxe1", "-p", fmt.Sprint(domains))
	c.line(t, "device")
	m := s.fresh()
	if got := m.sum("container_rdma_resources", "container_id", c.id, "type", "pd"); got != domains {
		t.Errorf("%v protection domains, want %d", got, domains)
	}
	if lost := n.avoidable(t, m.losses()); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	c.rest(t)
}

// verb returns the name of a traced call in the metrics. The table is independent of the sensor's.
func verb(object, method, command *int) string {
	names := map[string]string{
		"w0": "get_context", "w1": "query_device", "w2": "query_port", "w3": "alloc_pd", "w4": "dealloc_pd",
		"w5": "create_ah", "w8": "destroy_ah", "w9": "reg_mr", "w11": "rereg_mr", "w13": "dereg_mr", "w14": "alloc_mw",
		"w16": "dealloc_mw", "w17": "create_comp_channel", "w18": "create_cq", "w20": "destroy_cq", "w21": "poll_cq",
		"w23": "req_notify_cq", "w24": "create_qp", "w25": "query_qp", "w26": "modify_qp", "w27": "destroy_qp",
		"w28": "post_send", "w29": "post_recv", "w32": "create_srq", "w33": "modify_srq", "w34": "query_srq",
		"w35": "destroy_srq",
		"0.1": "query_device", "0.2": "query_port", "0.3": "get_context", "0.4": "query_device", "0.5": "query_gid",
		"0.6": "query_gid", "1.0": "dealloc_pd", "3.0": "create_cq", "3.1": "destroy_cq", "4.0": "create_qp",
		"4.1": "destroy_qp", "5.0": "create_srq", "5.1": "destroy_srq", "6.0": "destroy_ah", "7.1": "dereg_mr",
		"8.0": "dealloc_mw", "16.0": "async_event",
	}
	key := ""
	switch {
	case command != nil:
		key = fmt.Sprint("w", *command)
	case object != nil:
		key = fmt.Sprint(*object, ".", *method)
	}
	if name, ok := names[key]; ok {
		return name
	}
	return "unknown " + key
}

// traced parses the output of uverbs-trace: calls by verb, and failures by verb and errno.
func traced(t *testing.T, file string) (calls, failed map[string]float64) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	calls, failed = map[string]float64{}, map[string]float64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var call struct {
			Object, Method *int
			Command        *int `json:"write_cmd"`
			Errno          int
			Count          float64
		}
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		name := verb(call.Object, call.Method, call.Command)
		calls[name] += call.Count
		if call.Errno != 0 {
			failed[name+" "+strconv.Itoa(call.Errno)] += call.Count
		}
	}
	return calls, failed
}

// errors returns the failures of a container by verb and errno number.
func (m metrics) errors(t *testing.T, id string) map[string]float64 {
	t.Helper()
	numbers := map[string]string{
		"EPERM": "1", "EAGAIN": "11", "ENOMEM": "12", "EFAULT": "14", "EBUSY": "16", "EINVAL": "22", "ENOTTY": "25",
		"ENOSPC": "28", "EPROTONOSUPPORT": "93", "EOPNOTSUPP": "95", "ENODATA": "61",
	}
	out := map[string]float64{}
	for _, x := range m.all("container_rdma_verbs_errors_total", "container_id", id) {
		number, ok := numbers[label(x, "errno")]
		if !ok {
			t.Errorf("errno %s is not expected", label(x, "errno"))
		}
		out[label(x, "verb")+" "+number] += x.GetCounter().GetValue()
	}
	return out
}

// verbs compares the calls of a program with the counts of ptrace and strace.
func (n node) verbs(t *testing.T) {
	s := start(t, n.args()...)
	trace := filepath.Join(t.TempDir(), "trace")
	program := append([]string{
		"verbs", "-d", "rxe0", "-p", "3", "-c", "4", "-q", "6", "-m", "1048576", "-m", "4096", "-m", "4096", "-x", "2",
		"-a", "2", "-C", "-o",
	}, n.windows("1")...)
	begin := time.Now()
	c := enter(t, "traced", append([]string{"uverbs-trace", "-o", trace}, program...)...)
	c.line(t, "device")
	c.rest(t)
	wall := time.Since(begin).Seconds()
	calls, failed := traced(t, trace)
	m := s.fresh()
	if diff := cmp.Diff(calls, m.by("container_rdma_verbs_total", "verb", "container_id", c.id)); diff != "" {
		t.Errorf("calls (-ptrace +sensor):\n%s", diff)
	}
	if diff := cmp.Diff(failed, m.errors(t, c.id)); diff != "" {
		t.Errorf("failures (-ptrace +sensor):\n%s", diff)
	}
	t.Logf("calls: %v", calls)
	var seconds, count float64
	for _, x := range m.all("container_rdma_verbs_duration_seconds", "container_id", c.id) {
		h := x.GetHistogram()
		seconds += h.GetSampleSum()
		count += float64(h.GetSampleCount())
		if h.GetSampleSum() <= 0 || h.GetSampleSum() > wall {
			t.Errorf("%s took %v s, the program ran %v s", label(x, "verb"), h.GetSampleSum(), wall)
		}
	}
	if seconds <= 0 || seconds > wall {
		t.Errorf("all verbs took %v s, the program ran %v s", seconds, wall)
	}
	if want := m.sum("container_rdma_verbs_total", "container_id", c.id); count != want {
		t.Errorf("the histograms count %v calls, the counters %v", count, want)
	}
	t.Logf("verbs took %.4f s of %.3f s", seconds, wall)

	// strace decodes no verbs, but is independent of our code.
	log := filepath.Join(t.TempDir(), "strace")
	c = enter(t, "straced", append([]string{"strace", "-f", "-y", "-e", "trace=ioctl,write", "-o", log}, program...)...)
	c.line(t, "device")
	c.rest(t)
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	want := float64(len(regexp.MustCompile(`(?m)^\d+ +(ioctl|write)\(\d+</dev/infiniband/uverbs0`).FindAll(text, -1)))
	if got := s.fresh().sum("container_rdma_verbs_total", "container_id", c.id); got != want || want == 0 {
		t.Errorf("%v calls, strace counts %v", got, want)
	}
	s.stop()
}

// failures: verbs that fail in known ways are counted under their errno.
func (n node) failures(t *testing.T) {
	s := start(t, n.args()...)
	c := enter(t, "failing", "failures", "-d", "rxe0", "-n", "7")
	want := map[string]float64{}
	for _, line := range c.rest(t) {
		var verb, errno string
		var count float64
		if _, err := fmt.Sscan(line, &verb, &errno, &count); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		want[verb+" "+errno] += count
	}
	if len(want) < 6 {
		t.Fatalf("the program printed too few failures: %v", want)
	}
	m := s.fresh()
	got := map[string]float64{}
	for _, x := range m.all("container_rdma_verbs_errors_total", "container_id", c.id) {
		if key := label(x, "verb") + " " + label(x, "errno"); want[key] != 0 {
			got[key] = x.GetCounter().GetValue()
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("failures (-program +sensor):\n%s", diff)
	}
	t.Logf("failures: %v", slices.Sorted(maps.Keys(got)))
	s.stop()
}

// threads: objects of threads that have ended are attributed.
func (n node) threads(t *testing.T) {
	s := start(t, n.args()...)
	c := enter(t, "threaded", "threads", "-d", "rxe0", "-n", "8")
	for range 8 {
		c.line(t, "thread")
	}
	want := map[string]float64{"qp": 8, "cq": 8, "pd": 8, "mr": 8}
	eventually(t, n.delay(), func() error {
		m := s.fresh() // the last thread ends after it printed its line
		got := m.by("container_rdma_resources", "type", "container_id", c.id)
		for kind, count := range want {
			if got[kind] != count {
				return fmt.Errorf("%v %s, want %v", got[kind], kind, count)
			}
		}
		pinned := pinned(t, c.cmd.Process.Pid)
		if bytes := m.sum("container_rdma_registered_bytes", "container_id", c.id); bytes != pinned {
			return fmt.Errorf("%v bytes registered, VmPin is %v", bytes, pinned)
		}
		return nil
	})
	c.rest(t)
	s.stop()
}
