// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// stateActive is the state of a port that carries data, as sysfs has it.
const stateActive = "ACTIVE"

// maxPorts is the number of ports that are remembered. A node with VFs has hundreds.
const maxPorts = 4096

type portKey struct {
	device string
	port   int
}

// portState is what is remembered of a port.
type portState struct {
	seen   time.Time
	active time.Time // when it was last active; zero: never
	down   time.Time // since when it is not
	best   float64   // its highest rate while it was active, in bits per second
	bestAt time.Time
}

// board is what equal ports have in common.
type board struct{ hcaType, id, linkLayer string }

func (r *round) judgePorts() {
	boards := map[board]float64{}
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		for k := range h.Ports {
			if b, ok := boardOf(h, &h.Ports[k]); ok {
				boards[b] = max(boards[b], h.Ports[k].RateBits)
			}
		}
	}
	links := make(map[portKey]*model.Link, len(r.Facts.Links))
	for i := range r.Facts.Links {
		l := &r.Facts.Links[i]
		links[portKey{l.Device, l.Port}] = l
	}
	for i := range r.Facts.HCAs {
		h := &r.Facts.HCAs[i]
		for k := range h.Ports {
			p := &h.Ports[k]
			s := Subject{Kind: OfPort, Device: h.Name, Port: p.Number}
			r.judgeLink(h, p, s, boards, links[portKey{h.Name, p.Number}])
			r.judgeErrors(p, s)
			r.judgeCongestion(p.HWCounters, packets(p), s)
		}
		if len(h.HWCounters) > 0 {
			r.judgeCongestion(h.HWCounters, nil, Subject{Kind: OfHCA, Device: h.Name})
		}
	}
	for k, s := range r.j.ports {
		if r.At.Sub(s.seen) > day {
			delete(r.j.ports, k)
		}
	}
	r.judgeHCAFaults()
}

// boardOf returns what a port has in common with others whose rate it should have. VFs have the rate of a policy.
func boardOf(h *model.HCA, p *model.Port) (board, bool) {
	return board{h.Type, h.Board, p.LinkLayer}, !h.VF && h.Board != "" && p.State == stateActive && p.RateBits > 0
}

// judgeLink judges whether a port is active, and its rate.
func (r *round) judgeLink(h *model.HCA, p *model.Port, s Subject, boards map[board]float64, l *model.Link) {
	key := portKey{h.Name, p.Number}
	state := r.j.ports[key]
	if state == nil {
		if len(r.j.ports) >= maxPorts {
			r.omitted++
			return
		}
		state = &portState{}
		r.j.ports[key] = state
	}
	state.seen = r.At
	if p.State != stateActive {
		if state.down.IsZero() {
			state.down = r.At
		}
		if !state.active.IsZero() && p.State != "" && r.At.Sub(state.active).Seconds() < portDown.limit(0) {
			r.find(portDown, s, state.down, downEvidence(p, l)...)
		}
		return
	}
	state.active, state.down = r.At, time.Time{}
	if p.RateBits <= 0 {
		return
	}
	if p.RateBits >= state.best || r.At.Sub(state.bestAt) > linkDegraded.Window {
		state.best, state.bestAt = p.RateBits, r.At
	}
	rate := fmt.Sprintf("%s (%dx %s)", gigabits(p.RateBits), p.Width, p.Speed)
	if b, ok := boardOf(h, p); ok && p.RateBits/boards[b] < linkDegraded.limit(0) {
		r.find(linkDegraded, s, time.Time{}, rate, "equal ports have "+gigabits(boards[b]))
	} else if p.RateBits/state.best < linkDegraded.limit(0) {
		r.find(linkDegraded, s, time.Time{}, rate, fmt.Sprintf("it had %s within %s", gigabits(state.best), span(linkDegraded.Window)))
	}
}

func downEvidence(p *model.Port, l *model.Link) []string {
	evidence := []string{fmt.Sprintf("state %s, physical state %s", p.State, p.PhysState)}
	if l != nil && l.Phy != nil && l.Phy.Reason != "" {
		reason := l.Phy.Reason
		if l.Phy.Detail != "" {
			reason += ", " + l.Phy.Detail
		}
		evidence = append(evidence, "the driver reports "+reason)
	}
	return evidence
}

func gigabits(bits float64) string { return fmt.Sprintf("%g Gbit/s", bits/1e9) }

// judgeErrors judges the error counters of a port. A link that goes down causes errors of symbols, and these those of packets: only the
// cause is a verdict.
func (r *round) judgeErrors(p *model.Port, s Subject) {
	grown := func(c *Condition, number int, name string) (uint64, bool) {
		value, ok := valueOf(p.Counters, name)
		if !ok {
			return 0, false
		}
		return r.grown(counterKey{condition: c, number: number, device: s.Device, port: s.Port}, value), true
	}
	downed, _ := grown(linkUnstable, 0, "link_downed")
	recovered, _ := grown(linkUnstable, 1, "link_error_recovery")
	symbols, _ := grown(symbolErrors, 0, "symbol_error")
	broken, _ := grown(packetErrors, 0, "port_rcv_errors")
	received, _ := grown(packetErrors, 1, "port_rcv_packets")
	switch {
	case float64(downed) > linkUnstable.limit(0) || float64(recovered) > linkUnstable.limit(1):
		r.find(linkUnstable, s, time.Time{}, grewIn("link_downed", downed, hour), grewIn("link_error_recovery", recovered, hour))
	case float64(symbols) > symbolErrors.limit(0):
		r.find(symbolErrors, s, time.Time{}, grewIn("symbol_error", symbols, hour))
	case received > 0 && float64(broken)/float64(received) > packetErrors.limit(0):
		r.find(packetErrors, s, time.Time{},
			percent(float64(broken)/float64(received))+" of the packets", grewIn("port_rcv_errors", broken, packetErrors.Window))
	}
	for _, c := range []struct {
		name string
		full uint64
	}{{"symbol_error", 65535}, {"link_error_recovery", 255}, {"link_downed", 255}} {
		if value, ok := valueOf(p.Counters, c.name); ok && value == c.full {
			s.Detail = c.name
			r.find(counterSaturated, s, time.Time{}, fmt.Sprintf("%s is %d", c.name, value))
		}
	}
}

func valueOf(counters []model.Counter, name string) (uint64, bool) {
	for i := range counters {
		if counters[i].Name == name {
			return counters[i].Value, true
		}
	}
	return 0, false
}

// packets returns the packets that a port received, nil if it does not count them.
func packets(p *model.Port) *uint64 {
	if n, ok := valueOf(p.Counters, "port_rcv_packets"); ok {
		return &n
	}
	return nil
}

// hardware has the drivers' names of what the alerts compare: the sum of the first list that has a counter, as the recording rules.
var hardware = map[string][][]string{
	"rdma_ecn_marked_packets": {{"np_ecn_marked_roce_packets"}, {"rx_ecn_marked_pkts"}, {"RxECNMrkd"}, {"received_ecns"}},
	"rdma_cnp_sent":           {{"np_cnp_sent"}, {"tx_cnp_pkts"}, {"np_cnp_pkts"}, {"cnpSent"}, {"sent_cnps"}},
	"rdma_receive_out_of_buffer": {
		{"out_of_buffer"}, {"rx_out_of_buffer"}, {"responder_rnr_nak"}, {"send_rnr_err"},
	},
	"rdma_retransmissions": {
		{"packet_seq_err", "local_ack_timeout_err"}, {"to_retransmits", "seq_err_naks_rcvd"}, {"RetransSegs"}, {"retrans_pkts"},
		{"requester_oos_nak", "requester_timeout"}, {"completer_retry_err"},
	},
	"rdma_cnp_ignored": {{"rp_cnp_ignored"}, {"cnpIgnored"}},
}

// hardwareSum returns the value of a line of hardware.
func hardwareSum(counters []model.Counter, what string) (sum uint64, ok bool) {
	for _, names := range hardware[what] {
		sum, ok = 0, true
		for _, name := range names {
			value, found := valueOf(counters, name)
			sum, ok = sum+value, ok && found
		}
		if ok {
			return sum, true
		}
	}
	return 0, false
}

// judgeCongestion judges the counters that a driver has of congestion and retransmission.
func (r *round) judgeCongestion(counters []model.Counter, received *uint64, s Subject) {
	if len(counters) == 0 {
		return
	}
	perSecondOf := func(c *Condition, what string) (float64, bool) {
		value, ok := hardwareSum(counters, what)
		if !ok {
			return 0, false
		}
		return perSecond(r.grown(counterKey{condition: c, device: s.Device, port: s.Port, detail: what}, value), c.Window), true
	}
	marked, ok := perSecondOf(congestion, "rdma_ecn_marked_packets")
	part := 0.0
	if ok && received != nil {
		if all := perSecond(r.grown(counterKey{
			condition: congestion, number: 1, device: s.Device, port: s.Port,
		}, *received), congestion.Window); all > 0 {
			part = marked / all
		}
	}
	if part > congestion.limit(0) && marked > congestion.limit(1) {
		r.find(congestion, s, time.Time{}, percent(part)+" of the packets are marked (ECN)", rate(marked)+" marked packets")
	}
	if sent, _ := perSecondOf(congestionStorm, "rdma_cnp_sent"); sent > congestionStorm.limit(0) && part <= congestionStorm.limit(1) {
		r.find(congestionStorm, s, time.Time{}, rate(sent)+" congestion notifications (CNP) sent")
	}
	for _, c := range []struct {
		condition      *Condition
		what, evidence string
	}{
		{congestionIgnored, "rdma_cnp_ignored", " congestion notifications (CNP) ignored"},
		{outOfBuffer, "rdma_receive_out_of_buffer", " packets without a receive buffer"},
		{retransmissions, "rdma_retransmissions", " retransmissions"},
	} {
		if n, _ := perSecondOf(c.condition, c.what); n > c.condition.limit(0) {
			r.find(c.condition, s, time.Time{}, rate(n)+c.evidence)
		}
	}
}

// judgeHCAFaults judges the faults of HCAs in the kernel log.
func (r *round) judgeHCAFaults() {
	for i := range r.Shares.FaultTotals {
		t := &r.Shares.FaultTotals[i]
		if !RDMAFaults(t.Driver, t.Code) || t.Last.IsZero() || r.At.Sub(t.Last).Seconds() >= rdmaFault.limit(0) {
			continue
		}
		device := t.HCA
		if device == "" {
			device = t.PCIAddress
		}
		r.find(rdmaFault, Subject{Kind: OfHCA, Device: device, Detail: t.Code}, t.Last, r.faultEvidence(t.FaultTotal)...)
	}
}
