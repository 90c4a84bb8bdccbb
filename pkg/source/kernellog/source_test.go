// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// node is a fake kernel log and a fake procfs. Cgroups have the number of their process.
type node struct {
	t        *testing.T
	procfs   string
	log      string   // a FIFO
	writer   *os.File // of the log
	sequence int
	source   *Source
	ended    map[int]model.CgroupID // processes that a driver listed before they ended
	options  Options                // more options of the source
}

// newNode makes a node. earlier are texts that are in the log before the start.
func newNode(t *testing.T, earlier ...string) *node {
	t.Helper()
	dir := t.TempDir()
	n := &node{t: t, procfs: dir, log: filepath.Join(dir, "kmsg"), sequence: 100, ended: map[int]model.CgroupID{}}
	if err := unix.Mkfifo(n.log, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.writer, err = os.OpenFile(n.log, os.O_RDWR, 0); err != nil { // without O_NONBLOCK O_RDWR keeps records that are not read yet
		t.Fatal(err)
	}
	t.Cleanup(func() { n.writer.Close() })
	n.process(2, "kthreadd", kernelThread, 0)
	for _, text := range earlier {
		n.kernel(text)
	}
	return n
}

func (n *node) start() {
	n.t.Helper()
	o := n.options
	o.Path, o.Procfs = n.log, n.procfs
	o.CgroupOf = func(pid int) (model.CgroupID, error) {
		if _, err := os.Stat(filepath.Join(n.procfs, fmt.Sprint(pid))); err != nil {
			return 0, fs.ErrNotExist
		}
		return model.CgroupID(pid), nil
	}
	o.LastCgroupOf = func(pid int) (model.CgroupID, bool) { id, ok := n.ended[pid]; return id, ok }
	s, err := New(o)
	if err != nil {
		n.t.Fatal(err)
	}
	<-s.caught // what is logged from now on is counted
	n.source = s
	n.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			n.t.Error(err)
		}
	})
}

// process makes a process that started some time after boot.
func (n *node) process(pid int, name string, flags uint64, started time.Duration) {
	n.t.Helper()
	dir := filepath.Join(n.procfs, fmt.Sprint(pid))
	stat := fmt.Sprintf("%d (%s) S 0 0 0 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0", pid, name, flags, started/(time.Second/100))
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "stat"), []byte(stat), 0o600)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) end(pid int) {
	if err := os.RemoveAll(filepath.Join(n.procfs, fmt.Sprint(pid))); err != nil {
		n.t.Fatal(err)
	}
}

// kernel logs a text as a driver does: NVIDIA's with KERN_CONT, others with dev_printk.
func (n *node) kernel(text string) {
	n.t.Helper()
	n.sequence++
	head := fmt.Sprintf("4,%d,%d,", n.sequence, now().monotonic.Microseconds())
	if text[0] == 'N' || text[0] == 'n' {
		n.write(head + "c;" + text + "\n")
	} else {
		n.write(head + "-;" + text + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:03:00.0\n")
	}
}

func (n *node) write(b string) {
	n.t.Helper()
	if _, err := n.writer.WriteString(b); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) until(what string, met func(*model.Snapshot) bool) model.Snapshot {
	n.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		s, err := n.source.Read(context.Background())
		if err != nil {
			n.t.Fatal(err)
		}
		if met(&s) {
			return s
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: %+v", what, s)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (n *node) counted(code string) model.Snapshot {
	n.t.Helper()
	return n.until(code+" is missing", func(s *model.Snapshot) bool {
		return slices.ContainsFunc(s.FaultTotals, func(t model.FaultTotal) bool { return t.Code == code && t.Count > 0 })
	})
}

const (
	gpuAddress = "0000:c1:00.0"
	xid        = "NVRM: Xid (PCI:0000:c1:00): "
	last       = xid + "8, last"
)

func key(code string) model.FaultKey {
	return model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: gpuAddress, Code: code}
}

func counts(s *model.Snapshot) (totals map[string]uint64, owned map[string]uint64) {
	totals, owned = map[string]uint64{}, map[string]uint64{}
	for _, t := range s.FaultTotals {
		totals[t.Code] = t.Count
	}
	for _, f := range s.Faults {
		owned[fmt.Sprint(f.Key.Code, " of ", f.Cgroup)] = uint64(f.Value)
	}
	delete(totals, "8")
	return totals, owned
}

// TestFaults: faults are counted for devices and for the cgroups of processes; faults from before the start are only
// listed.
func TestFaults(t *testing.T) {
	n := newNode(t, "NVRM: GPU at PCI:0000:c1:00: GPU-4ac9d3e2-8e3a-11ee-b9d1-0242ac120002", xid+"79, GPU has fallen off the bus.",
		xid+"31, pid=7, name=early, Ch 1", "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.")
	n.process(7, "early", 0, 0)
	n.process(71, "python", 0, 0)
	n.process(72, "other", 0, 0)
	n.ended[73] = 73
	n.start()
	before := n.until("no history", func(*model.Snapshot) bool { return true })
	if totals, owned := counts(&before); !cmp.Equal(totals, map[string]uint64{"79": 0, "31": 0}) || len(owned) > 0 || len(before.FaultHistory) != 2 {
		t.Errorf("before the start: %v, %v, %+v", totals, owned, before.FaultHistory)
	}

	began := time.Now().Add(-time.Minute)
	for range 3 {
		n.kernel(xid + "31, pid=71, name=python, Ch 00000010")
	}
	n.kernel(xid + "31, pid=72, name=other, Ch 00000010")
	n.kernel(xid + "31, pid=73, name=ended, Ch 00000010")
	n.kernel(xid + "31, pid=74, name=unknown, Ch 00000010")
	n.kernel(xid + "45, pid=72, name=nvidia-cuda-mps, Ch 00000010")
	n.kernel("NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.") // the XID 79 is in the history
	n.kernel(xid + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
	n.kernel(xid + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
	n.kernel(last)
	s := n.counted("8")
	totals, owned := counts(&s)
	if d := cmp.Diff(map[string]uint64{"31": 6, "45": 1, "79": 0, "154": 1}, totals); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]uint64{"31 of 71": 3, "31 of 72": 1, "31 of 73": 1}, owned); d != "" {
		t.Error(d)
	}
	for _, f := range s.FaultTotals {
		if f.Last.Before(began) || f.Last.After(time.Now()) {
			t.Errorf("%s: last at %v", f.Code, f.Last)
		}
		if recovered := f.Code == "154"; recovered == f.Recovered.Before(f.Last) || recovered == f.Recovered.IsZero() {
			t.Errorf("%s: last at %v, recovered at %v", f.Code, f.Last, f.Recovered)
		}
	}
	const uuid = "GPU-4ac9d3e2-8e3a-11ee-b9d1-0242ac120002"
	want := []model.Fault{
		{FaultKey: key("79"), UUID: uuid, Earlier: true},
		{FaultKey: key("31"), UUID: uuid, Earlier: true, PID: 7, Process: "early"}, // the PID may belong to a later process
		{FaultKey: key("31"), UUID: uuid, PID: 71, Process: "python", Cgroup: 71, Repeated: 2},
		{FaultKey: key("31"), UUID: uuid, PID: 72, Process: "other", Cgroup: 72},
		{FaultKey: key("31"), UUID: uuid, PID: 73, Process: "ended", Cgroup: 73},
		{FaultKey: key("31"), UUID: uuid, PID: 74, Process: "unknown"},
		{FaultKey: key("45"), UUID: uuid, PID: 72, Process: "nvidia-cuda-mps"},
		{FaultKey: key("154"), UUID: uuid},
		{FaultKey: key("154"), UUID: uuid, Recovered: true},
		{FaultKey: key("8"), UUID: uuid},
	}
	if now().boottime > 2*time.Second { // certainly after process 7 started
		want[1].Cgroup = 7
	}
	if d := cmp.Diff(want, s.FaultHistory, cmpopts.IgnoreFields(model.Fault{}, "ID", "Time", "Last", "Text")); d != "" {
		t.Error(d)
	}
}

// TestEndingProcess: cgroup v1 moves an exiting process to the root cgroup, which has no workload. The driver's earlier
// list is right, and in cgroup v2 also procfs.
func TestEndingProcess(t *testing.T) {
	n := newNode(t)
	n.process(75, "listed", exiting, 0)
	n.ended[75] = 7
	n.process(76, "unlisted", exiting, 0)
	n.start()
	n.kernel(xid + "31, pid=75, name=listed, Ch 00000010")
	n.kernel(xid + "31, pid=76, name=unlisted, Ch 00000010")
	n.kernel(last)
	s := n.counted("8")
	if _, owned := counts(&s); !cmp.Equal(owned, map[string]uint64{"31 of 7": 1, "31 of 76": 1}) {
		t.Errorf("%v", owned)
	}
}

// TestProcessOfAMDGPU: a separate record has the process.
func TestProcessOfAMDGPU(t *testing.T) {
	const amdgpu, process = "amdgpu 0000:03:00.0: amdgpu: ", " for process python pid 71 thread python pid 72)"
	n := newNode(t)
	n.process(71, "python", 0, 0)
	n.start()
	n.kernel(amdgpu + process) // of no fault
	n.kernel(amdgpu + "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32770)")
	n.kernel(amdgpu + process)
	n.kernel(amdgpu + "  in page starting at address 0x0000000000000000 from IH client 0x1b (UTCL2)")
	n.kernel(amdgpu + process) // repeated
	n.kernel(amdgpu + "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:3 pasid:32770)")
	n.kernel(amdgpu + "ring gfx timeout, signaled seq=1, emitted seq=2")
	s := n.until("no timeout", func(s *model.Snapshot) bool { // it waits for its process, and then counts without a process
		totals, _ := counts(s)
		return totals["ring_timeout"] == 1
	})
	totals, owned := counts(&s)
	if d := cmp.Diff(map[string]uint64{"page_fault": 2, "ring_timeout": 1}, totals); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]uint64{"page_fault of 71": 1}, owned); d != "" {
		t.Error(d)
	}
}

// TestEndedProcess: the cgroup of a process is known for a while after it ended, and forgotten with its cgroup.
func TestEndedProcess(t *testing.T) {
	n := newNode(t)
	n.process(71, "python", 0, 0)
	n.process(72, "later", 0, now().boottime+time.Hour) // has the PID of an ended process
	n.start()
	n.kernel(xid + "31, pid=71, name=python, Ch 00000010")
	n.counted("31")
	n.end(71)
	time.Sleep(reuseLookup + 100*time.Millisecond)
	n.kernel(xid + "43, pid=71, name=python, Ch 00000010")
	n.kernel(xid + "43, pid=72, name=python, Ch 00000010")
	n.kernel(last)
	s := n.counted("8")
	if _, owned := counts(&s); !cmp.Equal(owned, map[string]uint64{"31 of 71": 1, "43 of 71": 1}) {
		t.Error(owned)
	}
	n.source.Forget([]model.CgroupID{71})
	n.kernel(xid + "43, pid=71, name=python, Ch 00000010")
	n.kernel(xid + "9, last")
	s = n.counted("9")
	totals, owned := counts(&s)
	if totals["43"] != 3 || len(owned) > 0 || slices.ContainsFunc(s.FaultHistory, func(f model.Fault) bool { return f.Cgroup != 0 }) {
		t.Errorf("%v, %v, %+v", totals, owned, s.FaultHistory)
	}
}

// TestForeignPIDs: in another PID namespace the PIDs of the log name other processes.
func TestForeignPIDs(t *testing.T) {
	n := newNode(t)
	n.process(2, "(kthreadd) S 0 0 0 0 -1 2129984", 0, 0) // a name that a container can choose
	n.process(71, "python", 0, 0)
	n.start()
	n.kernel(xid + "31, pid=71, name=python, Ch 00000010")
	deadline := time.Now().Add(30 * time.Second)
	for {
		s, err := n.source.Read(context.Background())
		if !errors.Is(err, model.ErrUnsupported) || !errors.Is(err, ErrForeignPIDs) {
			t.Fatal(err)
		}
		if totals, owned := counts(&s); totals["31"] == 1 && len(owned) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestOverwritten counts records that are missing in the log, including records of user space.
func TestOverwritten(t *testing.T) {
	n := newNode(t, xid+"43, early")
	n.sequence += 1000 // before the start
	n.start()
	n.until("not read", func(s *model.Snapshot) bool { return len(s.FaultHistory) == 1 })
	n.kernel(xid + "31, Ch 1")
	n.sequence++
	n.write(fmt.Sprintf("12,%d,1,-;hello\n", n.sequence))
	n.sequence += 7
	n.kernel(last)
	s := n.counted("8")
	for _, l := range s.Losses {
		if want := map[string]uint64{"kernel_log_overwritten": 1007, "kernel_log_faults_full": 0}[l.Reason]; l.Count != want {
			t.Errorf("%s: %d, want %d", l.Reason, l.Count, want)
		}
	}
}

func TestNoLog(t *testing.T) {
	dir := t.TempDir()
	if _, err := New(Options{Path: filepath.Join(dir, "none")}); !errors.Is(err, model.ErrAbsent) {
		t.Error(err)
	}
	if _, err := New(Options{Path: dir + "/none/none"}); !errors.Is(err, model.ErrAbsent) {
		t.Error(err)
	}
}

// TestBounded: tables full of devices, codes and cgroups count what does not fit.
func TestBounded(t *testing.T) {
	l := newLedger()
	add := func(device, code, cgroup int) {
		l.add(model.Fault{
			FaultKey: model.FaultKey{PCIAddress: fmt.Sprintf("%04x:00:00.0", device), Code: fmt.Sprint(code)},
			Cgroup:   model.CgroupID(cgroup), PID: cgroup, Time: time.Unix(int64(code), 0),
		}, &line{})
	}
	const faults = 3 * maxOwned
	for i := range faults {
		add(i%(maxDevices+10), i, 1+i%3)
	}
	s := l.snapshot()
	var sum, owned uint64
	for _, f := range s.FaultTotals {
		sum += f.Count
	}
	for _, f := range s.Faults {
		owned += uint64(f.Value)
	}
	if len(s.FaultTotals) != maxTotals || len(s.Faults) != 3*maxOwnedEach || len(s.FaultHistory) > maxDevices*maxHistoryEach ||
		owned != 3*maxOwnedEach || sum != maxTotals || l.lost != faults-3*maxOwnedEach {
		t.Errorf("%d totals of %d faults, %d owned, %d listed, %d lost", len(s.FaultTotals), sum, len(s.Faults), len(s.FaultHistory), l.lost)
	}
	if !slices.IsSortedFunc(s.FaultHistory, func(a, b model.Fault) int { return int(a.ID) - int(b.ID) }) {
		t.Error("the history is not in order")
	}
}

// TestManyCgroups: faults of many cgroups, and the processes that were looked up for them, have a limit for all.
func TestManyCgroups(t *testing.T) {
	l, p := newLedger(), processes{}
	for i := range maxOwned + 1 {
		l.count(&model.Fault{FaultKey: model.FaultKey{Code: fmt.Sprint(i % maxOwnedEach)}, Cgroup: model.CgroupID(1 + i/maxOwnedEach)})
		p.remember(i, lookup{})
	}
	if len(l.owned) != maxOwned || l.lost != 1 || len(p.looked) > maxLookups {
		t.Errorf("%d owned, %d lost, %d looked up", len(l.owned), l.lost, len(p.looked))
	}
}

// TestFirstFault: the kernel log names the GPU for which others wait.
func TestFirstFault(t *testing.T) {
	start := time.Now()
	n := newNode(t)
	n.start()
	first := func(since time.Time) string {
		address, _ := n.source.FirstFault(model.DriverNVIDIA, []string{"119", "120"}, since)
		return address
	}
	if got := first(start); got != "" {
		t.Errorf("before any fault: %s", got)
	}
	n.kernel("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.")
	n.kernel("NVRM: Xid (PCI:0000:C1:00): 119, Timeout after 6s of waiting for RPC response from GPU1 GSP!")
	n.kernel("NVRM: Xid (PCI:0000:02:00): 120, GSP task timeout")
	n.kernel("NVRM: Xid (PCI:0000:C1:00): 119, Timeout after 6s of waiting for RPC response from GPU1 GSP!")
	n.until("all are read", func(s *model.Snapshot) bool { return len(s.FaultHistory) == 3 && s.FaultHistory[1].Repeated == 1 })
	if got := first(start); got != "0000:c1:00.0" {
		t.Errorf("%s, want that with the first fault", got)
	}
	if got := first(time.Now()); got != "" {
		t.Errorf("no fault since then: %s", got)
	}
	if got, ok := n.source.FirstFault(model.DriverNVSwitch, []string{"119"}, start); ok {
		t.Errorf("of another driver: %s", got)
	}
}

// TestNonfatal: a code is not fatal if the driver always said so for this GPU.
func TestNonfatal(t *testing.T) {
	l := newLedger()
	begun := time.Unix(1000, 0)
	at := begun
	add := func(code string, severity model.FaultSeverity) {
		key := key(code)
		key.Severity = severity
		l.add(model.Fault{FaultKey: key, Time: at}, &line{})
	}
	var reset time.Time
	nonfatal := func(code string) bool {
		return l.nonfatal(model.DriverNVIDIA, strings.ToUpper(gpuAddress), code, reset)
	}
	if nonfatal("145") {
		t.Error("without a fault")
	}
	add("145", model.FaultNonfatal)
	add("149", model.FaultNonfatal)
	add("149", model.FaultFatal)
	add("95", "")
	if !nonfatal("145") || nonfatal("149") || nonfatal("95") {
		t.Errorf("%v %v %v", nonfatal("145"), nonfatal("149"), nonfatal("95"))
	}
	at, reset = begun.Add(time.Minute), begun.Add(time.Second)
	add("149", model.FaultNonfatal)
	if nonfatal("145") || !nonfatal("149") {
		t.Errorf("after a reset: %v %v", nonfatal("145"), nonfatal("149"))
	}
	add("149", model.FaultFatal)
	if nonfatal("149") {
		t.Error("fatal again after a reset")
	}
}
