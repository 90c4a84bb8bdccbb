// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestPeers: in a hive the memory of a process on one GPU is mapped in its address space on
// the others, where fdinfo counts it, too (kfd_mem_attach: the VRAM of the same hive is the
// same buffer object). It must be counted for one GPU.
func TestPeers(t *testing.T) {
	n := newFakeProcs(t)
	n.gpu(1, 51001, 0xc100, 128)
	n.gpu(2, 51002, 0xc600, 129)
	cards := []model.GPU{
		{UUID: "a", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/dri/renderD128"}},
		{UUID: "b", PCIAddress: "0000:c6:00.0", Nodes: []string{"/dev/dri/renderD129"}},
	}
	n.compute(100, 51001, 10*gibibyte, 0, 0)
	n.compute(100, 51002, 4*gibibyte, 0, 0)
	n.file(100, 5, 128, "renderD128", fdinfo("0000:c1:00.0", 11, 14*gibibyte))
	n.file(100, 6, 129, "renderD129", fdinfo("0000:c6:00.0", 12, 14*gibibyte))
	for _, p := range n.list(n.lister(), cards, 1) {
		if want := map[string]float64{"a": 10 * gibibyte, "b": 4 * gibibyte}[p.GPU]; p.Memory != model.Some(want) {
			t.Errorf("%s: %v, want %v", p.GPU, p.Memory.Value, want)
		}
	}
}

// TestLocks checks that a process cannot hide behind locks on the node, which the kernel lists
// before the lines of the driver.
func TestLocks(t *testing.T) {
	n := newFakeProcs(t)
	n.gpu(1, 51001, 0xc100, 128)
	locks := strings.Repeat("lock:\t1: OFDLCK ADVISORY  WRITE -1 00:06:612 0 0\n", 5000)
	n.file(100, 5, 128, "renderD128", locks+fdinfo("0000:c1:00.0", 11, gibibyte))
	if got := n.list(n.lister(), threeGPUs(), 1); len(got) != 1 || got[0].Memory != model.Some(gibibyte) {
		t.Errorf("%+v", got)
	}
}

// TestOtherNodes checks that the fdinfo of a GPU of another vendor is not read, which would wake a suspended GPU of
// Intel's: here it is a pipe that blocks on open.
func TestOtherNodes(t *testing.T) {
	n := newFakeProcs(t)
	n.gpu(1, 51001, 0xc100, 128)
	n.file(100, 5, 131, "renderD131", "")
	n.file(100, 6, 128, "renderD128", fdinfo("0000:c1:00.0", 11, gibibyte))
	pipe := filepath.Join(n.proc, "100/fdinfo/5")
	if err := errors.Join(os.Remove(pipe), unix.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if fd, err := unix.Open(pipe, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			unix.Close(fd)
		}
	}()
	l := n.lister()
	l.clientsLimit = 5 * time.Second
	if got := n.list(l, threeGPUs(), 1); len(got) != 1 || got[0].Memory != model.Some(gibibyte) {
		t.Errorf("%+v", got)
	}
}

// TestHungKFDKeepsGraphicsProcesses checks that containers with hung KFD counters do not hide graphics
// processes.
func TestHungKFDKeepsGraphicsProcesses(t *testing.T) {
	n := newFakeProcs(t)
	n.gpu(1, 51001, 0xc100, 128)
	var fifos []string
	for pid := 100; pid < 120; pid++ {
		n.compute(pid, 51001, gibibyte, 0, 0)
		fifo := n.kfd("proc/" + strconv.Itoa(pid) + "/sdma_51001")
		if err := errors.Join(os.Remove(fifo), unix.Mkfifo(fifo, 0o600)); err != nil {
			t.Fatal(err)
		}
		fifos = append(fifos, fifo)
	}
	n.file(200, 5, 128, "renderD128", fdinfo("0000:c1:00.0", 11, gibibyte))
	l := n.lister()
	l.computeLimit = 10 * time.Millisecond
	defer func() {
		for _, f := range fifos {
			if fd, err := unix.Open(f, unix.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
				unix.Close(fd)
			}
		}
	}()
	got, err := l.list(threeGPUs(), time.Unix(1, 0))
	if len(got) != 21 || !errors.Is(err, drm.ErrBounded) {
		t.Errorf("%d processes, %v; want 21, drm.ErrBounded", len(got), err)
	}
}

// TestFewerLanes: a Radeon reduces its lanes while it is idle: that is not a problem.
func TestFewerLanes(t *testing.T) {
	r := reader{}
	for _, c := range []struct {
		generation, width float64
		degraded          bool
	}{{1, 1, false}, {4, 16, false}, {1, 8, false}, {4, 8, true}, {1, 1, true}, {4, 16, false}} {
		r.slow.PCIe = model.GPUPCIe{
			Generation: model.Some(c.generation), MaxGeneration: model.Some(4), Width: model.Some(c.width), MaxWidth: model.Some(16),
		}
		g := r.state().gpu
		if got := drm.Active(g.Problems, model.ProblemPCIeDegraded); got != c.degraded {
			t.Errorf("generation %v, %v lanes: degraded %v", c.generation, c.width, got)
		}
	}
}

// TestManyBadPages checks that all pages count.
func TestManyBadPages(t *testing.T) {
	n := newNode(t, "mi250")
	n.write("ras/gpu_vram_bad_pages", strings.Repeat("0x00000001 : 0x00001000 : R\n", 1000))
	var h health
	h.badPages(newDirectory(n.device), newDirectory(n.sysfs))
	if h.pages.reserved != 1000 {
		t.Errorf("%+v", h.pages)
	}
}

// TestOldListing checks that the memory of the GPU is updated when a listing hangs.
func TestOldListing(t *testing.T) {
	n := newNode(t, "mi250")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	g := read(t, s).GPUs[0]
	c := s.found()
	old := &listing{At: time.Now().Add(-time.Minute), GPUs: measured{gpus: map[string]model.GPU{g.UUID: {Memory: model.VideoMemory{Used: model.Some(1)}}}}}
	snap := s.snapshot(c, make([]bool, len(c)), old)
	if snap.GPUs[0].Memory.Used == model.Some(1) {
		t.Error("the value is a minute old")
	}
}

// TestEnergyDoesNotFall checks that amd-smi does not replace a table that is unreadable once.
func TestEnergyDoesNotFall(t *testing.T) {
	s := newSMI("", zap.NewNop())
	s.gpus, s.at = map[string]model.GPU{"0000:c1:00.0": {Energy: model.Some(990)}}, time.Now()
	s.merge(&model.GPU{PCIAddress: "0000:c1:00.0", Energy: model.Some(1000)})
	g := model.GPU{PCIAddress: "0000:c1:00.0"}
	if s.merge(&g); g.Energy.Known {
		t.Errorf("%v joules after 1000", g.Energy.Value)
	}
}

// TestPartitionEnginesSameTime checks that the engines of partitions also belong to the moment of
// the listing.
func TestPartitionEnginesSameTime(t *testing.T) {
	o := newNode(t, "mi300x").options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	parts := 0
	for _, g := range read(t, s).GPUs {
		if g.Parent == "" || g.Engines == nil {
			continue
		}
		parts++
		c := s.found()
		then := []model.Figure{{Name: "gfx", Value: 0.111}}
		snap := s.snapshot(c, make([]bool, len(c)), &listing{At: time.Now(), GPUs: measured{gpus: map[string]model.GPU{g.UUID: {Engines: then}}}})
		for _, now := range snap.GPUs {
			if v, _ := find(now.Engines, "gfx"); now.UUID == g.UUID && v != 0.111 {
				t.Errorf("%s: %v", g.ID, v)
			}
		}
	}
	if parts == 0 {
		t.Fatal("no partitions")
	}
}

// TestAllCardsReturn checks that the listing is not stuck when all cards were removed and
// return.
func TestAllCardsReturn(t *testing.T) {
	n := newNode(t, "mi250")
	s := start(t, n.options())
	read(t, s)
	n.check(os.Rename(n.path("/class/drm"), n.path("/class/gone")))
	if _, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
		t.Fatal(err)
	}
	eventually(t, s, func(model.Snapshot) bool { return s.listings.Last() == nil }) // a listing in progress may still arrive
}
