// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// era is the time since the driver was loaded, or since the GPU was reset. What is kept since then, such as XIDs, ends with it. A reset
// shows in the counters that it starts again: no driver before 570 reports one.
type era struct {
	Since time.Time // when it began, as far as is known
	Reset time.Time // when a reset, or the load of the driver, was noticed; zero if none was
	// Energy is in joules, Errors the volatile ECC errors: as of the last time at which they were known.
	Energy, Errors model.Optional
}

// course is how a counter went on.
type course int

const (
	unclear course = iota
	continued
	restarted
)

func courseOf(before, now model.Optional) course {
	switch {
	case !before.Known || !now.Known || now.Value == before.Value:
		return unclear
	case now.Value < before.Value:
		return restarted
	}
	return continued
}

// next returns the era with the counters of now. operator: an operator has reset the GPU, which counts unless the counters went on. Energy
// decides before errors do, because an administrator can set these to 0 without a reset.
func (e era) next(energy, errors model.Optional, operator bool, now time.Time) era {
	went := courseOf(e.Energy, energy)
	if went == unclear {
		went = courseOf(e.Errors, errors)
	}
	if went == restarted || operator && went == unclear {
		return era{Since: now, Reset: now, Energy: energy, Errors: errors}
	}
	if energy.Known {
		e.Energy = energy
	}
	if errors.Known {
		e.Errors = errors
	}
	return e
}

// volatileErrors returns the number of ECC errors that a reset sets to 0, unknown if the driver reports none.
func volatileErrors(errors []model.GPUErrors) (sum model.Optional) {
	for _, e := range errors {
		if e.Scope == "volatile" {
			sum = model.Some(sum.Value + float64(e.Count))
		}
	}
	return sum
}

// current returns the era of the device.
func (d *device) current() era {
	if e := d.era.Load(); e != nil {
		return *e
	}
	return era{}
}

// noticeReset begins another era if the GPU was reset. It runs in rounds, after the counters were read.
func (d *device) noticeReset() {
	before := d.current()
	g := &d.draft.facts
	after := before.next(g.Energy, volatileErrors(g.Errors), d.operator, time.Now())
	d.operator = false
	if d.era.Store(&after); !after.Reset.Equal(before.Reset) {
		d.health.inforom = false
	}
}

// earlier returns what is known of a device from the session before. A GPU keeps its address when another one vanishes, and not its index.
func (st *start) earlier(d *device) (knownDevice, bool) {
	if known, ok := st.Before[d.key()]; ok || d.address == "" {
		return known, ok
	}
	for key, known := range st.Before {
		if strings.HasPrefix(key, d.address+"#") {
			return known, true
		}
	}
	return knownDevice{}, false
}

// forReset reports whether the reason of a release that an operator has ended was a reset.
func (r *release) forReset() bool {
	return r.resumed && strings.Contains(strings.ToLower(r.reason), "reset")
}
