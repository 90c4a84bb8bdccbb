// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// device is one GPU. Only its worker touches what is not atomic.
type device struct {
	*worker
	o       Options
	lib     *library
	sampler *sampler
	xids    *xids
	notify  func(why error) // wakes the keeper, which opens the library again if there is a reason
	// address is where it is on the bus, index its place among the devices. One that
	// the kernel does not show is found by its index.
	address string
	index   int
	since   time.Time // when it was seen first, by this driver

	attached  atomic.Pointer[attachment]
	last      atomic.Pointer[reading]     // what it told last
	identity  atomic.Pointer[[]model.GPU] // of the device and of its parts: what remains when it does not answer
	shown     told                        // by the last round that was complete
	draft     told                        // of the round that is under way
	parts     []part
	health    health
	reasons   uint64 // that it knows
	err, slow error  // why it, or what is slow of it, could not be read last
}

// told is what a round tells. It appears as a whole, so that the memory of a device
// and that of its processes are of one moment.
type told struct {
	facts     model.GPU
	parts     []model.GPU
	processes []model.GPUProcess // nil when not listed
}

// attachment is the handle of a device that answered.
type attachment struct {
	handle nvml.Device
	uuid   string
}

// reading is what a device told.
type reading struct {
	id        string
	gpus      []model.GPU
	processes []model.GPUProcess
	err       error
}

// errHidden says that the kernel has a GPU that was not given to us.
var errHidden = errors.New("not visible: its device node is not ours to open")

// key is what a device is known by while it has not told its name.
func (d *device) key() string { return d.address + "#" + strconv.Itoa(d.index) }

// round is what the worker does every interval.
func (d *device) round() []func() {
	steps := []func(){
		func() { d.slow = nil; d.attach() }, d.readModes, d.readSlowly,
		d.receives, d.transmits, d.readLinks, d.readParts, d.readProcesses, d.readHealth, d.publish,
		func() { d.answer() },
	}
	for i, step := range steps {
		steps[i] = func() {
			if !d.asleep() && (i == 0 || d.attached.Load() != nil) {
				step()
			}
		}
	}
	return steps
}

// attach gets the handle of the device, and what of it does not change.
func (d *device) attach() {
	if d.attached.Load() != nil {
		return
	}
	var handle nvml.Device
	var ret nvml.Return
	if d.address != "" {
		handle, ret = d.lib.DeviceGetHandleByPciBusId(d.address)
	} else {
		handle, ret = d.lib.DeviceGetHandleByIndex(d.index)
	}
	if ret == nvml.ERROR_NOT_FOUND || ret == nvml.ERROR_NO_PERMISSION {
		d.err = errHidden
		return
	}
	d.health.lost = false
	if !d.noted("nvmlDeviceGetHandle", ret) {
		return
	}
	uuid, ret := handle.GetUUID()
	if !d.noted("nvmlDeviceGetUUID", ret) {
		return
	}
	d.err = nil
	d.draft.facts = describe(d.o, handle, d.address, d.index)
	d.draft.facts.UUID, d.draft.facts.Unlisted = uuid, true // until the first round
	d.reasons = d.lib.supportedReasons(handle)
	d.attached.Store(&attachment{handle, uuid})
	d.publish()
	d.notify(nil)
}

// noted says whether a call succeeded, and remembers what its failure says about
// the device, or about the library.
func (d *device) noted(call string, ret nvml.Return) bool {
	switch ret {
	case nvml.SUCCESS:
		return true
	case nvml.ERROR_GPU_IS_LOST:
		d.health.lost = true
	case nvml.ERROR_RESET_REQUIRED:
		d.health.reset = true
	case nvml.ERROR_CORRUPTED_INFOROM:
		d.health.inforom = true
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		d.notify(fmt.Errorf("%s: %w", call, ret))
	}
	if !figureOnly(ret) {
		d.err = fmt.Errorf("%s: %w", call, ret)
	}
	return false
}

// figureOnly says of a failure that it is one of the figure, and none of the device.
func figureOnly(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_FUNCTION_NOT_FOUND,
		nvml.ERROR_INVALID_ARGUMENT:
		return true
	}
	return false
}

func (d *device) readSlowly() { d.lib.slowly(d.attached.Load().handle, &d.draft.facts) }

// receives and transmits take 20 ms each, for which the driver measures.
func (d *device) receives() {
	d.draft.facts.PCIe.Receive = d.lib.throughput(d.attached.Load().handle, nvml.PCIE_UTIL_RX_BYTES)
}

func (d *device) transmits() {
	d.draft.facts.PCIe.Transmit = d.lib.throughput(d.attached.Load().handle, nvml.PCIE_UTIL_TX_BYTES)
}

func (d *device) readLinks() { d.draft.facts.Links = d.lib.links(d.attached.Load().handle) }

func (d *device) readParts() {
	d.parts, d.draft.parts = d.lib.partsOf(d.o, d.attached.Load().handle, d.draft.facts, d.draft.parts)
	for i := range d.parts {
		d.lib.slowly(d.parts[i].handle, &d.draft.parts[i])
	}
}

// readProcesses reads what is shared by them, too, so that it is of one moment.
func (d *device) readProcesses() {
	a, g := d.attached.Load(), &d.draft.facts
	g.Memory = d.lib.memory(a.handle)
	engines := d.sampler.engines(a.handle, d.parts)
	for i, p := range d.parts {
		d.draft.parts[i].Memory = d.lib.memory(p.handle)
		d.draft.parts[i].Engines = engines[p.uuid]
	}
	d.draft.processes, g.Engines, d.slow = d.sampler.list(a.handle, a.uuid, d.parts, time.Now())
	g.Unlisted = d.draft.processes == nil
	for i := range d.parts {
		d.draft.parts[i].Unlisted = g.Unlisted
	}
}

// publish shows what the round has read.
func (d *device) publish() {
	d.shown = d.draft
	d.identify()
}

// identify publishes who the device and its parts are.
func (d *device) identify() {
	all := append([]model.GPU{d.shown.facts}, d.shown.parts...)
	for i, g := range all {
		all[i] = model.GPU{
			Vendor: g.Vendor, ID: g.ID, UUID: g.UUID, Parent: g.Parent, Name: g.Name, Serial: g.Serial,
			PCIAddress: g.PCIAddress, PCIDevice: g.PCIDevice, NUMANode: g.NUMANode, VBIOS: g.VBIOS, Nodes: g.Nodes,
			Profile: g.Profile, Instance: g.Instance,
		}
	}
	d.identity.Store(&all)
}

// asleep says whether the device is suspended, which asking the kernel does not
// change.
func (d *device) asleep() bool {
	return suspended(d.o.Sysfs, (*d.identity.Load())[0].PCIAddress)
}

// read asks the device what is cheap. What of it cannot be read now is its
// identity and its problems, or that it sleeps.
func (d *device) read(ctx context.Context) reading {
	who := *d.identity.Load()
	r := reading{id: who[0].ID}
	if d.asleep() {
		r.gpus = d.named(func(g *model.GPU) { g.Suspended = true })
		return r
	}
	answer, err := ask(ctx, d.worker, d.answer)
	switch {
	case err == nil:
		return answer
	case errors.Is(err, errLate):
		if last := d.last.Load(); last != nil { // as of the last round
			return *last
		}
		r.gpus = d.named(func(*model.GPU) {})
		return r
	case errors.Is(err, errStuck):
		r.gpus = d.unread(health{stuck: true})
	default: // the library is being closed
		r.gpus = d.named(func(*model.GPU) {})
	}
	r.err = err
	return r
}

// named is who the device and its parts are; nothing while its name is not known.
func (d *device) named(fill func(*model.GPU)) []model.GPU {
	gpus := slices.Clone(*d.identity.Load())
	if gpus[0].UUID == "" {
		return nil
	}
	for i := range gpus {
		fill(&gpus[i])
	}
	return gpus
}

// unread is what remains of a device that cannot be read.
func (d *device) unread(h health) []model.GPU {
	return d.named(func(g *model.GPU) { g.Problems = h.fatal() })
}

// answer is what the worker tells who asks.
func (d *device) answer() reading {
	r := d.look()
	d.last.Store(&r)
	return r
}

func (d *device) look() reading {
	r := reading{id: d.shown.facts.ID}
	if d.attached.Load() == nil {
		d.attach()
	}
	a := d.attached.Load()
	if a == nil {
		r.err = d.err
		if !errors.Is(d.err, errHidden) {
			r.gpus = d.unread(d.health)
		}
		return r
	}
	g := d.shown.facts
	d.health.lost, d.health.reset, d.err = false, false, nil
	d.quick(a.handle, &g)
	if r.err = cmp.Or(d.err, d.slow); d.health.lost {
		r.gpus = d.unread(d.health)
		return r
	}
	g.XIDs = d.xids.of(a.uuid)
	g.Problems = d.problems(&g)
	r.gpus, r.processes = append([]model.GPU{g}, d.shown.parts...), d.shown.processes
	for i := range r.gpus[1:] {
		r.gpus[1+i].Problems = g.Problems // it is the same chip
	}
	return r
}
