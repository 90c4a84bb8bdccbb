// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// fakeProcs is a FAKE of /sys/class/kfd and of /proc, made from the kernel's sources:
// kfd_topology.c, kfd_process.c, amdgpu_fdinfo.c (5.15, 6.1, 6.14). There is no AMD GPU where
// the tests run. The device nodes of descriptors have the true numbers (226:128 and so on):
// the test creates them and requires root.
type fakeProcs struct {
	t         *testing.T
	sys, proc string
}

func newFakeProcs(t *testing.T) fakeProcs {
	t.Helper()
	dir := t.TempDir()
	n := fakeProcs{t, filepath.Join(dir, "sys"), filepath.Join(dir, "proc")}
	n.write(n.kfd("topology/generation_id"), "2\n")
	if err := os.MkdirAll(n.proc, 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n fakeProcs) kfd(name string) string { return filepath.Join(n.sys, "class/kfd/kfd", name) }

func (n fakeProcs) write(name, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// gpu adds a node of the topology with 304 compute units and 16 SDMA engines, like an MI300X.
func (n fakeProcs) gpu(number, gpuID, location, minor int) {
	n.t.Helper()
	dir := n.kfd("topology/nodes/" + strconv.Itoa(number))
	n.write(dir+"/gpu_id", fmt.Sprintf("%d\n", gpuID))
	n.write(dir+"/properties", fmt.Sprintf("cpu_cores_count 0\nsimd_count 1216\nmem_banks_count 1\nsimd_per_cu 4\n"+
		"vendor_id 4098\ndevice_id 29857\nlocation_id %d\ndomain 0\ndrm_render_minor %d\nhive_id 0\n"+
		"num_sdma_engines 2\nnum_sdma_xgmi_engines 14\nunique_id 8000123456789012345\nnum_xcc 8\n", location, minor))
}

// compute writes KFD's files of a process for a GPU.
func (n fakeProcs) compute(pid, gpuID int, vram, sdma uint64, cu int) {
	n.t.Helper()
	dir := n.kfd("proc/" + strconv.Itoa(pid))
	n.write(dir+"/pasid", "32771\n")
	n.write(fmt.Sprintf("%s/vram_%d", dir, gpuID), fmt.Sprintf("%d\n", vram))
	n.write(fmt.Sprintf("%s/sdma_%d", dir, gpuID), fmt.Sprintf("%d\n", sdma))
	n.write(fmt.Sprintf("%s/stats_%d/cu_occupancy", dir, gpuID), fmt.Sprintf("%d\n", cu))
	n.write(fmt.Sprintf("%s/stats_%d/evicted_ms", dir, gpuID), "0\n")
}

// file gives the process a descriptor of the node with that minor number, with the name in its
// container.
func (n fakeProcs) file(pid, fd, minor int, name, fdinfo string) {
	n.t.Helper()
	dir := filepath.Join(n.proc, strconv.Itoa(pid))
	device := filepath.Join(filepath.Dir(n.proc), "containers", strconv.Itoa(pid), name)
	link := filepath.Join(dir, "fd", strconv.Itoa(fd))
	for _, d := range []string{filepath.Dir(device), filepath.Dir(link)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(226, uint32(minor)))); err != nil && !errors.Is(err, unix.EEXIST) {
		n.t.Fatalf("the tests need root: mknod %s: %v", device, err)
	}
	if err := os.Symlink(device, link); err != nil && !errors.Is(err, os.ErrExist) {
		n.t.Fatal(err)
	}
	n.info(pid, fd, fdinfo)
}

func (n fakeProcs) info(pid, fd int, fdinfo string) {
	n.t.Helper()
	n.write(filepath.Join(n.proc, strconv.Itoa(pid), "fdinfo", strconv.Itoa(fd)),
		"pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t612\n"+fdinfo)
}

// fdinfo returns the text of a kernel since 6.13.
func fdinfo(address string, client int, vram uint64, engines ...string) string {
	return fmt.Sprintf("drm-driver:\tamdgpu\ndrm-client-id:\t%d\ndrm-pdev:\t%s\npasid:\t32771\n"+
		"drm-total-vram:\t99999999 KiB\ndrm-shared-vram:\t0\ndrm-resident-vram:\t%d KiB\ndrm-purgeable-vram:\t0\n"+
		"drm-total-gtt:\t2 MiB\ndrm-resident-gtt:\t2 MiB\ndrm-memory-vram:\t%d KiB\namd-evicted-vram:\t0 KiB\n",
		client, address, vram>>10, vram>>10) + strings.Join(engines, "")
}

func engineTime(name string, d time.Duration) string {
	return fmt.Sprintf("drm-engine-%s:\t%d ns\n", name, d.Nanoseconds())
}

func (n fakeProcs) lister() *lister {
	return unlimited(newLister(Options{
		Sysfs: n.sys, Procfs: n.proc, CgroupOf: func(pid int) (model.CgroupID, error) {
			if pid == 104 {
				return 0, errors.New("gone")
			}
			return model.CgroupID(7000 + pid), nil
		},
	}))
}

// unlimited raises the time limits, for busy machines.
func unlimited(l *lister) *lister {
	l.timeout, l.computeLimit, l.clientsLimit = time.Minute, time.Minute, time.Minute
	return l
}

func (n fakeProcs) list(l *lister, cards []model.GPU, at int) []model.GPUProcess {
	n.t.Helper()
	got, err := l.list(cards, time.Unix(int64(at), 0))
	if err != nil {
		n.t.Fatal(err)
	}
	return got
}

func wantProcesses(t *testing.T, got []model.GPUProcess, want ...model.GPUProcess) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// threeGPUs returns a whole accelerator and two partitions of another.
func threeGPUs() []model.GPU {
	return []model.GPU{
		{UUID: "whole", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/dri/card1", "/dev/dri/renderD128"}},
		{UUID: "part0", PCIAddress: "0000:c6:00.0", Nodes: []string{"/dev/dri/card2", "/dev/dri/renderD129"}},
		{UUID: "part1", PCIAddress: "0000:c6:00.0", Parent: "part0", Nodes: []string{"/dev/dri/card3", "/dev/dri/renderD130"}},
	}
}

const gibibyte = 1 << 30

func TestProcesses(t *testing.T) {
	n := newFakeProcs(t)
	n.write(n.kfd("topology/nodes/0/gpu_id"), "0\n") // a CPU
	n.write(n.kfd("topology/nodes/0/properties"), "cpu_cores_count 64\nsimd_count 0\n")
	n.gpu(1, 51001, 0xc100, 128)
	n.gpu(2, 51002, 0xc600, 129)
	n.gpu(3, 51003, 0xc600, 130)

	// 100 computes and draws: KFD reports 10 GiB, its two clients have these and 2 more, which
	// are unattributed. A process that it started, with a lower PID, has inherited the first.
	n.compute(100, 51001, 10*gibibyte, 1000, 76)
	n.compute(100, 51002, 0, 0, 0)
	n.compute(100, 51003, 0, 0, 0)
	n.file(100, 5, 128, "renderD128", fdinfo("0000:c1:00.0", 11, 10*gibibyte, engineTime("compute", time.Second)))
	n.file(100, 6, 128, "renderD128", fdinfo("0000:c1:00.0", 12, 2*gibibyte, engineTime("gfx", time.Second)))
	n.file(99, 5, 128, "renderD128", fdinfo("0000:c1:00.0", 11, 10*gibibyte, engineTime("compute", time.Second)))
	// 101 computes on a partition; part of its memory is shared with the CPU and not in a
	// client. Its container uses another name for the node. It has a second context.
	n.compute(101, 51003, 6*gibibyte, 0, 0)
	n.write(n.kfd("proc/101/context_1/vram_51003"), fmt.Sprintln(2*gibibyte))
	n.file(101, 9, 130, "renderD128", fdinfo("0000:c6:00.0", 13, 1*gibibyte))
	// 102 and 103 draw: 103 has the client of 102 and twice one of its own.
	n.file(102, 3, 1, "card1", fdinfo("0000:c1:00.0", 21, gibibyte, engineTime("dec", 2*time.Second)))
	n.file(103, 3, 1, "card1", fdinfo("0000:c1:00.0", 21, gibibyte, engineTime("dec", 2*time.Second)))
	n.file(103, 4, 128, "renderD128", fdinfo("0000:c1:00.0", 22, gibibyte/2))
	n.file(103, 5, 128, "renderD128", fdinfo("0000:c1:00.0", 22, gibibyte/2))
	// 104 has the format of kernel 5.15. 105 opened the card and did nothing; 106 has another
	// driver.
	n.file(104, 3, 129, "renderD129", "pdev:\t0000:c6:00.0\npasid:\t32770\nvram mem:\t4096 kB\ngtt mem:\t8 kB\ncpu mem:\t0 kB\ngfx0:\t3.7%\n")
	n.file(105, 3, 128, "renderD128", fdinfo("0000:c1:00.0", 23, 0))
	n.file(106, 3, 128, "renderD128", strings.Replace(fdinfo("0000:c1:00.0", 24, gibibyte), "amdgpu", "i915", 1))

	process := func(gpu string, pid int, memory float64, engines ...model.Figure) model.GPUProcess {
		p := model.GPUProcess{GPU: gpu, PID: pid, Cgroup: model.CgroupID(7000 + pid), Memory: model.Some(memory), Engines: engines}
		if pid == 104 {
			p.Cgroup = 0
		}
		return p
	}
	l := n.lister()
	wantProcesses(
		t, n.list(l, threeGPUs(), 100),
		process("part0", 104, 4<<20),
		process("part1", 101, 8*gibibyte),
		process("whole", 100, 10*gibibyte),
		process("whole", 102, gibibyte),
		process("whole", 103, gibibyte/2),
	)

	// Ten seconds later: 2.5 s of compute, 0.5 s of gfx; SDMA 8 s of the 160 that 16 engines
	// have; 102 has decoded for 5 s and begun to encode.
	n.compute(100, 51001, 10*gibibyte, 1000+8e6, 152)
	both := fdinfo("0000:c1:00.0", 11, 10*gibibyte, engineTime("compute", 3500*time.Millisecond))
	n.info(100, 5, both)
	n.info(99, 5, both)
	n.info(100, 6, fdinfo("0000:c1:00.0", 12, 2*gibibyte, engineTime("gfx", 1500*time.Millisecond)))
	both = fdinfo("0000:c1:00.0", 21, gibibyte, engineTime("dec", 7*time.Second), engineTime("enc", 5*time.Second), "drm-engine-capacity-enc:\t2\n")
	n.info(102, 3, both)
	n.info(103, 3, both)
	n.file(107, 3, 128, "renderD128", fdinfo("0000:c1:00.0", 25, gibibyte, engineTime("gfx", time.Hour))) // new
	wantProcesses(
		t, n.list(l, threeGPUs(), 110),
		process("part0", 104, 4<<20),
		process("part1", 101, 8*gibibyte, model.Figure{Name: "cu"}, model.Figure{Name: "sdma"}),
		process(
			"whole", 100, 10*gibibyte, model.Figure{Name: "compute", Value: 0.25}, model.Figure{Name: "cu", Value: 0.5},
			model.Figure{Name: "gfx", Value: 0.05}, model.Figure{Name: "sdma", Value: 0.05},
		),
		process("whole", 102, gibibyte, model.Figure{Name: "decoder", Value: 0.5}, model.Figure{Name: "encoder", Value: 0.25}),
		process("whole", 103, gibibyte/2, []model.Figure{}...),
		process("whole", 107, gibibyte),
	)
	if got := n.list(l, threeGPUs(), 120); got[4].Engines == nil || len(got[4].Engines) != 0 {
		t.Errorf("a process that used no engine has %#v, want none, but known", got[4].Engines)
	}
}

// TestHolders checks that only the given processes and KFD's processes are read.
func TestHolders(t *testing.T) {
	n := newFakeProcs(t)
	n.gpu(1, 51001, 0xc100, 128)
	n.compute(100, 51001, gibibyte, 0, 0)
	for pid := 101; pid <= 103; pid++ {
		n.file(pid, 3, 128, "renderD128", fdinfo("0000:c1:00.0", pid, gibibyte))
	}
	l := n.lister()
	known := true
	l.o.Holders = func() ([]int, bool) { return []int{102, 102, 100}, known }
	pids := func() (pids []int) {
		for _, p := range n.list(l, threeGPUs(), 1) {
			pids = append(pids, p.PID)
		}
		return pids
	}
	if got, want := pids(), []int{100, 102}; !reflect.DeepEqual(got, want) {
		t.Errorf("with holders: %v, want %v", got, want)
	}
	known = false
	if got, want := pids(), []int{100, 101, 102, 103}; !reflect.DeepEqual(got, want) {
		t.Errorf("without: %v, want %v", got, want)
	}
	l.timeout = 0
	if _, err := l.list(threeGPUs(), time.Unix(2, 0)); !errors.Is(err, drm.ErrBounded) {
		t.Errorf("without time: %v, want drm.ErrBounded", err)
	}
}

// TestHang: the counters of a process, here a FIFO without a writer, cannot be read. Only its
// engines are missing, and only the first listing waits.
func TestHang(t *testing.T) {
	n := newFakeProcs(t)
	n.gpu(1, 51001, 0xc100, 128)
	n.compute(100, 51001, gibibyte, 0, 0)
	n.compute(101, 51001, 2*gibibyte, 0, 304)
	fifo := n.kfd("proc/100/sdma_51001")
	if err := errors.Join(os.Remove(fifo), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	l := n.lister()
	l.computeLimit = 200 * time.Millisecond
	for i := range 3 {
		begin := time.Now()
		got, err := l.list(threeGPUs(), time.Unix(int64(i), 0))
		took := time.Since(begin)
		l.computeLimit = time.Minute // for repeated waits
		if len(got) != 2 || got[0].Memory != model.Some(gibibyte) || got[0].Engines != nil {
			t.Errorf("the process that hangs: %+v", got)
		}
		if i > 0 && (len(got[1].Engines) != 2 || took >= l.computeLimit/2) {
			t.Errorf("the other one, after %v: %+v", took, got[1])
		}
		if !errors.Is(err, drm.ErrBounded) {
			t.Errorf("%v, want drm.ErrBounded", err)
		}
	}
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { // it has returned
		_, err := l.compute.Do(t.Context(), 100, l.computeLimit, func() ([]computeUse, error) { return nil, nil })
		return err == nil
	})
	n.compute(100, 51001, gibibyte, 0, 0)
	n.list(l, threeGPUs(), 10)
	if got := n.list(l, threeGPUs(), 11); len(got) != 2 || len(got[0].Engines) != 2 {
		t.Errorf("after it returned: %+v", got)
	}
}

// TestRealProc reads the real processes of this machine without an AMD GPU: none is found, no
// read fails.
func TestRealProc(t *testing.T) {
	l := unlimited(newLister(Options{Sysfs: t.TempDir(), Procfs: "/proc"}))
	begin := time.Now()
	got, err := l.list(threeGPUs(), begin)
	if err != nil || len(got) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	entries, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	t.Logf("%v, with about %d files", time.Since(begin).Round(time.Microsecond), len(entries))
}

// TestRates checks that the ratios of an engine times the time add up to the growth of its
// counter, unless the engine was used for more than all of the time.
func TestRates(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		key := drm.Key{GPU: "whole", ID: 1}
		var counters drm.Counters
		now, busy, used, start := time.Duration(0), uint64(0), 0.0, uint64(0)
		for i := range 20 {
			step := time.Duration(1 + r.IntN(1e10))
			if i > 0 {
				now += step
				busy += uint64(r.Float64() * float64(step))
			} else {
				busy = r.Uint64N(1e12)
				start = busy
			}
			counters.Begin()
			k := usageScan{counters: &counters, now: now, usages: map[drm.Use]*usage{}}
			k.client(1, key, client{counts: true, memory: 1, engines: map[string]drm.Engine{"gfx": {Busy: busy}}})
			got := k.usages[drm.Use{GPU: "whole", PID: 1}].engines
			ratio := got.Ratios["gfx"]
			if ratio < 0 || ratio > 1 || i == 0 && got.Known {
				t.Fatalf("scan %d: %v", i, ratio)
			}
			used += ratio * step.Seconds()
		}
		if want := float64(busy-start) / 1e9; math.Abs(used-want) > 1e-6 {
			t.Fatalf("%v s by ratios, %v s by the counter", used, want)
		}
	}
}

// TestActivity: compute is measured by the compute units that it occupies. Copying is no activity of the GPU.
func TestActivity(t *testing.T) {
	engines := func(list ...any) drm.Engines {
		e := drm.Engines{Known: true}
		for i := 0; i < len(list); i += 2 {
			e.Add(list[i].(string), list[i+1].(float64))
		}
		return e
	}
	for name, c := range map[string]struct {
		use  usage
		want model.Optional
	}{
		"first listing":             {usage{client: 1}, model.Optional{}},
		"nothing":                   {usage{client: 1, engines: engines()}, model.Some(0)},
		"graphics":                  {usage{client: 1, engines: engines("gfx", 0.25, "decoder", 0.5)}, model.Some(0.5)},
		"compute":                   {usage{compute: 1, engines: engines("cu", 0.75, "sdma", 1.0)}, model.Some(0.75)},
		"compute of older hardware": {usage{compute: 1, engines: engines("sdma", 1.0, "gfx", 0.0)}, model.Optional{}},
		"compute that does nothing": {usage{compute: 1, engines: engines("cu", 0.0)}, model.Some(0)},
		"compute and graphics":      {usage{compute: 1, engines: engines("cu", 0.25, "gfx", 0.5)}, model.Some(0.5)},
	} {
		if got := c.use.activity(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
