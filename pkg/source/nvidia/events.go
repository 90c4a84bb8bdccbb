// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// eventWait is the maximum duration of one wait for an event, and of stopping.
	eventWait = 500 * time.Millisecond
	// maxXIDs bounds the codes of one device; the driver has fewer than 200. Further codes
	// count as code 0, which is not an XID.
	maxXIDs = 256
)

// xids counts the errors that the driver reports, for devices by UUID and for MIG instances by place. The counts are kept
// when the library is reopened.
type xids struct {
	mu      sync.Mutex
	counts  map[string]map[uint64]model.XID
	parts   map[string][]part                  // current MIG instances by the UUID of their device
	changed func(device string, now model.XID) // called after each XID, and with none when a device is first watched; may be nil
}

func newXIDs() *xids {
	return &xids{counts: make(map[string]map[uint64]model.XID), parts: make(map[string][]part)}
}

// split records the current MIG instances of a device.
func (x *xids) split(uuid string, parts []part) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.parts[uuid] = parts
}

// placeOf names a MIG instance by its place: the process that reads the events has no UUIDs of instances, because their
// handles would keep them busy.
func placeOf(uuid, gpuInstance, computeInstance string) string {
	return uuid + " " + gpuInstance + "/" + computeInstance
}

// culprit returns the place of the MIG instance that an event belongs to, and the UUID of the device if it belongs to none, or
// to a GPU instance with several compute instances.
func (x *xids) culprit(uuid string, e nvml.EventData) string {
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
			found = placeOf(uuid, strconv.Itoa(p.gpuInstance), strconv.Itoa(p.computeInstance))
		}
	}
	return found
}

// ofGPU returns the errors of a device or MIG instance. An instance at the place of one that was destroyed continues its counts.
func (x *xids) ofGPU(g *model.GPU) []model.XID {
	if g.Parent == "" {
		return x.of(g.UUID)
	}
	return x.of(placeOf(g.Parent, g.Instance, g.ComputeInstance))
}

// ofInstances returns the errors of a device's MIG instances.
func (x *xids) ofInstances(uuid string) (all []model.XID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for place, codes := range x.counts {
		if strings.HasPrefix(place, uuid+" ") {
			all = slices.AppendSeq(all, maps.Values(codes))
		}
	}
	return all
}

// of returns the errors of a device or place by code; nil if the device was never watched, or the instance had none.
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
		x.report(uuid, model.XID{})
	}
}

func (x *xids) report(uuid string, now model.XID) {
	if x.changed != nil {
		x.changed(uuid, now)
	}
}

// set records the count of a code; a zero XID records that the device is watched.
func (x *xids) set(uuid string, now model.XID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts[uuid] == nil {
		x.counts[uuid] = make(map[uint64]model.XID)
	}
	if now.Count > 0 {
		x.counts[uuid][now.Code] = now
	}
}

// all returns the errors of all devices that were watched, by UUID.
func (x *xids) all() map[string][]model.XID {
	x.mu.Lock()
	uuids := slices.Collect(maps.Keys(x.counts))
	x.mu.Unlock()
	all := make(map[string][]model.XID, len(uuids))
	for _, uuid := range uuids {
		all[uuid] = x.of(uuid)
	}
	return all
}

func (x *xids) add(uuid string, code uint64, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	codes := x.counts[uuid]
	if _, known := codes[code]; !known && len(codes) >= maxXIDs {
		code = 0
	}
	codes[code] = model.XID{Code: code, Count: codes[code].Count + 1, Last: now}
	x.report(uuid, codes[code])
}

// watch counts the critical XIDs of one device (nvmlEventSetWait with
// nvmlEventTypeXidCriticalError) until stop is closed, or the device or the library is gone. It calls changed when the driver
// reports that the recovery action has changed.
// Each device has its own event set: a hung device affects only its own XIDs. The driver does
// not queue events: XIDs without a watcher are not counted.
func (x *xids) watch(l *library, d nvml.Device, uuid string, changed func(), stop <-chan struct{}) {
	for x.listenTo(l, d, uuid, changed, stop) {
		select { // avoid a busy loop if the error persists
		case <-stop:
			return
		case <-time.After(eventWait):
		}
	}
}

// listenTo creates a set and counts its events. It returns true if it should be called again.
func (x *xids) listenTo(l *library, d nvml.Device, uuid string, changed func(), stop <-chan struct{}) bool {
	set, ret := l.EventSetCreate()
	if ret != nvml.SUCCESS {
		return transient(ret)
	}
	defer func() { _ = l.EventSetFree(set) }() // closing the library frees it in any case
	types := uint64(nvml.EventTypeXidCriticalError)
	if can, ret := d.GetSupportedEventTypes(); ret == nvml.SUCCESS { // drivers before 570 have no recovery action
		types |= can & nvml.EventTypeGpuRecoveryAction
	}
	if ret := d.RegisterEvents(types, set); ret != nvml.SUCCESS {
		return transient(ret)
	}
	x.listen(uuid)
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
			x.listen(culprit)
			x.add(culprit, event.EventData, time.Now())
		}
	}
}

// transient reports whether a failure may disappear by itself, like a lost device that comes
// back. Other failures end when the library is reopened.
func transient(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_UNKNOWN, nvml.ERROR_GPU_IS_LOST, nvml.ERROR_OPERATING_SYSTEM, nvml.ERROR_INSUFFICIENT_RESOURCES:
		return true
	}
	return false
}
