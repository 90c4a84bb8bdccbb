// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// uuids are the minor numbers of battlemage and flex.
var uuids = map[uint32]string{1: "xe", 129: "xe", 0: "i915", 128: "i915"}

func (n *node) lister() *lister {
	l := newLister(n.options())
	l.timeout, l.limit = time.Minute, time.Minute // for busy machines
	return l
}

func (n *node) list(l *lister, at int) []model.GPUProcess {
	n.t.Helper()
	got, err := l.list(uuids, time.Unix(int64(at), 0))
	n.check(err)
	return got
}

func process(gpu string, pid int, memory model.Optional, engines []model.Figure) model.GPUProcess {
	return model.GPUProcess{GPU: gpu, PID: pid, Cgroup: model.CgroupID(7000 + pid), Memory: memory, Engines: engines}
}

// TestRecordedProcesses lists clients whose fdinfo was recorded on real machines: pkg/drm/testdata/README.md.
func TestRecordedProcesses(t *testing.T) {
	n := newNode(t)
	for pid, c := range map[int]struct {
		file  string
		minor int
	}{100: {"xe", 129}, 101: {"i915", 128}, 102: {"xe-lunar-lake", 129}} {
		text, err := os.ReadFile(filepath.Join("../../drm/testdata", c.file+".fdinfo"))
		n.check(err)
		n.open(pid, 5, c.minor, "renderD", string(text))
	}
	got, want := n.list(n.lister(), 100), []model.GPUProcess{
		process("i915", 101, model.Optional{}, nil), // memory of the host
		process("xe", 100, model.Some(23992<<10), nil),
		process("xe", 102, model.Optional{}, nil),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// TestProcesses lists processes twice, ten seconds apart.
func TestProcesses(t *testing.T) {
	n := newNode(t)
	const clock = 19_200_000 // Hz: the timestamp of the GPU
	local := "drm-resident-local0:\t64 MiB\ndrm-resident-stolen-local0:\t1 MiB\n"
	n.open(100, 5, 129, "renderD129", fdinfoXe(7, 1<<20, 1e9, 0, 100*clock))
	n.open(90, 5, 129, "renderD129", fdinfoXe(7, 1<<20, 1e9, 0, 100*clock)) // has the client of 100, and a lower PID
	n.open(101, 6, 129, "renderD128", fdinfoXe(8, 512, 0, 4e6, 100*clock))  // the name in its container
	n.open(102, 4, 128, "renderD128", fdinfoI915(1, local, time.Hour))
	n.open(102, 5, 0, "card0", fdinfoI915(2, local, time.Second))
	n.open(103, 5, 128, "renderD128", fdinfoI915(3, "", time.Second)) // a GPU without its own memory
	n.open(104, 5, 128, "renderD128", fdinfoI915(4, "drm-resident-local0:\t0\n", 0))
	n.open(105, 5, 130, "renderD130", fdinfoXe(9, 512, 0, 1, 100*clock)) // of another GPU
	const mebibyte = 1 << 20
	l := n.lister()
	got, want := n.list(l, 100), []model.GPUProcess{
		process("i915", 102, model.Some(130*mebibyte), nil),
		process("i915", 103, model.Optional{}, nil),
		process("xe", 90, model.Some(1024*mebibyte), nil),
		process("xe", 101, model.Some(mebibyte/2), nil),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}

	// Of the GPU's ten seconds: two of the four compute engines for 5 s; copies for 1 s. One of i915's two video engines
	// for 5 s, by two clients.
	compute := fdinfoXe(7, 1<<20, 1e9+2*5*clock, 0, 110*clock)
	n.info(100, 5, compute)
	n.info(90, 5, compute)
	n.info(101, 6, fdinfoXe(8, 512, 0, 4e6+clock, 110*clock))
	n.info(102, 4, fdinfoI915(1, local, time.Hour+4*time.Second))
	n.info(102, 5, fdinfoI915(2, local, 2*time.Second))
	n.open(106, 5, 129, "renderD129", fdinfoXe(10, 4, 1e12, 0, 110*clock)) // new
	engine := func(name string, v float64) []model.Figure { return []model.Figure{{Name: name, Value: v}} }
	got, want = n.list(l, 110), []model.GPUProcess{
		process("i915", 102, model.Some(130*mebibyte), engine("video", 0.25)),
		process("i915", 103, model.Optional{}, engine("video", 0)),
		process("xe", 90, model.Some(1024*mebibyte), engine("compute", 0.25)),
		process("xe", 101, model.Some(mebibyte/2), engine("copy", 0.1)),
		process("xe", 106, model.Some(4096), nil),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}

	// The GPU was suspended: its clock starts again. No rate is known, until the next listing.
	n.info(101, 6, fdinfoXe(8, 512, 0, 4e6+2*clock, 3*clock))
	if p := n.list(l, 120)[3]; p.PID != 101 || p.Engines == nil || len(p.Engines) != 0 {
		t.Errorf("its clock started again: %+v", p)
	}
	n.info(101, 6, fdinfoXe(8, 512, 0, 4e6+3*clock, 5*clock))
	if p := n.list(l, 130)[3]; !reflect.DeepEqual(p.Engines, engine("copy", 0.5)) {
		t.Errorf("after it: %+v", p)
	}
}

// TestDips checks that a counter that falls for a moment is not counted twice, and that no ratio is above 1.
func TestDips(t *testing.T) {
	n := newNode(t)
	n.open(100, 5, 128, "renderD128", fdinfoI915(1, "", 100*time.Second))
	l := n.lister()
	n.list(l, 0)
	for i, c := range []struct {
		seconds, want float64
	}{{104, 0.2}, {102, 0}, {106, 0.1}, {200, 1}, {1, 0}, {3, 0}, {5, 0.1}} {
		n.info(100, 5, fdinfoI915(1, "", time.Duration(c.seconds*float64(time.Second))))
		got := n.list(l, (i+1)*10)
		if len(got) != 1 || len(got[0].Engines) != 1 || math.Abs(got[0].Engines[0].Value-c.want) > 1e-9 {
			t.Errorf("%d: %+v, want %v", i, got, c.want)
		}
	}
}

// TestHolders checks that only the processes that hold a device node are read, if they are known.
func TestHolders(t *testing.T) {
	n := newNode(t)
	for pid := 100; pid < 103; pid++ {
		n.open(pid, 5, 129, "renderD129", fdinfoXe(pid, 4, 0, 0, 1))
	}
	l := n.lister()
	known := true
	l.o.Holders = func() ([]int, bool) { return []int{102, 101, 102}, known }
	for _, want := range []int{2, 3} {
		if got := n.list(l, 1); len(got) != want {
			t.Errorf("%d processes, want %d", len(got), want)
		}
		known = false
	}
	l.timeout = 0
	if _, err := l.list(uuids, time.Unix(2, 0)); !errors.Is(err, drm.ErrBounded) {
		t.Errorf("without time: %v, want drm.ErrBounded", err)
	}
}

// TestHungClient checks that a process that cannot be read hides no other, and that it is reported.
func TestHungClient(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	for pid := 100; pid < 102; pid++ {
		n.open(pid, 5, 129, "renderD129", fdinfoXe(pid, 4, 0, 0, 1))
	}
	n.hang(filepath.Join(n.proc, "100/fdinfo/5"))
	s := start(t, n.options())
	snap := eventually(t, s, func(s model.Snapshot) bool { return len(s.GPUProcesses) == 1 && len(s.DeviceStates) == 2 })
	if p, st := snap.GPUProcesses[0], snap.DeviceStates[1]; p.PID != 101 || st.Device != "processes" || st.State != model.StateFailed {
		t.Errorf("%+v, %+v", p, st)
	}
}

func TestBusiest(t *testing.T) {
	figures := []model.Figure{{Name: "copy", Value: 0.25}, {Name: "render", Value: 0.5}, {Name: "video", Value: 0}}
	for want, engines := range map[model.Optional][]model.Figure{{}: nil, model.Some(0): {}, model.Some(0.5): figures} {
		if got := busiest(&model.GPUProcess{Engines: engines}); got != want {
			t.Errorf("%v: %v", engines, got)
		}
	}
}
