// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// CoverageShare is a gap in the bytes of one owner on one device. The gap is empty in the only
// share of an owner and device whose bytes are all counted.
type CoverageShare struct {
	Owner  int
	Device string
	Gap    model.Gap
}

// covered is what is known of the bytes of one owner on one device.
type covered struct {
	owner      int
	device     string
	qps, bound uint64 // queue pairs, and those with a hardware counter
	devx       bool   // has DEVX objects
	seen       bool   // the data path knows contexts of it
	gaps       []model.Gap
	exclusive  bool // the counters of the port are its own
}

// Coverage returns the gaps of each owner and device with queue pairs, DEVX objects or verbs
// contexts on the data path. a has the objects of s. exclusive reports whether an owner alone
// used a device in the last interval of its counters.
func Coverage(
	s *model.Snapshot, a *Attribution, owners *identity.Table, states []model.SourceState,
	exclusive func(owner identity.OwnerID, device string) bool,
) []CoverageShare {
	t := newTable[covered](len(a.Objects))
	of := func(owner int, device string) *covered {
		return t.at(t.key(owner, device, ""), covered{owner: owner, device: device})
	}
	for i := range a.Objects {
		o := &a.Objects[i]
		switch {
		case o.Owner == unattributed || o.Current == 0 || o.Device == "":
		case o.Type == model.QP:
			of(o.Owner, o.Device).qps += o.Current
		case o.Type == model.DEVXObj:
			of(o.Owner, o.Device).devx = true
		}
	}
	for _, f := range s.Coverage {
		if owner := a.Use(owners.Of(f.Cgroup)); owner != unattributed {
			c := of(owner, f.Device)
			c.seen = true
			if f.Gap != "" && !slices.Contains(c.gaps, f.Gap) {
				c.gaps = append(c.gaps, f.Gap)
			}
		}
	}
	for i := range s.Traffic {
		if f := &s.Traffic[i]; f.QPs > 0 && f.Direction == model.Transmit {
			if owner := a.Use(owners.Of(f.Cgroup)); owner != unattributed {
				of(owner, f.Device).bound += f.QPs
			}
		}
	}
	on := slices.ContainsFunc(states, func(s model.SourceState) bool { return s.Source == model.DataPathSource })
	attached := s.DataPath != nil && s.DataPath.Attached
	shares := make([]CoverageShare, 0, len(t.rows))
	for i := range t.rows {
		c := &t.rows[i]
		c.exclusive = exclusive(a.ID(c.owner), c.device)
		gaps := c.all(on, attached)
		if len(gaps) == 0 {
			gaps = []model.Gap{""}
		}
		for _, gap := range gaps {
			shares = append(shares, CoverageShare{c.owner, c.device, gap})
		}
	}
	return shares
}

// all returns all gaps, none if hardware counters count all bytes.
func (c *covered) all(on, attached bool) []model.Gap {
	switch {
	case c.exclusive, c.bound > 0 && c.bound >= c.qps && !c.devx:
		return nil
	case !on:
		return []model.Gap{model.GapOff}
	case !attached:
		return []model.Gap{model.GapRefused}
	}
	gaps := c.gaps
	if c.devx {
		gaps = append(gaps, model.GapDEVX)
	}
	if c.qps > 0 && !c.seen {
		gaps = append(gaps, model.GapNotSeen)
	}
	return gaps
}
