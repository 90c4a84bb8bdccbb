// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

type waitResult struct {
	event nvml.EventData
	ret   nvml.Return
}

// events is a fake library with one device. Its waits return the results that are sent to it, and time out otherwise.
type events struct {
	*Library
	mu      sync.Mutex
	open    map[nvml.EventSet]bool
	made    int
	results chan waitResult
}

func newEvents() *events {
	e := &events{open: map[nvml.EventSet]bool{}, results: make(chan waitResult)}
	e.Library = mocked(&mock.Interface{
		EventSetCreateFunc: func() (nvml.EventSet, nvml.Return) {
			e.mu.Lock()
			defer e.mu.Unlock()
			set := &mock.EventSet{}
			e.open[set] = true
			e.made++
			return set, nvml.SUCCESS
		},
		EventSetFreeFunc: func(set nvml.EventSet) nvml.Return {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.open, set)
			return nvml.SUCCESS
		},
		EventSetWaitFunc: func(set nvml.EventSet, ms uint32) (nvml.EventData, nvml.Return) {
			e.mu.Lock()
			open := e.open[set]
			e.mu.Unlock()
			if !open {
				return nvml.EventData{}, nvml.ERROR_INVALID_ARGUMENT
			}
			select {
			case h := <-e.results:
				return h.event, h.ret
			case <-time.After(min(time.Duration(ms)*time.Millisecond, 5*time.Millisecond)):
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		},
	})
	return e
}

func (e *events) xid(code uint64) {
	e.results <- waitResult{nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: code}, nvml.SUCCESS}
}

// watching starts a watch. end stops it, and fails if the watch does not end or does not free a set.
func (e *events) watching(t *testing.T, x *xidWatch, d nvml.Device) (end func(), done chan struct{}) {
	return e.watchingFor(t, x, d, func() {})
}

// watchingFor is watching with a function for changes of the recovery action.
func (e *events) watchingFor(t *testing.T, x *xidWatch, d nvml.Device, changed func()) (end func(), done chan struct{}) {
	stop := make(chan struct{})
	done = make(chan struct{})
	go func() {
		defer close(done)
		x.watch(e.Library, d, "GPU-a", changed, stop)
	}()
	return func() {
		t.Helper()
		close(stop)
		nvmltest.Ended(t, done)
		if len(e.open) > 0 {
			t.Error("an event set was not freed")
		}
	}, done
}

// listener returns a fake device of a driver without recovery actions. Registering returns rets.
func listener(rets ...nvml.Return) *mock.Device {
	return nvmltest.Missing(&mock.Device{RegisterEventsFunc: func(types uint64, _ nvml.EventSet) nvml.Return {
		if types != nvml.EventTypeXidCriticalError {
			return nvml.ERROR_NOT_SUPPORTED
		}
		ret := rets[0]
		if len(rets) > 1 {
			rets = rets[1:]
		}
		return ret
	}})
}

func counts(xs []model.XID) map[uint64]uint64 {
	m := map[uint64]uint64{}
	for _, x := range xs {
		m[x.Code] = x.Count
	}
	return m
}

// TestXIDs counts with a fake library and with its successor.
func TestXIDs(t *testing.T) {
	x, e := newXIDWatch(wire.NewXIDs()), newEvents()
	if x.Of("GPU-a") != nil {
		t.Error("there are XIDs before the first watch")
	}
	begin := time.Now()
	end, _ := e.watching(t, x, listener(nvml.SUCCESS))
	e.xid(79)
	e.xid(13)
	time.Sleep(20 * time.Millisecond) // some waits time out
	// When the session receives this event, it has counted the events before.
	e.results <- waitResult{nvml.EventData{EventType: nvml.EventTypeDoubleBitEccError, EventData: 5}, nvml.SUCCESS}
	between := time.Now()
	e.xid(79)
	end()
	if got := x.Of("GPU-a"); len(got) != 2 || got[0].Code != 13 || got[1].Code != 79 || got[0].Count != 1 || got[1].Count != 2 ||
		got[0].Last.Before(begin) || got[0].Last.After(between) || got[1].Last.Before(between) || got[1].Last.After(time.Now()) {
		t.Errorf("%+v", got)
	}
	if e.made != 1 {
		t.Errorf("%d sets: a wait that times out is no failure", e.made)
	}

	e = newEvents()
	end, done := e.watching(t, x, listener(nvml.SUCCESS))
	e.xid(13)
	e.results <- waitResult{ret: nvml.ERROR_UNINITIALIZED} // the library is closed
	nvmltest.Ended(t, done)
	end()
	if got := counts(x.Of("GPU-a")); got[13] != 2 || got[79] != 2 {
		t.Errorf("after the library was reopened: %v", got)
	}
}

// TestXIDsAgain: the set is created again after an unknown error, which leaves the set in an undefined state according
// to NVML, and after a lost device, which may be reset.
func TestXIDsAgain(t *testing.T) {
	x, e := newXIDWatch(wire.NewXIDs()), newEvents()
	end, done := e.watching(t, x, listener(nvml.ERROR_UNKNOWN, nvml.SUCCESS))
	e.xid(31) // not received before the set exists
	e.results <- waitResult{ret: nvml.ERROR_UNKNOWN}
	e.xid(31)
	if got := counts(x.Of("GPU-a")); e.made != 3 || got[31] < 1 {
		t.Errorf("%d sets, %v", e.made, got)
	}
	e.results <- waitResult{ret: nvml.ERROR_GPU_IS_LOST}
	e.xid(31)
	end()
	nvmltest.Ended(t, done)
	if got := counts(x.Of("GPU-a")); e.made != 4 || got[31] != 3 {
		t.Errorf("%d sets, %v", e.made, got)
	}
}

// TestXIDsUnsupported: watching ends by itself if the device has no events.
func TestXIDsUnsupported(t *testing.T) {
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_UNINITIALIZED} {
		e, x := newEvents(), newXIDWatch(wire.NewXIDs())
		_, done := e.watching(t, x, listener(ret))
		nvmltest.Ended(t, done)
		if len(e.open) > 0 || x.Of("GPU-a") != nil {
			t.Errorf("%v: %d sets, %v", ret, len(e.open), x.Of("GPU-a"))
		}
	}
	newXIDWatch(wire.NewXIDs()).watch(mocked(nvmltest.Missing(&mock.Interface{})), listener(), "GPU-a", nil, nil)
}

// TestXIDsOfParts: an event belongs only to the MIG instance with its GPU and compute instance.
func TestXIDsOfParts(t *testing.T) {
	x, e := newXIDWatch(wire.NewXIDs()), newEvents()
	x.split("GPU-a", []part{
		{gpuInstance: 1}, {gpuInstance: 2}, {gpuInstance: 2, computeInstance: 1},
	})
	end, _ := e.watching(t, x, listener(nvml.SUCCESS))
	of := func(code uint64, gpuInstance, computeInstance uint32) {
		e.results <- waitResult{nvml.EventData{
			EventType: nvml.EventTypeXidCriticalError, EventData: code, GpuInstanceId: gpuInstance, ComputeInstanceId: computeInstance,
		}, nvml.SUCCESS}
	}
	of(31, 2, 1)
	of(31, 2, 1)
	of(94, 1, noInstance)
	of(94, 2, noInstance) // of one of two compute instances
	of(13, 7, 0)          // of a destroyed instance
	of(79, noInstance, noInstance)
	x.split("GPU-a", nil)
	of(43, 1, 0)
	end()
	instance := func(gpuInstance, computeInstance string) *model.GPU {
		return &model.GPU{UUID: "MIG-" + gpuInstance + computeInstance, Parent: "GPU-a", Instance: gpuInstance, ComputeInstance: computeInstance}
	}
	for _, c := range []struct {
		g    *model.GPU
		want map[uint64]uint64
	}{
		{&model.GPU{UUID: "GPU-a"}, map[uint64]uint64{94: 1, 13: 1, 79: 1, 43: 1}},
		{instance("1", "0"), map[uint64]uint64{94: 1}},
		{instance("2", "1"), map[uint64]uint64{31: 2}},
		{instance("2", "0"), map[uint64]uint64{}},
	} {
		if got := counts(x.OfGPU(c.g)); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.g.UUID, got, c.want)
		}
	}
	if x.OfGPU(instance("2", "0")) != nil {
		t.Error("an instance without XIDs has counters")
	}
}
