// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"math"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// slot returns the function that is linked to the slot, and the port at its other end. A
// Radeon has a switch on the board: the link between switch and GPU is always at full speed,
// so the outer link of the switch is read.
func slot(device string) (outer, port string) {
	for outer = device; ; outer = filepath.Dir(outer) {
		parent := filepath.Dir(outer)
		d := &drm.Directory{Path: parent}
		class := d.Line("class")
		if !strings.HasPrefix(class, "0x0604") { // not a bridge: the end of the bus
			return outer, ""
		}
		if d.Line("vendor") != "0x1002" {
			return outer, parent
		}
	}
}

// readPCIe reads current_link_speed and _width of the link to the slot, and the maximum that
// both ends support. It wakes a suspended device.
func readPCIe(outer, port string) model.GPUPCIe {
	d := &drm.Directory{Path: outer}
	p := model.GPUPCIe{
		Generation: speed(d.Line("current_link_speed")), MaxGeneration: speed(d.Line("max_link_speed")),
		Width: width(d.Line("current_link_width")), MaxWidth: width(d.Line("max_link_width")),
	}
	if port != "" {
		d.Path = port
		p.MaxGeneration = lesser(p.MaxGeneration, speed(d.Line("max_link_speed")))
		p.MaxWidth = lesser(p.MaxWidth, width(d.Line("max_link_width")))
	}
	return p
}

// speed parses "16.0 GT/s PCIe".
func speed(line string) model.Optional {
	number, _, _ := strings.Cut(line, " ")
	v, _ := strconv.ParseFloat(number, 64) // no generation has the speed 0
	return generation(v)
}

// width parses a number of lanes: 0 and 255 mean that there is no link.
func width(line string) model.Optional {
	v, err := strconv.ParseUint(line, 10, 8)
	if err != nil || v == 0 || v == math.MaxUint8 {
		return model.Optional{}
	}
	return model.Some(float64(v))
}

func lesser(a, b model.Optional) model.Optional {
	if !b.Known || a.Known && a.Value <= b.Value {
		return a
	}
	return b
}
