// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

const stateActive = "ACTIVE"

// maxPorts bounds the remembered ports. A node with VFs has hundreds.
const maxPorts = 4096

type portKey struct {
	device string
	port   int
}

type portState struct {
	seen     time.Time
	active   time.Time // when it was last active; zero: never
	down     time.Time // since when it is not active; zero: it is
	routable time.Time // when it last had a routable RoCE v2 GID
	best     float64   // its highest rate while it was active, in bits per second
	bestAt   time.Time
}

// portRules judge ports, the interfaces behind them and the counters of HCAs.
type portRules struct {
	*round
	*hcaRoles
	ports  map[portKey]*portState
	legs   map[legKey]*legState
	shared []model.SharedCounter // of the last port, in buffer
	buffer [model.SharedCounters]model.SharedCounter
}

func (r *portRules) judge() {
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		if h.Parent != "" {
			continue // the ports are the planes of another HCA's port
		}
		var received counter // counter of the last port
		for k := range h.Ports {
			p := &h.Ports[k]
			s := Subject{Kind: OfPort, Device: h.Name, Port: p.Number}
			own := r.links.of(portKey{h.Name, p.Number})
			r.judgeLink(h, p, s, own)
			if r.management[h.Name] {
				continue
			}
			r.judgeLegs(s, p.State == stateActive, own)
			r.shared = h.PortCounters(r.buffer[:0], p)
			received = sharedOf(r.shared, model.ReceivePackets)
			if !r.sharesLink(h) {
				r.judgeErrors(p, s, own)
			}
			r.judgeCongestion(congestionOf(r.shared, p.HWCounters), received, s)
			r.judgeGID(h, p, s)
			for _, l := range own {
				r.judgeInterface(p, legSubject(s, l, own), l, own)
			}
		}
		if !r.management[h.Name] {
			if len(h.Ports) != 1 {
				received = counter{}
			}
			r.judgeCongestion(congestionOf(h.DeviceCounters(), h.HWCounters), received, Subject{Kind: OfHCA, Device: h.Name})
		}
	}
	r.judgeBare(r.links.of(portKey{}))
	maps.DeleteFunc(r.ports, func(_ portKey, s *portState) bool { return r.At.Sub(s.seen) > day })
	maps.DeleteFunc(r.legs, func(_ legKey, s *legState) bool { return r.At.Sub(s.seen) > day })
	r.judgeHCAFaults()
}

// judgeLink judges whether a port is active, and its rate.
func (r *portRules) judgeLink(h *model.HCA, p *model.Port, s Subject, links []*model.Link) {
	key := portKey{h.Name, p.Number}
	state := r.ports[key]
	if state == nil {
		if len(r.ports) >= maxPorts {
			r.omitted++
			return
		}
		state = &portState{}
		r.ports[key] = state
	}
	state.seen = r.At
	if p.State == "" {
		return // state unknown
	}
	unconfigured := p.LinkLayer == "InfiniBand" && (p.State == "INIT" || p.State == "ARMED")
	if unconfigured && !r.follows(h, p) {
		r.find(subnetManagerLost, s, time.Time{}, fmt.Sprintf("state %s, physical state %s", p.State, p.PhysState))
	}
	if p.State != stateActive {
		if state.down.IsZero() {
			state.down = r.At
		}
		if !unconfigured && !r.management[h.Name] && r.within(state.active, portDown) && !r.follows(h, p) && !setDown(links) {
			r.find(portDown, s, state.down, downEvidence(p, links)...)
		}
		return
	}
	state.active, state.down = r.At, time.Time{}
	if p.RateBits <= 0 || r.management[h.Name] || r.sharesLink(h) {
		return
	}
	if p.RateBits >= state.best || r.At.Sub(state.bestAt) > linkDegraded.Window {
		state.best, state.bestAt = p.RateBits, r.At
	}
	if b, ok := boardOf(h, p); ok && p.RateBits/r.boards[b] < linkDegraded.limit(0) {
		r.findLater(linkDegraded, s, time.Time{}, rateEvidence(p, "equal ports have ", r.boards[b], ""))
	} else if p.RateBits/state.best < linkDegraded.limit(0) {
		r.findLater(linkDegraded, s, time.Time{}, rateEvidence(p, "it had ", state.best, " within "+format.Span(linkDegraded.Window)))
	}
}

// rateEvidence compares the rate of a port with a higher rate.
func rateEvidence(p *model.Port, before string, higher float64, after string) Evidence {
	rate, width, speed := p.RateBits, p.Width, p.Speed
	return func() []string {
		return []string{fmt.Sprintf("%s (%dx %s)", gigabits(rate), width, speed), before + gigabits(higher) + after}
	}
}

func downEvidence(p *model.Port, links []*model.Link) []string {
	evidence := []string{fmt.Sprintf("state %s, physical state %s", p.State, p.PhysState)}
	for _, l := range links {
		if reason := downReason(l); reason != "" {
			evidence = append(evidence, reason)
		}
	}
	return evidence
}

// downReason returns the reason that the driver reports for a link that is down, or "".
func downReason(l *model.Link) string {
	switch {
	case l.Phy == nil || l.Phy.Reason == "":
		return ""
	case l.Phy.Detail != "":
		return "the driver reports " + l.Phy.Reason + ", " + l.Phy.Detail
	}
	return "the driver reports " + l.Phy.Reason
}

func gigabits(bits float64) string { return fmt.Sprintf("%g Gbit/s", bits/1e9) }

// judgeErrors judges the error counters of a port. A link that goes down causes symbol errors, and these cause packet
// errors: only the cause has a verdict.
func (r *portRules) judgeErrors(p *model.Port, s Subject, links []*model.Link) {
	grown := func(c *Condition, number int, name string) (uint64, bool) {
		value, ok := valueOf(p.Counters, name)
		if !ok {
			return 0, false
		}
		return r.grown(counterKey{condition: c, number: number, device: s.Device, port: s.Port}, value), true
	}
	downed, _ := grown(linkUnstable, 0, "link_downed")
	recovered, _ := grown(linkUnstable, 1, "link_error_recovery")
	var flaps, halfDay uint64
	legs := false
	for _, l := range links {
		flaps, halfDay = r.flaps(s, l)
		if len(links) > 1 && unstable(flaps, halfDay) {
			legs = true
			r.find(linkUnstable, legSubject(s, l, links), time.Time{}, legEvidence(l, links, flapEvidence(flaps, halfDay)...)...)
		}
	}
	if len(links) > 1 {
		flaps, halfDay = 0, 0
	}
	symbols, _ := grown(symbolErrors, 0, "symbol_error")
	errors := "port_rcv_errors"
	broken, counted := grown(packetErrors, 0, errors)
	if e := sharedOf(r.shared, model.ReceiveErrors); !counted && e.known {
		errors = "packets with errors"
		broken = r.grown(counterKey{condition: packetErrors, device: s.Device, port: s.Port}, e.value)
	}
	var received uint64
	if n := sharedOf(r.shared, model.ReceivePackets); n.known {
		received = r.grown(counterKey{condition: packetErrors, number: 1, device: s.Device, port: s.Port}, n.value)
	}
	switch {
	case float64(downed) > linkUnstable.limit(0) || float64(recovered) > linkUnstable.limit(1) || unstable(flaps, halfDay):
		r.findLater(linkUnstable, s, time.Time{}, unstableEvidence(downed, recovered, flaps, halfDay))
	case legs: // it is the cause
	case float64(symbols) > symbolErrors.limit(0):
		r.findLater(symbolErrors, s, time.Time{}, func() []string { return []string{grewIn("symbol_error", symbols, hour)} })
	case received > 0 && float64(broken)/float64(received) > packetErrors.limit(0):
		r.findLater(packetErrors, s, time.Time{}, brokenEvidence(errors, broken, received))
	}
	for _, c := range p.Counters {
		if !c.Saturated() {
			continue
		}
		s.Detail = c.Name
		evidence := []string{fmt.Sprintf("%s is %d", c.Name, c.Value)}
		if blind := judgedBy[c.Name]; blind != nil {
			evidence = append(evidence, blind.Name+" cannot be seen")
		}
		r.find(counterSaturated, s, time.Time{}, evidence...)
	}
}

func unstableEvidence(downed, recovered, flaps, halfDay uint64) Evidence {
	return func() []string {
		evidence := []string{grewIn("link_downed", downed, hour), grewIn("link_error_recovery", recovered, hour)}
		return append(evidence, flapEvidence(flaps, halfDay)...)
	}
}

func brokenEvidence(errors string, broken, received uint64) Evidence {
	return func() []string {
		part := float64(broken) / float64(received)
		return []string{format.Percent(part) + " of the packets", grewIn(errors, broken, packetErrors.Window)}
	}
}

// judgedBy are the conditions that a saturated counter hides.
var judgedBy = map[string]*Condition{
	"symbol_error": symbolErrors, "link_error_recovery": linkUnstable, "link_downed": linkUnstable,
	"port_rcv_errors": packetErrors, "port_rcv_packets": packetErrors,
}

func valueOf(counters []model.Counter, name string) (uint64, bool) {
	for i := range counters {
		if counters[i].Name == name {
			return counters[i].Value, true
		}
	}
	return 0, false
}

type congestionCounters struct {
	marked, outOfBuffer, lost, ignored counter
}

// counter is a counter that a port may have.
type counter struct {
	value uint64
	known bool
}

func counterOf(counters []model.Counter, name string) counter {
	value, known := valueOf(counters, name)
	return counter{value, known}
}

func sharedOf(counters []model.SharedCounter, name string) counter {
	value, known := model.SharedValue(counters, name)
	return counter{value, known}
}

// congestionOf returns the counters to judge: counters that all drivers share, and the driver's own counters.
func congestionOf(shared []model.SharedCounter, own []model.Counter) congestionCounters {
	c := congestionCounters{
		marked: sharedOf(shared, model.ECNMarked), outOfBuffer: sharedOf(shared, model.OutOfBuffer),
		lost: sharedOf(shared, model.Retransmitted), ignored: counterOf(own, "rp_cnp_ignored"),
	}
	if !c.lost.known {
		gaps, timeouts := sharedOf(shared, model.OutOfSequence), sharedOf(shared, model.Timeouts)
		c.lost = counter{gaps.value + timeouts.value, gaps.known || timeouts.known}
	}
	if other := counterOf(own, "cnpIgnored"); other.known {
		c.ignored = other
	}
	return c
}

// judgeCongestion judges the counters of congestion and retransmission.
func (r *portRules) judgeCongestion(counters congestionCounters, received counter, s Subject) {
	perSecondOf := func(c *Condition, n counter) float64 {
		if !n.known {
			return 0
		}
		return perSecond(r.grown(counterKey{condition: c, device: s.Device, port: s.Port}, n.value), c.Window)
	}
	marked := perSecondOf(congestion, counters.marked)
	if counters.marked.known && received.known {
		key := counterKey{condition: congestion, number: 1, device: s.Device, port: s.Port}
		all := perSecond(r.grown(key, received.value), congestion.Window)
		if all > 0 && marked/all > congestion.limit(0) && marked > congestion.limit(1) {
			r.findLater(congestion, s, time.Time{}, func() []string {
				return []string{
					format.Percent(marked/all) + " of the packets are marked (ECN)", format.PerSecond(marked) + "/s marked packets",
				}
			})
		}
	}
	for _, c := range []struct {
		condition *Condition
		counter   counter
		evidence  string
	}{
		{congestionIgnored, counters.ignored, " congestion notifications (CNP) ignored"},
		{outOfBuffer, counters.outOfBuffer, " packets without a receive buffer"},
		{retransmissions, counters.lost, " lost packets"},
	} {
		if n := perSecondOf(c.condition, c.counter); n > c.condition.limit(0) {
			r.findLater(c.condition, s, time.Time{}, func() []string { return []string{format.PerSecond(n) + "/s" + c.evidence} })
		}
	}
}

// judgeHCAFaults judges the faults of HCAs in the kernel log.
func (r *portRules) judgeHCAFaults() {
	for i := range r.Shares.FaultTotals {
		t := &r.Shares.FaultTotals[i]
		hca := t.HCA != "" && !r.management[t.HCA]
		if !rdmaFaults(t.Driver, t.Code, hca) || t.Last.IsZero() || r.At.Sub(t.Last).Seconds() >= rdmaFault.limit(0) {
			continue
		}
		device := t.HCA
		if device == "" {
			device = t.PCIAddress
		}
		s := Subject{Kind: OfHCA, Device: device, Detail: t.Code}
		r.find(rdmaFault, s, t.Last, faultEvidence(r.At, t.FaultTotal, r.Facts.FaultHistory)...)
	}
}
