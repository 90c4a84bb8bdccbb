// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// CoverageShare is a gap in the bytes of an owner on a device. If all bytes are counted, the owner and device have one
// share with an empty gap.
type CoverageShare struct {
	Owner  int
	Device string
	Gap    model.Gap
}

// MissedShare is the unattributed bytes of a device that an owner may have moved: its own bytes lack at most these.
// Unlimited reports that more may be missing: a device counter was reset, or could not be read.
type MissedShare struct {
	Owner     int
	Device    string
	Bytes     uint64
	Unlimited bool
}

// PortLedger is what port counters say about coverage. Package traffic implements it.
type PortLedger interface {
	// Exclusive reports whether the device's ports were credited to this owner alone at the end of the last interval.
	Exclusive(owner identity.OwnerID, device string) bool
	// Missed takes the owner's gaps in a refresh without these counters. It reports whether bytes of the owner may be
	// missing since the first refresh.
	Missed(owner identity.OwnerID, device string, gaps []model.Gap) bool
}

// The gaps of most owners, which must not be changed.
var (
	onlyUnattributed = []model.Gap{model.GapUnattributed}
	onlyComplete     = []model.Gap{""}
	onlyOff          = []model.Gap{model.GapOff}
	onlyRefused      = []model.Gap{model.GapRefused}
	onlyKernel       = []model.Gap{model.GapKernel}
)

type covered struct {
	owner      int
	device     string
	qps, bound uint64 // queue pairs, and queue pairs with a hardware counter
	devx       bool   // has DEVX objects
	kernel     bool   // is a consumer in the kernel
	seen       bool   // the data path knows its contexts
	gaps       []model.Gap
}

// Coverage returns the gaps of each owner and device with queue pairs, DEVX objects or observed verbs contexts, and of
// each consumer in the kernel. a has the objects of s, and ledger has settled it.
func Coverage(s *model.Snapshot, a *Attribution, owners *identity.Table, states []model.SourceState, ledger PortLedger) []CoverageShare {
	o := &users{Table: owners, a: a}
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
	for i := range s.Domains {
		if d := &s.Domains[i]; d.IsConsumer() {
			of(a.Use(owners.OfKernel(d.Module)), d.Device).kernel = true
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
			gaps = onlyUnattributed
		default:
			gaps = onlyComplete
		}
		for _, gap := range gaps {
			shares = append(shares, CoverageShare{c.owner, c.device, gap})
		}
	}
	return shares
}

// all returns the gaps of an owner that shares the device, nil if its queue pairs have counters.
func (c *covered) all(on, attached bool) []model.Gap {
	switch {
	case c.kernel:
		return onlyKernel
	case c.bound > 0 && c.bound >= c.qps && !c.devx:
		return nil
	case !on:
		return onlyOff
	case !attached:
		return onlyRefused
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
