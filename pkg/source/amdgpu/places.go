// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"path"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// places finds GPUs by the minor numbers of their nodes, and by a PCI address that only one
// GPU has: partitions share it.
type places struct {
	minors    map[int]string
	addresses map[string]string // empty for several
	asleep    map[string]bool
	totals    map[string]float64 // bytes of VRAM, where known
}

func locate(cards []model.GPU) places {
	at := places{map[int]string{}, map[string]string{}, map[string]bool{}, map[string]float64{}}
	for _, c := range cards {
		at.asleep[c.UUID] = c.Suspended
		if c.Memory.Total.Known {
			at.totals[c.UUID] = c.Memory.Total.Value
		}
		for _, node := range c.Nodes { // the kernel names them by their minor number
			name := strings.TrimPrefix(path.Base(node), "card")
			if minor, err := strconv.Atoi(strings.TrimPrefix(name, "renderD")); err == nil {
				at.minors[minor] = c.UUID
			}
		}
		if _, twice := at.addresses[c.PCIAddress]; twice {
			at.addresses[c.PCIAddress] = ""
		} else {
			at.addresses[c.PCIAddress] = c.UUID
		}
	}
	return at
}

// hasNode reports whether a node of a GPU has a minor number.
func (at places) hasNode(minor uint32) bool { return at.minors[int(minor)] != "" }

func (at places) gpu(minor int, address string) (string, bool) {
	if uuid, ok := at.minors[minor]; ok {
		return uuid, true
	}
	uuid := at.addresses[address]
	return uuid, uuid != ""
}
