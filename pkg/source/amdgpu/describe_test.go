// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"fmt"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// describe formats a table on one line.
func describe(t table) string {
	var words []string
	add := func(name string, v model.Optional) {
		if v.Known {
			words = append(words, fmt.Sprintf("%s %g", name, v.Value))
		}
	}
	list := func(fs []model.Figure) {
		for _, f := range fs {
			add(f.Name, model.Some(f.Value))
		}
	}
	list(t.temperatures)
	add("power", t.power)
	add("gfx", t.gfx)
	add("memory", t.memory)
	add("video", t.video)
	add("jpeg", t.jpeg)
	add("energy", t.energy)
	list(t.clocks)
	add("gen", t.pcie.Generation)
	add("width", t.pcie.Width)
	add("recoveries", t.pcie.Recoveries)
	add("replays", t.pcie.Replays)
	add("rollovers", t.pcie.ReplayRollovers)
	add("sent", t.pcie.NAKsSent)
	add("received", t.pcie.NAKsReceived)
	for _, l := range t.links {
		text := fmt.Sprint("link ", l.Number)
		if l.Receive.Known {
			text += fmt.Sprintf(" %g", l.Receive.Value)
		}
		if l.Transmit.Known {
			text += fmt.Sprintf(" %g", l.Transmit.Value)
		}
		if l.Up == model.Some(0) {
			text += " down"
		}
		words = append(words, text)
	}
	for _, c := range t.throttles {
		if c.Active {
			words = append(words, c.Name)
		}
	}
	for _, p := range t.partitions {
		add("part", p.gfx)
		add("jpeg", p.jpeg)
	}
	list(t.throttled)
	return strings.Join(words, " ")
}
