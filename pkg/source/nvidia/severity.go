// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// excuse ends the problem of GPUs whose critical XIDs are errors of NVLinks that are not fatal according to the kernel log: NVML
// reports no severity. It changes copies: the session may use the reading again.
func (s *Source) excuse(snap *model.Snapshot) {
	if s.o.Nonfatal == nil {
		return
	}
	copied := false
	for i := range snap.GPUs {
		if !s.harmless(&snap.GPUs[i]) {
			continue
		}
		if !copied {
			snap.GPUs, copied = slices.Clone(snap.GPUs), true
		}
		uuid := snap.GPUs[i].UUID
		for j := range snap.GPUs {
			if g := &snap.GPUs[j]; g.UUID == uuid || g.Parent == uuid {
				g.Problems = slices.Clone(g.Problems)
				k := slices.IndexFunc(g.Problems, func(c model.GPUCondition) bool { return c.Name == model.ProblemXID })
				if k >= 0 {
					g.Problems[k].Active = false
				}
			}
		}
	}
}

// harmless reports whether a GPU has a problem only because of nonfatal XIDs. An action that the driver asks for is a problem. XIDs
// before a reset do not count.
func (s *Source) harmless(g *model.GPU) bool {
	if g.Parent != "" || g.RecoveryAction != "" || !slices.Contains(g.Problems, model.GPUCondition{Name: model.ProblemXID, Active: true}) {
		return false
	}
	return !slices.ContainsFunc(append(s.xids.OfInstances(g.UUID), g.XIDs...), func(x model.XID) bool {
		return slices.Contains(wire.CriticalXIDs, x.Code) && x.Last.After(g.Reset) &&
			!s.o.Nonfatal(model.DriverNVIDIA, g.PCIAddress, strconv.FormatUint(x.Code, 10), g.Reset)
	})
}
