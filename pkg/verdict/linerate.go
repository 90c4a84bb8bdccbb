// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

type lineRateCause struct {
	name     string
	evidence Evidence
}

func measuredCause(name string, evidence ...string) lineRateCause {
	return lineRateCause{name, func() []string { return evidence }}
}

// The causes that are not conditions. The alert has the first two, in its label cause.
const (
	causePCIeStalled  = "pcie_stalled"
	causeDiscards     = "discards"
	causePausesPeer   = "pauses_peer"
	causePausedByPeer = "paused_by_peer"
	causePCIeLink     = "pcie_link"
	causePlacement    = "placement"
)

// lineRateOrder are the causes, the most likely first: each cause may lead to the causes after it. A narrow PCIe link
// stalls, data that is not written to memory is discarded or stops the peer, lost packets are sent again. Names with
// capitals are conditions of the port or of its HCA.
var lineRateOrder = []string{
	causePCIeLink, linkDegraded.Name, bondDegraded.Name, linkUnstable.Name, bitErrors.Name, uncorrectableBlocks.Name, symbolErrors.Name,
	packetErrors.Name, causePlacement, causePCIeStalled, outOfBuffer.Name, pauseStorm.Name, causeDiscards, causePausesPeer,
	causePausedByPeer, retransmissions.Name, congestion.Name,
}

// lineRateRules judge why ports are slow. They run after the rules that find conditions that are causes.
type lineRateRules struct {
	*round
	*hcaRoles
	functions pciFunctions
	bonds     map[model.PortID]float64 // rates in bits per second
}

func (r lineRateRules) judge() {
	far := r.farHCAs()
	var buffer []lineRateCause
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		if h.Parent != "" || r.management[h.Name] || r.sharesLink(h) {
			continue
		}
		for k := range h.Ports {
			p := &h.Ports[k]
			s, links := Subject{Kind: OfPort, Device: h.Name, Port: p.Number}, r.links.of(portKey{h.Name, p.Number})
			causes, recent := r.measuredCauses(buffer[:0], s, links), r.recent(s, p, links)
			measured := len(causes) > 0
			if p.State != stateActive {
				continue
			}
			causes = r.foundCauses(append(causes, r.pcieLink(h, measured)...), s)
			if text := far[h.Name]; text != "" {
				causes = append(causes, measuredCause(causePlacement, text))
			}
			if measured || several(causes) { // a single other cause has its own verdict
				r.findLineRate(s, causes, recent)
			}
			buffer = causes
		}
	}
	for _, l := range r.links.of(portKey{}) { // physical functions without an HCA
		s := Subject{Kind: OfPort, Device: l.Netdev}
		if causes := r.measuredCauses(nil, s, []*model.Link{l}); len(causes) > 0 {
			r.findLineRate(s, causes, recentGrowth{})
		}
	}
}

// several reports whether causes are not all the same.
func several(causes []lineRateCause) bool {
	return slices.ContainsFunc(causes, func(c lineRateCause) bool { return c.name != causes[0].name })
}

// findLineRate adds the verdict of a port with its causes, the most likely first. Conditions with a longer window that
// did not grow in the window of belowLineRate come last.
func (r lineRateRules) findLineRate(s Subject, causes []lineRateCause, recent recentGrowth) {
	causes = slices.Clone(causes)
	place := func(c lineRateCause) int {
		at := slices.Index(lineRateOrder, c.name)
		if recent.stale(c.name) {
			at += len(lineRateOrder)
		}
		return at
	}
	slices.SortStableFunc(causes, func(a, b lineRateCause) int { return place(a) - place(b) })
	r.findLater(belowLineRate, s, time.Time{}, func() []string {
		evidence := make([]string, len(causes))
		for i, c := range causes {
			evidence[i] = c.name + ": " + strings.Join(c.evidence(), "; ")
		}
		evidence[0] = "most likely " + evidence[0]
		return evidence
	})
}

// lookBack are the causes whose condition has a longer window than belowLineRate.
var lookBack = [...]*Condition{linkUnstable, symbolErrors, uncorrectableBlocks}

// recentGrowth says for each of lookBack whether its counters grew in the window of belowLineRate.
type recentGrowth [len(lookBack)]bool

// stale reports whether a cause is one of lookBack and its counters did not grow.
func (g recentGrowth) stale(cause string) bool {
	for i, c := range lookBack {
		if c.Name == cause {
			return !g[i]
		}
	}
	return false
}

func (r lineRateRules) recent(s Subject, p *model.Port, links []*model.Link) (g recentGrowth) {
	of := func(counter string) uint64 {
		value, _ := valueOf(p.Counters, counter)
		return value
	}
	downs, symbols, blocks := of("link_downed")+of("link_error_recovery"), of("symbol_error"), uint64(0)
	for _, l := range links {
		if l.Carrier != nil {
			downs += l.Carrier.Flaps
		}
		if l.FEC != nil && l.FEC.Uncorrectable != nil {
			blocks += *l.FEC.Uncorrectable
		}
	}
	for i, value := range [len(lookBack)]uint64{downs, symbols, blocks} {
		g[i] = r.grown(counterKey{condition: belowLineRate, number: 5 + i, device: s.Device, port: s.Port}, value) > 0
	}
	return g
}

// measuredCauses appends the causes that the interfaces of a port measure: lost time, and packets.
func (r lineRateRules) measuredCauses(causes []lineRateCause, s Subject, links []*model.Link) []lineRateCause {
	add := func(l *model.Link, name, evidence string) {
		causes = append(causes, measuredCause(name, strings.Join(legEvidence(l, links, evidence), ", ")))
	}
	for _, l := range links {
		key := legCounter(s, l)
		key.condition = belowLineRate
		if part, direction := r.stalled(key, &l.Stalls); part > belowLineRate.limit(0) {
			add(l, causePCIeStalled, "in "+format.Percent(part)+" of the seconds the HCA waited to "+direction+" memory over PCIe")
		}
		for _, transmit := range []bool{false, true} {
			part, priority := r.paused(key, l.Pause, transmit)
			switch {
			case part <= belowLineRate.limit(0):
			case transmit:
				add(l, causePausesPeer, format.Percent(part)+" of the time the port stops the other end"+priority)
			default:
				add(l, causePausedByPeer, format.Percent(part)+" of the time the other end stops the port"+priority)
			}
		}
		if n, reasons := r.discarded(key, l.Discards); n > belowLineRate.limit(1) {
			add(l, causeDiscards, format.PerSecond(n)+"/s received packets found no room ("+reasons+")")
		}
	}
	return causes
}

// stalled returns the part of the window in which reads or writes over PCIe stalled: the larger of both, and its
// direction.
func (r lineRateRules) stalled(key counterKey, s *model.PCIeStalls) (part float64, direction string) {
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

// paused returns the largest part of the window in which a direction was paused, of all priorities.
func (r lineRateRules) paused(key counterKey, pause []model.PauseCount, transmit bool) (part float64, priority string) {
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

// discarded returns how many received packets per second found no room, and where.
func (r lineRateRules) discarded(key counterKey, discards []model.LinkDiscards) (perSecondOfAll float64, reasons string) {
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

// foundCauses appends the conditions of a port that keep it from its line rate.
func (r lineRateRules) foundCauses(causes []lineRateCause, s Subject) []lineRateCause {
	for i := range r.found {
		f := &r.found[i]
		ofPort := f.subject.Kind == OfPort && f.subject.Port == s.Port || f.subject.Kind == OfHCA
		if ofPort && f.subject.Device == s.Device && slices.Contains(lineRateOrder, f.condition.Name) {
			causes = append(causes, lineRateCause{f.condition.Name, f.evidence})
		}
	}
	return causes
}

// pcieLink returns the PCIe link of an HCA as a cause if it carries less than the ports of all functions of the card.
// In addition the link must have fewer lanes or a lower speed than possible, or something else must have been measured:
// many cards are in slots below the rate of their ports.
func (r lineRateRules) pcieLink(h *model.HCA, measured bool) []lineRateCause {
	f := r.functions[strings.ToLower(h.PCIAddress)]
	if f == nil {
		return nil
	}
	carries, rate := carriedBits(f.Link), r.cardRate(h)
	speed, width, degraded := possible(f)
	if carries <= 0 || carries >= rate || !measured && !degraded {
		return nil
	}
	evidence := pcieText(f.Link.Speed, f.Link.Width)
	if degraded {
		evidence += "; " + pcieText(speed, width) + " is possible"
	}
	evidence += fmt.Sprintf("; it carries at most %s of the %s of the ports", gigabits(math.Round(carries/1e8)*1e8), gigabits(rate))
	return []lineRateCause{measuredCause(causePCIeLink, evidence)}
}

// cardRate returns the rate of the active ports of all functions of the card of an HCA, in bits per second. For an HCA
// with several ports it takes the fastest port: mlx5 lists a port for each representor, with the rate of the physical
// port.
func (r lineRateRules) cardRate(h *model.HCA) (bits float64) {
	card, _, _ := strings.Cut(h.PCIAddress, ".")
	for i := range r.Facts.HCAs {
		other := &r.Facts.HCAs[i]
		of, _, _ := strings.Cut(other.PCIAddress, ".")
		if !strings.EqualFold(of, card) || other.VF || other.Parent != "" || other.Subfunction {
			continue
		}
		fastest := 0.0
		for k := range other.Ports {
			if p := &other.Ports[k]; p.State == stateActive {
				rate, bonded := r.bonds[model.PortID{Device: other.Name, Port: p.Number}]
				if !bonded {
					rate = p.RateBits
				}
				fastest = max(fastest, rate)
			}
		}
		bits += fastest
	}
	return bits
}

var perhapsNear = []placement.Relation{placement.PIX, placement.PXB, placement.Unknown}

// farHCAs returns the HCAs of workloads that are placed badly, with the problem, if the HCA is known to share no switch
// with a GPU of the workload.
func (r lineRateRules) farHCAs() map[string]string {
	workloads := r.Placement.Workloads()
	if len(workloads) == 0 {
		return nil
	}
	far := map[string]string{}
	devices := r.Placement.Placement().Devices
	for i := range workloads {
		w := &workloads[i]
		for _, problem := range w.Problems {
			if !slices.Contains(placedBadly.Words["problem"], problem.Name) {
				continue
			}
			for _, used := range w.HCAs {
				near := func(p placement.Pair) bool { return p.HCA == used && slices.Contains(perhapsNear, p.Relation) }
				if !slices.ContainsFunc(w.Pairs, near) {
					far[devices[used].Name] = problem.Text
				}
			}
		}
	}
	return far
}
