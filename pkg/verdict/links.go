// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// judgeInterface judges what the driver of a network interface behind a port reports.
func (r *portRules) judgeInterface(p *model.Port, s Subject, l *model.Link, all []*model.Link) {
	key := legCounter(s, l)
	find := func(c *Condition, evidence ...string) { r.find(c, s, time.Time{}, legEvidence(l, all, evidence...)...) }
	of := func(c *Condition, number int) counterKey { k := key; k.condition, k.number = c, number; return k }
	var storms uint64
	for _, e := range l.Storms {
		if e.Type != "warning" {
			storms += e.Count
		}
	}
	if l.Storms != nil {
		if n := r.grown(of(pauseStorm, 0), storms); float64(n) > pauseStorm.limit(0) {
			find(pauseStorm, grewIn("pause storms", n, pauseStorm.Window))
		}
	}
	var downs uint64
	if l.Carrier != nil {
		downs = r.grown(of(uncorrectableBlocks, 1), l.Carrier.Downs)
	}
	if l.FEC != nil && l.FEC.Uncorrectable != nil {
		n := r.grown(of(uncorrectableBlocks, 0), *l.FEC.Uncorrectable)
		if float64(n) > uncorrectableBlocks.limit(0) && downs == 0 {
			find(uncorrectableBlocks, grewIn("blocks that FEC could not correct", n, uncorrectableBlocks.Window))
		}
	}
	if bits := cmp.Or(l.SpeedBits, p.RateBits); l.FEC != nil && l.FEC.CorrectedBits != nil && bits > 0 {
		ratio := perSecond(r.grown(of(bitErrors, 0), *l.FEC.CorrectedBits), bitErrors.Window) / bits
		if limit := bitErrorLimit(p); ratio > limit {
			find(bitErrors, fmt.Sprintf("%.1e of the bits, the limit of the link is %.1e", ratio, limit))
		}
	}
	if l.Module != nil {
		if evidence := moduleEvidence(l.Module, p.State == stateActive); evidence != nil {
			find(moduleAlarm, evidence...)
		}
	}
}

// judgeGID judges whether a RoCE port lacks a GID that it had, or that its users need.
func (r *portRules) judgeGID(h *model.HCA, p *model.Port, s Subject) {
	lacks, known := h.LacksRoCEv2(p)
	state := r.ports[portKey{s.Device, s.Port}]
	if !known || state == nil || p.State != stateActive || h.VF {
		return
	}
	if !lacks {
		state.routable = r.At
	} else if !state.routable.IsZero() && r.At.Sub(state.routable).Seconds() < gidMissing.limit(0) || r.used[h.Name] {
		r.find(gidMissing, s, time.Time{}, fmt.Sprintf("%d GIDs, none of them RoCE v2 and routable", len(p.GIDs)))
	}
}

// bitErrorLimit returns the limit of the raw bit error ratio of a kind of link.
func bitErrorLimit(p *model.Port) float64 {
	switch {
	case p.LinkLayer == "InfiniBand" && (p.Speed == "HDR" || p.Speed == "NDR"):
		return bitErrors.limit(1)
	case p.LinkLayer == "InfiniBand" && p.Speed == "EDR":
		return bitErrors.limit(2)
	}
	return bitErrors.limit(0)
}

// moduleEvidence lists the alarms of a module. The light of an inactive port is not judged.
func moduleEvidence(m *model.LinkModule, active bool) (evidence []string) {
	if m.Fault != nil && *m.Fault {
		evidence = append(evidence, "the module reports that it has failed")
	}
	for _, c := range m.Checks {
		switch {
		case active && float64(c.Alarm) >= moduleAlarm.limit(0):
			evidence = append(evidence, c.Value+" is above the alarm threshold")
		case active && float64(-c.Alarm) >= moduleAlarm.limit(0):
			evidence = append(evidence, c.Value+" is below the alarm threshold")
		}
	}
	if evidence != nil && m.Serial != "" {
		evidence = append(evidence, fmt.Sprintf("%s %s, serial number %s", m.Vendor, m.PartNumber, m.Serial))
	}
	return evidence
}
