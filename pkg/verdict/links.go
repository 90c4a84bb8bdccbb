// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// managementPart is the part of the rate of the node's fastest port below which a NIC is for management, as in the recording rule
// instance_device:infiniband_port_management:info.
const managementPart = 4

// findManagement finds the NICs for management: their ports are slow, and neither a workload has a queue pair on them, nor storage in the
// kernel. One whose ports are all down stays what it was.
func (r *round) findManagement(boards map[board]float64) {
	r.used = map[string]bool{}
	for i := range r.Shares.Objects {
		if s := &r.Shares.Objects[i]; s.Owner != 0 && s.Type == model.QP && s.Current > 0 {
			r.used[s.Device] = true
		}
	}
	for i := range r.Facts.Domains {
		if d := &r.Facts.Domains[i]; d.IsConsumer() {
			r.used[d.Device] = true
		}
	}
	fastest := 0.0
	for _, rate := range boards {
		fastest = max(fastest, rate)
	}
	found := map[string]bool{}
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		rate, active := 0.0, false
		for k := range h.Ports {
			if b, ok := boardOf(h, &h.Ports[k]); ok {
				rate, active = max(rate, boards[b]), true
			}
		}
		if !active && r.j.management[h.Name] || active && rate < fastest/managementPart && !r.used[h.Name] {
			found[h.Name] = true
		}
	}
	for name := range r.j.management { // an HCA that is gone stays what it was
		if !slices.ContainsFunc(r.Facts.HCAs, func(h model.HCA) bool { return h.Name == name }) && len(found) < maxPorts {
			found[name] = true
		}
	}
	r.j.management = found
}

// judgeInterface judges what the driver of one of the network interfaces behind a port reports.
func (r *round) judgeInterface(p *model.Port, s Subject, l *model.Link, all []*model.Link) {
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

// judgeGID judges whether a RoCE port lacks the GID that it had, or that its users need.
func (r *round) judgeGID(h *model.HCA, p *model.Port, s Subject) {
	lacks, known := h.LacksRoCEv2(p)
	state := r.j.ports[portKey{s.Device, s.Port}]
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

// moduleEvidence lists the alarms of a module. The light of a port that is not active is not judged.
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

// judgePCI judges the PCIe links of HCAs and GPUs.
func (r *round) judgePCI() {
	functions := make(map[string]*model.PCIFunction, len(r.Facts.PCI))
	r.functions = functions
	for i := range r.Facts.PCI {
		functions[strings.ToLower(r.Facts.PCI[i].Address)] = &r.Facts.PCI[i]
	}
	own := model.ByFunction(r.Facts.HCAs)
	for i := range r.Facts.HCAs {
		h, address := &r.Facts.HCAs[i], strings.ToLower(r.Facts.HCAs[i].PCIAddress)
		f := functions[address]
		if f == nil || own[address] != h || h.VF || r.j.management[h.Name] {
			continue
		}
		s := Subject{Kind: OfHCA, Device: h.Name}
		if speed, width, degraded := possible(f); degraded {
			r.find(pcieDegraded, s, time.Time{}, pcieText(f.Link.Speed, f.Link.Width), pcieText(speed, width)+" is possible")
		}
		r.judgeAER(pcieErrors, s, h.Name, f)
	}
	for i := range r.Facts.GPUs {
		g := &r.Facts.GPUs[i]
		f := functions[strings.ToLower(g.PCIAddress)]
		if g.Parent != "" {
			continue
		}
		if f != nil {
			r.judgeAER(gpuPCIeErrors, subjectOf(g), g.UUID, f)
		}
		if p := &g.PCIe; p.Generation.Known && p.MaxGeneration.Known && g.Utilization.Known &&
			below(p.Generation.Value, p.MaxGeneration.Value) && 100*g.Utilization.Value > gpuPCIeSlow.limit(1) {
			r.find(gpuPCIeSlow, subjectOf(g), time.Time{}, fmt.Sprintf("generation %.0f of %.0f, the GPU is %s busy",
				p.Generation.Value, p.MaxGeneration.Value, format.Percent(g.Utilization.Value)))
		}
	}
}

// possible returns the speed and width that both ends of a link support, and whether the link has less.
func possible(f *model.PCIFunction) (speed float64, width int, degraded bool) {
	speed, width = f.Possible()
	return speed, width, below(f.Link.Speed, speed) || below(float64(f.Link.Width), float64(width))
}

func below(is, possible float64) bool {
	return is > 0 && possible > 0 && is/possible < pcieDegraded.limit(0)
}

func pcieText(speed float64, width int) string {
	return fmt.Sprintf("%g GT/s, %d lanes", speed/1e9, width)
}

// judgeAER judges the errors that both ends of a link detected.
func (r *round) judgeAER(c *Condition, s Subject, device string, f *model.PCIFunction) {
	if f.AER == nil && f.Upstream.AER == nil {
		return
	}
	var bad, corrected uint64
	for _, e := range f.Errors() {
		if e.Name == "correctable" {
			corrected += e.Value
		} else {
			bad += e.Value
		}
	}
	bad = r.grown(counterKey{condition: c, device: device}, bad)
	corrected = r.grown(counterKey{condition: c, number: 1, device: device}, corrected)
	if float64(bad) > c.limit(0) || float64(corrected) > c.limit(1) {
		r.find(c, s, time.Time{}, grewIn("nonfatal and fatal errors", bad, c.Window), grewIn("correctable errors", corrected, c.Window))
	}
}
