// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// lineRateCause is what keeps a port from its line rate, found in one refresh.
type lineRateCause struct {
	name, evidence string
}

// What is measured of a link. The names are values of the label cause of the alert.
const (
	causePCIeStalled  = "pcie_stalled"
	causeDiscards     = "discards"
	causePausesPeer   = "pauses_peer"
	causePausedByPeer = "paused_by_peer"
	causePCIeLink     = "pcie_link"
	causePlacement    = "placement"
)

// lineRateOrder are the causes, the most likely first: each may cause those that follow it, and is not caused by them. A narrow PCIe link
// stalls, what is not written to memory is discarded or stops the peer, lost packets are sent again. Names with capitals are conditions of
// the port or of its HCA.
var lineRateOrder = []string{
	causePCIeLink, linkDegraded.Name, bondDegraded.Name,
	linkUnstable.Name, uncorrectableBlocks.Name, symbolErrors.Name, packetErrors.Name, bitErrors.Name,
	causePCIeStalled, causePlacement, outOfBuffer.Name, pauseStorm.Name, causeDiscards, causePausesPeer, causePausedByPeer,
	retransmissions.Name, congestion.Name,
}

// judgeLineRate judges why ports are slow. It comes after what finds the conditions that are causes.
func (r *round) judgeLineRate() {
	far := r.farHCAs()
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		if h.Parent != "" || r.j.management[h.Name] || r.sharesLink(h) {
			continue
		}
		for k := range h.Ports {
			p := &h.Ports[k]
			s := Subject{Kind: OfPort, Device: h.Name, Port: p.Number}
			causes := r.measuredCauses(s, r.links[portKey{h.Name, p.Number}])
			measured := len(causes) > 0
			if p.State != stateActive {
				continue
			}
			causes = append(causes, r.foundCauses(h, s)...)
			if text := far[h.Name]; text != "" {
				causes = append(causes, lineRateCause{causePlacement, text})
			}
			if measured || len(causes) > 1 { // a single other cause is a verdict of its own
				r.findLineRate(s, causes)
			}
		}
	}
}

// findLineRate adds the verdict of a port with its causes, the most likely first.
func (r *round) findLineRate(s Subject, causes []lineRateCause) {
	slices.SortStableFunc(causes, func(a, b lineRateCause) int {
		return slices.Index(lineRateOrder, a.name) - slices.Index(lineRateOrder, b.name)
	})
	evidence := make([]string, len(causes))
	for i, c := range causes {
		evidence[i] = c.name + ": " + c.evidence
	}
	evidence[0] = "most likely " + evidence[0]
	r.find(belowLineRate, s, time.Time{}, evidence...)
}

// measuredCauses returns the causes that the interfaces of a port measure: time that is lost, and packets.
func (r *round) measuredCauses(s Subject, links []*model.Link) (causes []lineRateCause) {
	add := func(l *model.Link, name, evidence string) {
		causes = append(causes, lineRateCause{name, strings.Join(legEvidence(l, links, evidence), ", ")})
	}
	for _, l := range links {
		key := legCounter(s, l)
		key.condition = belowLineRate
		if part, direction := r.stalled(key, &l.Stalls); part > belowLineRate.limit(0) {
			add(l, causePCIeStalled, percent(part)+" of the time the HCA waits to "+direction+" memory over PCIe")
		}
		for _, transmit := range []bool{false, true} {
			part, priority := r.paused(key, l.Pause, transmit)
			switch {
			case part <= belowLineRate.limit(0):
			case transmit:
				add(l, causePausesPeer, percent(part)+" of the time the port stops the other end"+priority)
			default:
				add(l, causePausedByPeer, percent(part)+" of the time the other end stops the port"+priority)
			}
		}
		if n, reasons := r.discarded(key, l.Discards); n > belowLineRate.limit(1) {
			add(l, causeDiscards, rate(n)+" received packets found no room ("+reasons+")")
		}
	}
	return causes
}

// stalled returns the larger part of the window in which reads or writes over PCIe stalled, and which of both it is.
func (r *round) stalled(key counterKey, s *model.PCIeStalls) (part float64, direction string) {
	for number, one := range []struct {
		seconds   *uint64
		direction string
	}{{s.ReadSeconds, "read"}, {s.WriteSeconds, "write"}} {
		if one.seconds == nil {
			continue
		}
		key.number = number
		if p := perSecond(r.grown(key, *one.seconds), belowLineRate.Window); p > part {
			part, direction = p, one.direction
		}
	}
	return part, direction
}

// paused returns the largest part of the window during which a direction was paused, of all priorities.
func (r *round) paused(key counterKey, pause []model.PauseCount, transmit bool) (part float64, priority string) {
	key.number = 2
	if transmit {
		key.number = 3
	}
	netdev := key.detail
	for i := range pause {
		p := &pause[i]
		if p.Transmit != transmit || p.Micros == nil {
			continue
		}
		key.detail = netdev + " " + p.Priority
		if n := perSecond(r.grown(key, *p.Micros), belowLineRate.Window) / 1e6; n > part {
			part, priority = n, ""
			if p.Priority != model.GlobalPause && p.Priority != model.UnknownPause {
				priority = ", priority " + p.Priority
			}
		}
	}
	return part, priority
}

// discarded returns how many received packets a second found no room, and where.
func (r *round) discarded(key counterKey, discards []model.LinkDiscards) (perSecondOfAll float64, reasons string) {
	key.number = 4
	netdev := key.detail
	var where []string
	for _, d := range discards {
		key.detail = netdev + " " + d.Reason
		if n := r.grown(key, d.Count); n > 0 {
			perSecondOfAll += perSecond(n, belowLineRate.Window)
			where = append(where, d.Reason)
		}
	}
	return perSecondOfAll, strings.Join(where, ", ")
}

// foundCauses returns the conditions of a port, and of its HCA, that keep it from its line rate.
func (r *round) foundCauses(h *model.HCA, s Subject) (causes []lineRateCause) {
	for i := range r.found {
		f := &r.found[i]
		name, evidence := f.condition.Name, strings.Join(f.evidence, "; ")
		switch {
		case f.subject.Device != h.Name || f.subject.Kind == OfPort && f.subject.Port != s.Port:
		case f.subject.Kind != OfPort && f.subject.Kind != OfHCA:
		case f.condition == pcieDegraded:
			if carries, rate := r.pcieBits(h), r.activeRate(h); carries < rate {
				most := gigabits(math.Round(carries/1e8) * 1e8)
				causes = append(causes, lineRateCause{
					causePCIeLink, fmt.Sprintf("%s; it carries at most %s of the %s of the ports", evidence, most, gigabits(rate)),
				})
			}
		case slices.Contains(lineRateOrder, name):
			causes = append(causes, lineRateCause{name, evidence})
		}
	}
	return causes
}

// pcieBits returns the bits per second that the PCIe link of an HCA carries in one direction, before the headers of its packets.
// It is infinite if it is not known. Links up to 5 GT/s encode 8 bits as 10, faster links 128 as 130 and those from 64 GT/s on nearly all.
func (r *round) pcieBits(h *model.HCA) float64 {
	i := slices.IndexFunc(r.Facts.PCI, func(f model.PCIFunction) bool { return strings.EqualFold(f.Address, h.PCIAddress) })
	if i < 0 {
		return math.Inf(1)
	}
	l := &r.Facts.PCI[i].Link
	switch bits := l.Speed * float64(l.Width); {
	case bits <= 0:
		return math.Inf(1)
	case l.Speed <= 5e9:
		return bits * 8 / 10
	default:
		return bits * 128 / 130
	}
}

// activeRate returns the rate of all active ports of an HCA in bits per second.
func (r *round) activeRate(h *model.HCA) (bits float64) {
	for k := range h.Ports {
		if h.Ports[k].State == stateActive {
			bits += r.portRate(h, &h.Ports[k])
		}
	}
	return bits
}

// portRate returns the rate of a port in bits per second, on a bond of all active legs.
func (r *round) portRate(h *model.HCA, p *model.Port) float64 {
	if bond, ok := r.bonds[model.PortID{Device: h.Name, Port: p.Number}]; ok {
		return bond
	}
	return p.RateBits
}

// farHCAs returns the HCAs that share a switch with no GPU of a workload that uses them and is placed badly, with the problem.
func (r *round) farHCAs() map[string]string {
	far := map[string]string{}
	if r.Placement == nil {
		return far
	}
	workloads, devices := r.Placement.Workloads(), r.Placement.Placement().Devices
	for i := range workloads {
		w := &workloads[i]
		for _, problem := range w.Problems {
			if !slices.Contains(placedBadly.Words["problem"], problem.Name) {
				continue
			}
			for _, used := range w.HCAs {
				near := func(p placement.Pair) bool {
					return p.HCA == used && (p.Relation == placement.PIX || p.Relation == placement.PXB)
				}
				if !slices.ContainsFunc(w.Pairs, near) {
					far[devices[used].Name] = problem.Text
				}
			}
		}
	}
	return far
}
