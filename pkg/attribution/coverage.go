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

// MissedShare is the number of bytes of a device that are unattributed and that one owner may have moved: at most these are missing in its
// bytes. Unlimited reports that more may be missing: a counter of the device was reset, or could not be read.
type MissedShare struct {
	Owner     int
	Device    string
	Bytes     uint64
	Unlimited bool
}

// PortLedger is what the bytes that ports count say about coverage. Package traffic implements it.
type PortLedger interface {
	// Exclusive reports whether the counters of a device's ports were credited to this owner alone when its last interval ended.
	Exclusive(owner identity.OwnerID, device string) bool
	// Missed takes the gaps that the owner has in a refresh without these counters, and reports whether bytes of it may be missing since
	// the first refresh.
	Missed(owner identity.OwnerID, device string, gaps []model.Gap) bool
}

// covered is what is known of the bytes of one owner on one device.
type covered struct {
	owner      int
	device     string
	qps, bound uint64 // queue pairs, and those with a hardware counter
	devx       bool   // has DEVX objects
	seen       bool   // the data path knows contexts of it
	gaps       []model.Gap
}

// Coverage returns the gaps of each owner and device with queue pairs, DEVX objects or verbs
// contexts on the data path. a has the objects of s, and ledger has settled it.
func Coverage(s *model.Snapshot, a *Attribution, owners *identity.Table, states []model.SourceState, ledger PortLedger) []CoverageShare {
	o := &users{owners, a}
	t := newTable[covered](len(a.Objects))
	of := func(owner int, device string) *covered {
		return t.at(t.key(owner, device, ""), covered{owner: owner, device: device})
	}
	for i := range a.Objects {
		held := &a.Objects[i]
		switch {
		case held.Owner == unattributed || held.Current == 0 || held.Device == "":
		case held.Type == model.QP:
			of(held.Owner, held.Device).qps += held.Current
		case held.Type == model.DEVXObj:
			of(held.Owner, held.Device).devx = true
		}
	}
	for _, f := range s.Coverage {
		if owner := o.ofCgroup(f.Cgroup); owner != unattributed {
			c := of(owner, f.Device)
			c.seen = true
			if f.Gap != "" && !slices.Contains(c.gaps, f.Gap) {
				c.gaps = append(c.gaps, f.Gap)
			}
		}
	}
	for i := range s.Traffic {
		if f := &s.Traffic[i]; f.QPs > 0 && f.Direction == model.Transmit {
			if owner := o.ofCgroup(f.Cgroup); owner != unattributed {
				of(owner, f.Device).bound += f.QPs
			}
		}
	}
	on := slices.ContainsFunc(states, func(s model.SourceState) bool { return s.Source == model.DataPathSource })
	attached := s.DataPath != nil && s.DataPath.Attached
	shares := make([]CoverageShare, 0, len(t.rows))
	for i := range t.rows {
		c := &t.rows[i]
		gaps := c.all(on, attached)
		missed := ledger.Missed(a.ID(c.owner), c.device, gaps)
		switch {
		case len(gaps) > 0 && !ledger.Exclusive(a.ID(c.owner), c.device):
		case missed:
			gaps = []model.Gap{model.GapUnattributed}
		default:
			gaps = []model.Gap{""}
		}
		for _, gap := range gaps {
			shares = append(shares, CoverageShare{c.owner, c.device, gap})
		}
	}
	return shares
}

// all returns all gaps of an owner that shares the device, none if its queue pairs have counters.
func (c *covered) all(on, attached bool) []model.Gap {
	switch {
	case c.bound > 0 && c.bound >= c.qps && !c.devx:
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
