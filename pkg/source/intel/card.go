// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// A card is one GPU.
type card struct {
	drm.Card
	calls  *drm.Calls
	reader reader // used by the calls only
}

func newCard(p drm.Card, root string) *card {
	return &card{
		Card: p, reader: reader{Card: p, root: root, dir: &drm.Directory{Path: p.Path}},
		calls: drm.NewCalls(model.GPU{Vendor: model.Intel, PCIAddress: p.PCIAddress, UUID: p.PCIAddress}),
	}
}

// start starts a read. It returns nil if the last one has not returned.
func (c *card) start() *hang.Pending[model.GPU] {
	return c.calls.Start(func(now time.Time) (model.GPU, error) {
		g := c.reader.read(now)
		return g, c.reader.silent
	})
}

// reader has the data of a card's calls.
type reader struct {
	drm.Card
	root     string
	dir      *drm.Directory
	identity model.GPU
	hwmon    hwmon
	gts      []gt
	found    bool // gts were listed
	answers  boundedfile.Answers
	silent   error // why no attribute can be read
	latest   model.GPU
	energy   model.Optional // at the last read; unknown after the GPU was suspended
	touched  time.Time      // last read, which delays the suspension
}

// read reads all values, unless the GPU is suspended or about to suspend itself.
func (r *reader) read(now time.Time) model.GPU {
	if r.identity.UUID == "" {
		r.identity = identify(r.Card, r.root)
	}
	g := r.identity
	power := drm.ReadPower(r.dir)
	if power.Asleep {
		g.Suspended, g.PowerChange = true, power.Changing
		r.latest, r.energy, r.silent = g, model.Optional{}, nil
		return g
	}
	if power.Rests(now, r.touched) {
		return r.latest
	}
	if !r.found {
		r.gts, r.found = findGTs(r.Card), true
	}
	r.dir.Answers.Begin()
	for i := range r.gts {
		r.gts[i].Answers.Begin()
	}
	r.hwmon.find(r.dir, r.Driver)
	r.hwmon.read(r.dir, &g)
	if elapsed := now.Sub(r.touched).Seconds(); r.energy.Known && g.Energy.Value >= r.energy.Value && elapsed > 0 {
		g.Power = model.Some((g.Energy.Value - r.energy.Value) / elapsed)
	}
	if r.energy, r.touched = g.Energy, now; g.Energy.Known {
		g.EnergyRead = now
	}
	readGTs(r.gts, &g)
	g.Memory.Total = totalMemory(r.Card)
	g.Bound()
	lost, silent := r.answered()
	if silent != nil && drm.ReadPower(r.dir).Asleep { // it was suspended between
		return r.read(now)
	}
	if r.silent = silent; lost || silent != nil {
		g = r.identity
		r.found, r.energy = false, model.Optional{}
	}
	g.Problems = problems(g.Throttles, lost, silent != nil)
	r.latest = g
	return g
}

// answered ends a round of reads of the hardware: see boundedfile.Answers.
func (r *reader) answered() (lost bool, silent error) {
	r.answers.Begin()
	r.answers.Move(&r.dir.Answers)
	for i := range r.gts {
		r.answers.Move(&r.gts[i].Answers)
	}
	return r.answers.End()
}

// problems returns the conditions that the drivers report.
func problems(throttles []model.GPUCondition, lost, silent bool) []model.GPUCondition {
	if lost || silent {
		return drm.Unanswered(lost, silent)
	}
	list := drm.Answered()
	if throttles != nil {
		list = append(list,
			model.GPUCondition{Name: model.ProblemThermal, Active: drm.Active(throttles, throttleThermal, throttleMemory, throttleVR)},
			model.GPUCondition{Name: model.ProblemPowerBrake, Active: drm.Active(throttles, throttleProchot)})
	}
	return list
}
