// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
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
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// device is one GPU. Only its worker may access fields that are not atomic.
type device struct {
	*caller
	o      wire.Options
	lib    *Library
	xids   *xidWatch
	quick  quickReader
	rounds roundReader
	// address is the PCI address, index the position among the devices. If the kernel does not list a device, it is
	// found by its index.
	address  string
	index    int
	era      atomic.Pointer[wire.Era] // changed by the worker
	operator bool                     // the operator reset the GPU before this session
	begun    time.Time                // deadline of the driver's initialization
	skip     time.Time                // the device is not called until then
	complete atomic.Bool              // the first round has ended

	attached atomic.Pointer[attachment]
	last     atomic.Pointer[reading]
	identity atomic.Pointer[[]model.GPU] // of the device and its parts, for when the device does not answer
	shown    roundResult                 // of the last complete round
	err      error                       // why there is no handle
}

// attachment is the NVML handle of a device that answered.
type attachment struct {
	handle nvml.Device
	uuid   string
}

type reading struct {
	id        string
	gpus      []model.GPU
	processes []model.GPUProcess
	err       error
	note      error     // why some values are absent, although the device answers
	waiting   time.Time // start of a late or hung call
}

// longestStart is the time that the driver needs to initialize a GPU at its first use without persistence mode. The
// driver initializes the GPUs one after the other.
const longestStart = 3 * time.Second

// errClosing reports that the library is being closed. The library opens again unless an operator asked to release it.
var errClosing = fmt.Errorf("the library is being closed: %w", model.ErrReleased)

// errHidden reports a GPU that the kernel lists and this container may not open.
var errHidden = errors.New("not visible: its device node cannot be opened")

func newDevice(o wire.Options, l *Library, c *caller, xids *xidWatch) *device {
	return &device{
		caller: c, o: o, lib: l, xids: xids, quick: quickReader{caller: c, has: l.Has},
		rounds: roundReader{o: o, health: &c.health, sampler: newSampler(l, o.Root), xids: xids},
	}
}

// key identifies a device while its UUID is unknown.
func (d *device) key() string { return d.address + "#" + strconv.Itoa(d.index) }

// serve runs rounds from the end of skip until the session ends.
func (d *device) serve() {
	timer := time.NewTimer(time.Until(d.skip))
	defer timer.Stop()
	select {
	case <-timer.C:
		d.run(d.o.Interval, d.steps())
	case <-d.stop:
		close(d.done)
	}
}

func (d *device) skipped() bool { return time.Now().Before(d.skip) }

// steps returns the steps that the worker runs every interval.
func (d *device) steps() []func() {
	r := &d.rounds
	readFields := func() {
		if r.rarely.due {
			d.quick.retry()
		}
		r.readFields()
	}
	steps := []func(){
		d.attach, r.readModes, readFields, r.readSlowly, d.noticeReset, r.readParts, r.readProcesses, r.readLinks,
		r.receives, r.transmits, r.readHealth, d.publish,
		func() { d.answer() },
		r.rarely.end,
	}
	if r.instances == wire.OneRound {
		steps = []func(){d.attach, r.readModes, r.readParts, r.readProcesses, d.publish}
	}
	for i, step := range steps {
		steps[i] = func() {
			switch {
			case d.asleep():
				d.forget()
			case i == 0:
				step()
				r.rarely.begin(d.attached.Load() != nil)
			case d.attached.Load() != nil:
				step()
			}
		}
	}
	return append(steps, func() { d.complete.Store(true) })
}

// attach gets the handle of the device and its constant properties.
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
	if ret == nvml.ERROR_NO_PERMISSION || ret == nvml.ERROR_NOT_FOUND && !d.hasNode() {
		d.err = errHidden
		return
	}
	if ret == nvml.ERROR_UNKNOWN || ret == nvml.ERROR_NOT_FOUND {
		ret = nvml.ERROR_GPU_IS_LOST // drivers report this for a GPU that fell off the bus before its first use
	}
	d.health.lost = false
	var uuid string
	if d.err = d.means("nvmlDeviceGetHandle", ret); d.err == nil {
		uuid, ret = handle.GetUUID()
		d.err = d.means("nvmlDeviceGetUUID", ret)
	}
	if d.health.unreadable = d.err != nil && !d.health.lost; d.err != nil {
		return
	}
	d.rounds.draft.facts = describe(d.o, handle, d.address, d.index)
	d.rounds.draft.facts.OffPCIe = offPCIe(d.o.Procfs, handle, d.rounds.draft.facts.Name, d.rounds.draft.facts.PCIAddress)
	d.rounds.draft.facts.UUID, d.rounds.draft.facts.Unlisted = uuid, true // until the first round
	d.quick.attach(handle)
	d.rounds.attachment = &attachment{handle, uuid}
	d.attached.Store(d.rounds.attachment)
	d.publish()
	d.notify(nil)
}

// forget drops the values from before the device was suspended.
func (d *device) forget() {
	gpus := slices.Clone(*d.identity.Load())
	for i := range gpus {
		gpus[i].Unlisted = true
	}
	d.shown = roundResult{facts: gpus[0], parts: gpus[1:]}
	d.last.Store(nil)
	d.rounds.rarely.again()
	d.rounds.links.at = time.Time{}
}

// hasNode reports whether the device node exists. If it exists and the driver does not find the device, the device
// could not be initialized. Opening the node would initialize it.
func (d *device) hasNode() bool {
	return slices.ContainsFunc((*d.identity.Load())[0].Nodes, func(node string) bool {
		_, err := os.Lstat(node)
		return err == nil && strings.HasPrefix(node, "/dev/nvidia")
	})
}

func (d *device) publish() {
	d.shown = d.rounds.draft
	d.identify()
}

// identify publishes the identity of the device and of its parts.
func (d *device) identify() {
	all := append([]model.GPU{d.shown.facts}, d.shown.parts...)
	for i, g := range all {
		all[i] = wire.Identity(g)
	}
	d.identity.Store(&all)
}

// asleep reports whether the device is suspended. The query to the kernel does not wake it.
func (d *device) asleep() bool {
	return suspended(d.o.Sysfs, (*d.identity.Load())[0].PCIAddress)
}

// read returns the quick values of the device. If the device cannot be read, read returns its identity with the known
// problems, or as suspended.
func (d *device) read(ctx context.Context) reading {
	r := reading{id: d.name()}
	if d.asleep() {
		d.last.Store(nil)
		r.gpus = d.named(func(g *model.GPU) { g.Suspended = true })
		return r
	}
	if d.skipped() {
		r.gpus = d.unread(health{stuck: true})
		r.err = fmt.Errorf("%w; the GPU is not called until %s", wire.ErrStuck, d.skip.Format(time.TimeOnly))
		return r
	}
	answer, err := ask(ctx, d.worker, d.answer)
	if errors.Is(err, errLate) || errors.Is(err, wire.ErrStuck) {
		r.waiting, _ = d.inStep()
	}
	switch {
	case err == nil:
		return answer
	case errors.Is(err, errLate), errors.Is(err, wire.ErrStuck) && d.attached.Load() == nil && time.Now().Before(d.begun):
		if last := d.last.Load(); last != nil { // as of the last round
			then := *last
			then.waiting = r.waiting
			return then
		}
		r.gpus = d.named(func(*model.GPU) {})
		return r
	case errors.Is(err, wire.ErrStuck):
		d.last.Store(nil) // outdated when the call returns
		r.gpus = d.unread(health{stuck: true})
	default:
		r.gpus, err = d.named(func(*model.GPU) {}), errClosing
	}
	r.err = err
	return r
}

// name returns the name in device states: the NVML index once it is known.
func (d *device) name() string {
	if d.attached.Load() == nil && d.address != "" {
		return d.address
	}
	return (*d.identity.Load())[0].ID
}

// named returns the identity of the device and of its parts; nil while its UUID is unknown.
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

// unread returns what is known about an unreadable device: its identity, its problems and its XIDs, which may be the
// cause.
func (d *device) unread(h health) []model.GPU {
	problems := h.fatal()
	if !slices.ContainsFunc(problems, active) {
		problems = nil
	}
	return d.named(func(g *model.GPU) { g.Problems, g.XIDs = problems, d.xids.OfGPU(g) })
}

func (d *device) answer() reading {
	r := d.collect()
	d.last.Store(&r)
	return r
}

func (d *device) collect() reading {
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
	d.health.lost, d.health.reset = false, false
	d.answers.begin()
	d.quick.read(a.handle, &g)
	refused := d.answers.refused()
	if d.health.unreadable = d.answers.few() && !d.health.lost; d.health.lost || d.health.unreadable {
		r.err = refused
	} else {
		r.err, r.note = d.rounds.slow, refused
	}
	if d.health.lost || d.answers.none() {
		r.gpus = d.unread(d.health)
		return r
	}
	g.XIDs, g.Reset = d.xids.Of(a.uuid), d.current().Reset
	g.Problems = d.problems(&g)
	r.gpus, r.processes = append([]model.GPU{g}, d.shown.parts...), d.shown.processes
	for i := range r.gpus[1:] {
		part := &r.gpus[1+i]
		part.Problems, part.XIDs = g.Problems, d.xids.OfGPU(part) // the part is on the same chip
	}
	r.gpus = append(r.gpus, d.shown.bare...)
	return r
}
