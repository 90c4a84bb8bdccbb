// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// eventWait is the maximum duration of one wait for an event, and of stopping.
const eventWait = 500 * time.Millisecond

type xidWatch struct {
	*wire.XIDs
	mu    sync.Mutex
	parts map[string][]part // current MIG instances by the UUID of their device
}

func newXIDWatch(x *wire.XIDs) *xidWatch { return &xidWatch{XIDs: x, parts: make(map[string][]part)} }

// split records the current MIG instances of a device.
func (x *xidWatch) split(uuid string, parts []part) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.parts[uuid] = parts
}

// culprit returns the place of the MIG instance that an event belongs to. It returns the device's UUID if the event
// belongs to no instance, or to a GPU instance with several compute instances.
func (x *xidWatch) culprit(uuid string, e nvml.EventData) string {
	if e.GpuInstanceId == noInstance {
		return uuid
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	found := uuid
	for _, p := range x.parts[uuid] {
		switch {
		case p.gpuInstance != int(e.GpuInstanceId) || e.ComputeInstanceId != noInstance && p.computeInstance != int(e.ComputeInstanceId):
		case found != uuid:
			return uuid
		default:
			found = wire.PlaceOf(uuid, strconv.Itoa(p.gpuInstance), strconv.Itoa(p.computeInstance))
		}
	}
	return found
}

// watch counts the critical XIDs of one device (nvmlEventSetWait with nvmlEventTypeXidCriticalError) until stop is
// closed, or the device or the library is gone. It calls changed when the driver reports another recovery action. Each
// device has its own event set: a hung device affects only its own XIDs. The driver does not queue events: XIDs without
// a watcher are not counted.
func (x *xidWatch) watch(l *Library, d nvml.Device, uuid string, changed func(), stop <-chan struct{}) {
	for x.listenTo(l, d, uuid, changed, stop) {
		select { // avoids a busy loop if the error persists
		case <-stop:
			return
		case <-time.After(eventWait):
		}
	}
}

// listenTo creates a set and counts its events. It returns true if it should be called again.
func (x *xidWatch) listenTo(l *Library, d nvml.Device, uuid string, changed func(), stop <-chan struct{}) bool {
	set, ret := l.EventSetCreate()
	if ret != nvml.SUCCESS {
		return transient(ret)
	}
	defer func() { _ = l.EventSetFree(set) }() // closing the library frees the set in any case
	types := uint64(nvml.EventTypeXidCriticalError)
	if can, ret := d.GetSupportedEventTypes(); ret == nvml.SUCCESS { // drivers before 570 have no recovery action
		types |= can & nvml.EventTypeGpuRecoveryAction
	}
	if ret := d.RegisterEvents(types, set); ret != nvml.SUCCESS {
		return transient(ret)
	}
	x.Listen(uuid)
	for {
		select {
		case <-stop:
			return false
		default:
		}
		event, ret := l.EventSetWait(set, uint32(eventWait/time.Millisecond))
		switch {
		case ret == nvml.ERROR_TIMEOUT:
		case ret != nvml.SUCCESS:
			return transient(ret)
		case event.EventType&nvml.EventTypeGpuRecoveryAction != 0:
			changed()
		case event.EventType&nvml.EventTypeXidCriticalError != 0 && event.EventData != math.MaxUint64:
			culprit := x.culprit(uuid, event)
			x.Listen(culprit)
			x.Add(culprit, event.EventData, time.Now())
		}
	}
}

// transient reports whether a failure may disappear by itself, like a lost device that comes back. Other failures end
// when the library is reopened.
func transient(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_UNKNOWN, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_OPERATING_SYSTEM, nvml.ERROR_INSUFFICIENT_RESOURCES:
		return true
	}
	return false
}
