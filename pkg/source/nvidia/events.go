// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// eventWait is how long one wait for an event takes, and so stopping.
	eventWait = 500 * time.Millisecond
	// maxXIDs bounds the codes of one device; the driver knows of fewer than 200. What
	// comes after that counts as code 0, which is none.
	maxXIDs = 256
)

// xids counts the errors that the driver reports, for devices by UUID. It outlives the
// library: what was counted stays when that is opened again.
type xids struct {
	mu     sync.Mutex
	counts map[string]map[uint64]model.XID
}

func newXIDs() *xids { return &xids{counts: make(map[string]map[uint64]model.XID)} }

// of gives what a device reported, by code: nil when nobody ever listened to it.
func (x *xids) of(uuid string) []model.XID {
	x.mu.Lock()
	defer x.mu.Unlock()
	codes, listened := x.counts[uuid]
	if !listened {
		return nil
	}
	all := make([]model.XID, 0, len(codes))
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		all = append(all, codes[code])
	}
	return all
}

func (x *xids) listen(uuid string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts[uuid] == nil {
		x.counts[uuid] = make(map[uint64]model.XID)
	}
}

func (x *xids) add(uuid string, code uint64, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	codes := x.counts[uuid]
	if _, known := codes[code]; !known && len(codes) >= maxXIDs {
		code = 0
	}
	codes[code] = model.XID{Code: code, Count: codes[code].Count + 1, Last: now}
}

// watch counts the critical XIDs of devices (nvmlEventSetWait on
// nvmlEventTypeXidCriticalError) until stop is closed, or the library is gone. The
// driver remembers nothing for us: what happens while nobody listens is not counted.
func (x *xids) watch(l *library, devices map[nvml.Device]string, stop <-chan struct{}) {
	for _, symbol := range []string{"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetFree"} {
		if !l.has(symbol) {
			return
		}
	}
	if !l.hasVersion("nvmlEventSetWait") {
		return
	}
	left := maps.Clone(devices)
	for {
		set := x.register(l, left)
		if set == nil {
			return
		}
		again := x.wait(l, set, left, stop)
		_ = l.EventSetFree(set) // it goes with the library at the latest
		if !again {
			return
		}
		select { // an error that stays must not keep us busy
		case <-stop:
			return
		case <-time.After(eventWait):
		}
	}
}

// register makes a set of the events of those devices that have some, and takes the
// others out. It is nil when none is left. An unknown error leaves a set in an
// undefined state, says NVML: then the set is made anew, without that device.
func (x *xids) register(l *library, devices map[nvml.Device]string) nvml.EventSet {
	for len(devices) > 0 {
		set, ret := l.EventSetCreate()
		if ret != nvml.SUCCESS {
			return nil
		}
		broken := false
		for d := range maps.Clone(devices) {
			switch ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret {
			case nvml.SUCCESS:
				x.listen(devices[d])
				continue
			case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED:
				_ = l.EventSetFree(set)
				return nil
			case nvml.ERROR_UNKNOWN:
				broken = true
			}
			delete(devices, d)
			if broken {
				break
			}
		}
		if !broken && len(devices) > 0 {
			return set
		}
		_ = l.EventSetFree(set)
	}
	return nil
}

// wait counts events until stop is closed or the library is gone; it is true when the
// set is to be made again, because one of its devices is lost or the wait failed.
func (x *xids) wait(l *library, set nvml.EventSet, devices map[nvml.Device]string, stop <-chan struct{}) bool {
	for {
		select {
		case <-stop:
			return false
		default:
		}
		event, ret := l.EventSetWait(set, uint32(eventWait/time.Millisecond))
		switch ret {
		case nvml.SUCCESS:
			uuid, ours := devices[event.Device]
			if ours && event.EventType&nvml.EventTypeXidCriticalError != 0 && event.EventData != math.MaxUint64 {
				x.add(uuid, event.EventData, time.Now())
			}
		case nvml.ERROR_TIMEOUT:
		case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_FUNCTION_NOT_FOUND,
			nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED:
			return false
		default:
			return true
		}
	}
}
