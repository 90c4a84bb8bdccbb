// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
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
	begun   time.Time // when the driver should have initialized it

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

// longestStart is how long the driver takes for a GPU at its first use: without
// persistence mode it initializes it then, one after the other.
const longestStart = 3 * time.Second

// errHidden says that the kernel has a GPU that was not given to us.
var errHidden = errors.New("not visible: its device node is not ours to open")

// key is what a device is known by while it has not told its name.
func (d *device) key() string { return d.address + "#" + strconv.Itoa(d.index) }

// round is what the worker does every interval.
func (d *device) round() []func() {
	steps := []func(){
		d.attach, d.readModes, d.readSlowly,
		d.receives, d.transmits, d.readLinks, d.readParts, d.readProcesses, d.readHealth, d.publish,
		func() { d.answer() },
	}
	for i, step := range steps {
		steps[i] = func() {
			switch {
			case d.asleep():
				d.forget()
			case i == 0 || d.attached.Load() != nil:
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
	if ret == nvml.ERROR_NO_PERMISSION || ret == nvml.ERROR_NOT_FOUND && !d.ours() {
		d.err = errHidden
		return
	}
	if ret == nvml.ERROR_UNKNOWN || ret == nvml.ERROR_NOT_FOUND {
		ret = nvml.ERROR_GPU_IS_LOST // is what drivers say of one that fell off the bus before anybody asked for it
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

// forget has what was read before a sleep not told after it.
func (d *device) forget() {
	who := slices.Clone(*d.identity.Load())
	for i := range who {
		who[i].Unlisted = true
	}
	d.shown = told{facts: who[0], parts: who[1:]}
	d.last.Store(nil)
}

// ours says whether its device node is there: then a device that the driver does not
// find is one that it could not initialize. Opening it would initialize it.
func (d *device) ours() bool {
	return slices.ContainsFunc((*d.identity.Load())[0].Nodes, func(node string) bool {
		_, err := os.Lstat(node)
		return err == nil && strings.HasPrefix(node, "/dev/nvidia")
	})
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
	if parts, facts, told := d.lib.partsOf(d.o, d.attached.Load().handle, d.draft.facts); told {
		d.parts, d.draft.parts = parts, facts
	}
	for i := range d.parts {
		d.lib.slowly(d.parts[i].handle, &d.draft.parts[i])
	}
}

// readProcesses reads what is shared by them, too, so that it is of one moment.
func (d *device) readProcesses() {
	a, g, now := d.attached.Load(), &d.draft.facts, time.Now()
	g.Memory = d.lib.memory(a.handle)
	engines := d.sampler.engines(a.handle, d.parts)
	for i, p := range d.parts {
		d.draft.parts[i].Memory = d.lib.memory(p.handle)
		d.draft.parts[i].Engines = engines[p.uuid]
	}
	d.draft.processes, g.Engines, d.slow = d.sampler.list(a.handle, a.uuid, d.parts, now)
	g.Unlisted, g.Listed = d.draft.processes == nil, now
	for i := range d.parts {
		d.draft.parts[i].Unlisted, d.draft.parts[i].Listed = g.Unlisted, now
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
	r := reading{id: d.name()}
	if d.asleep() {
		d.last.Store(nil)
		r.gpus = d.named(func(g *model.GPU) { g.Suspended = true })
		return r
	}
	answer, err := ask(ctx, d.worker, d.answer)
	switch {
	case err == nil:
		return answer
	case errors.Is(err, errLate), errors.Is(err, errStuck) && d.attached.Load() == nil && time.Now().Before(d.begun):
		if last := d.last.Load(); last != nil { // as of the last round
			return *last
		}
		r.gpus = d.named(func(*model.GPU) {})
		return r
	case errors.Is(err, errStuck):
		d.last.Store(nil) // it is old when the call returns
		r.gpus = d.unread(health{stuck: true})
	default: // the library is being closed
		r.gpus = d.named(func(*model.GPU) {})
	}
	r.err = err
	return r
}

// name is how the state of the device is told: by its number once NVML has told it.
func (d *device) name() string {
	if d.attached.Load() == nil && d.address != "" {
		return d.address
	}
	return (*d.identity.Load())[0].ID
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

// unread is what remains of a device that cannot be read: who it is, what is wrong
// with it, if that is known, and its XIDs, which say why.
func (d *device) unread(h health) []model.GPU {
	problems := h.fatal()
	if !slices.ContainsFunc(problems, active) {
		problems = nil
	}
	gpus := d.named(func(g *model.GPU) { g.Problems = problems })
	if len(gpus) > 0 {
		gpus[0].XIDs = d.xids.of(gpus[0].UUID)
	}
	return gpus
}

// answer is what the worker tells who asks.
func (d *device) answer() reading {
	r := d.look()
	d.last.Store(&r)
	return r
}

func (d *device) look() reading {
	r := reading{id: d.name()}
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
	if g.Problems = d.problems(&g); d.err != nil && !slices.ContainsFunc(g.Problems, active) {
		g.Problems = nil // who does not answer well does not say that it is
	}
	r.gpus, r.processes = append([]model.GPU{g}, d.shown.parts...), d.shown.processes
	for i := range r.gpus[1:] {
		r.gpus[1+i].Problems = g.Problems // it is the same chip
	}
	return r
}
