// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxXIDs bounds the codes of one device; the driver has fewer than 200. Further codes count as code 0, which is not an
// XID.
const maxXIDs = 256

// CriticalXIDs are the XIDs for which NVIDIA's catalog (analyzing-xid-catalog, 2025-10) asks for a reset of the GPU, a
// power cycle or an inspection of the hardware: the application does not cause them. 144 to 150 are errors of NVLink 5;
// only the kernel log has their severity. 154 is missing here, because the driver reports it also after a GPU has
// recovered. The list is for drivers that do not report the recovery action: see verdict.go of the child.
var CriticalXIDs = []uint64{46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 144, 145, 146, 147, 148, 149, 150, 155, 156, 158}

// XIDs counts the errors that the driver reports, for devices by UUID and for MIG instances by place. The counts stay
// when the library is reopened.
type XIDs struct {
	mu     sync.Mutex
	counts map[string]map[uint64]model.XID
	// Changed is called after each XID, and with a zero XID when a device is first watched; may be nil.
	Changed func(device string, now model.XID)
}

// NewXIDs returns counts without a device.
func NewXIDs() *XIDs {
	return &XIDs{counts: make(map[string]map[uint64]model.XID)}
}

// PlaceOf names a MIG instance by its place: the process that reads the events has no UUIDs of instances, because their
// handles would keep the instances busy.
func PlaceOf(uuid, gpuInstance, computeInstance string) string {
	return uuid + " " + gpuInstance + "/" + computeInstance
}

// OfGPU returns the errors of a device or MIG instance. A new instance at the place of a destroyed instance continues
// its counts.
func (x *XIDs) OfGPU(g *model.GPU) []model.XID {
	if g.Parent == "" {
		return x.Of(g.UUID)
	}
	return x.Of(PlaceOf(g.Parent, g.Instance, g.ComputeInstance))
}

// OfInstances returns the errors of a device's MIG instances.
func (x *XIDs) OfInstances(uuid string) (all []model.XID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for place, codes := range x.counts {
		if strings.HasPrefix(place, uuid+" ") {
			all = slices.AppendSeq(all, maps.Values(codes))
		}
	}
	return all
}

// Of returns the errors of a device or place by code. It returns nil if the device was never watched, or the instance
// had no errors.
func (x *XIDs) Of(uuid string) []model.XID {
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

// Listen records that a device is watched.
func (x *XIDs) Listen(uuid string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts[uuid] == nil {
		x.counts[uuid] = make(map[uint64]model.XID)
		x.report(uuid, model.XID{})
	}
}

func (x *XIDs) report(uuid string, now model.XID) {
	if x.Changed != nil {
		x.Changed(uuid, now)
	}
}

// Set records the count of a code. A zero XID records that the device is watched.
func (x *XIDs) Set(uuid string, now model.XID) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts[uuid] == nil {
		x.counts[uuid] = make(map[uint64]model.XID)
	}
	if now.Count > 0 {
		x.counts[uuid][now.Code] = now
	}
}

// All returns the errors of all watched devices, by UUID.
func (x *XIDs) All() map[string][]model.XID {
	x.mu.Lock()
	uuids := slices.Collect(maps.Keys(x.counts))
	x.mu.Unlock()
	all := make(map[string][]model.XID, len(uuids))
	for _, uuid := range uuids {
		all[uuid] = x.Of(uuid)
	}
	return all
}

// Add counts an error.
func (x *XIDs) Add(uuid string, code uint64, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	codes := x.counts[uuid]
	if _, known := codes[code]; !known && len(codes) >= maxXIDs {
		code = 0
	}
	codes[code] = model.XID{Code: code, Count: codes[code].Count + 1, Last: now}
	x.report(uuid, codes[code])
}
