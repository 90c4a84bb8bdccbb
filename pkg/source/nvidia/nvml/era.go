// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// volatileErrors returns the number of ECC errors that a reset sets to 0. It is unknown if the driver reports no such
// errors.
func volatileErrors(errors []model.GPUErrors) (sum model.Optional) {
	for _, e := range errors {
		if e.Scope == "volatile" {
			sum = model.Some(sum.Value + float64(e.Count))
		}
	}
	return sum
}

func (d *device) current() wire.Era {
	if e := d.era.Load(); e != nil {
		return *e
	}
	return wire.Era{}
}

// noticeReset begins another era if the GPU was reset. It runs in rounds, after the counters were read. Slow rounds
// read the errors.
func (d *device) noticeReset() {
	before := d.current()
	read := model.GPU{Energy: d.rounds.draft.facts.Energy}
	if d.rounds.rarely.due {
		read.Errors = d.rounds.draft.facts.Errors
	}
	count := len(read.Errors)
	if read.Bound(); read.Energy.Value == 0 {
		read.Energy = model.Optional{} // this driver cannot measure: after a reset a GPU has used some energy
	}
	var errors model.Optional
	if len(read.Errors) == count { // otherwise the sum is incomplete
		errors = volatileErrors(read.Errors)
	}
	after := before.Next(read.Energy, errors, d.operator, time.Now())
	d.operator = false
	if d.era.Store(&after); !after.Reset.Equal(before.Reset) {
		d.health.inforom = false
	}
}

// earlier returns what the previous session knew about a device. When another GPU vanishes, the address of a GPU stays
// and its index changes.
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
