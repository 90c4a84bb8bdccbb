// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

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
func (d *device) current() wire.Era {
	if e := d.era.Load(); e != nil {
		return *e
	}
	return wire.Era{}
}

// noticeReset begins another era if the GPU was reset. It runs in rounds, after the counters were read: errors are read in slow rounds.
func (d *device) noticeReset() {
	before := d.current()
	read := model.GPU{Energy: d.rounds.draft.facts.Energy}
	if d.rounds.rarely.due {
		read.Errors = d.rounds.draft.facts.Errors
	}
	count := len(read.Errors)
	if read.Bound(); read.Energy.Value == 0 {
		read.Energy = model.Optional{} // a GPU that was reset has used some: this is the answer of a driver that cannot measure
	}
	var errors model.Optional
	if len(read.Errors) == count { // else the sum lacks some
		errors = volatileErrors(read.Errors)
	}
	after := before.Next(read.Energy, errors, d.operator, time.Now())
	d.operator = false
	if d.era.Store(&after); !after.Reset.Equal(before.Reset) {
		d.health.inforom = false
	}
}

// earlier returns what is known of a device from the session before. A GPU keeps its address when another one vanishes, and not its index.
func (st *Start) earlier(d *device) (wire.KnownDevice, bool) {
	if known, ok := st.Before[d.key()]; ok || d.address == "" {
		return known, ok
	}
	for key, known := range st.Before {
		if strings.HasPrefix(key, d.address+"#") {
			return known, true
		}
	}
	return wire.KnownDevice{}, false
}
