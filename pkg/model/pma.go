// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// PMACounters are the counters in counters/ that the HCA's performance management agent keeps for a port, with their
// number of bits: PortCounters of the InfiniBand architecture, as drivers/infiniband/core/sysfs.c reads them. They stop
// at their highest value. If the agent has PortCountersExtended, as current HCAs do, counters of data and packets have
// 64 bits instead.
var PMACounters = map[string]int{
	"symbol_error":                    16,
	"link_error_recovery":             8,
	"link_downed":                     8,
	"port_rcv_errors":                 16,
	"port_rcv_remote_physical_errors": 16,
	"port_rcv_switch_relay_errors":    16,
	"port_xmit_discards":              16,
	"port_xmit_constraint_errors":     8,
	"port_rcv_constraint_errors":      8,
	"local_link_integrity_errors":     4,
	"excessive_buffer_overrun_errors": 4,
	"VL15_dropped":                    16,
	"port_xmit_wait":                  32,
	"port_xmit_data":                  32,
	"port_rcv_data":                   32,
	"port_xmit_packets":               32,
	"port_rcv_packets":                32,
}

// Saturated reports whether a counter has the highest value of its PMA counter. A 64-bit counter may pass through this
// value.
func (c Counter) Saturated() bool {
	bits := PMACounters[c.Name]
	return bits > 0 && c.Value == 1<<bits-1
}

// PortError is an error counter in counters/ of a port, with its name in metrics.
type PortError struct{ Counter, Name string }

// PortErrors are all error counters.
var PortErrors = []PortError{
	{"symbol_error", "symbol"},
	{"link_error_recovery", "link_recovery"},
	{"link_downed", "link_downed"},
	{"port_rcv_errors", "receive"},
	{"port_rcv_remote_physical_errors", "receive_remote_physical"},
	{"port_rcv_switch_relay_errors", "receive_switch_relay"},
	{"port_rcv_constraint_errors", "receive_constraint"},
	{"port_rcv_discards", "receive_discard"},
	{"port_xmit_constraint_errors", "transmit_constraint"},
	{"port_xmit_discards", "transmit_discard"},
	{"local_link_integrity_errors", "local_link_integrity"},
	{"excessive_buffer_overrun_errors", "excessive_buffer_overrun"},
	{"VL15_dropped", "vl15_dropped"},
}

// PortErrors returns the sum of a port's errors and discards, in counters/ and in the driver's counters, since the driver
// was loaded; not known without such a counter.
func (h *HCA) PortErrors(p *Port) (sum uint64, known bool) {
	for _, c := range p.Counters {
		if slices.ContainsFunc(PortErrors, func(e PortError) bool { return e.Counter == c.Name }) {
			sum, known = sum+c.Value, true
		}
	}
	var buffer [SharedCounters]SharedCounter
	for _, c := range h.PortCounters(buffer[:0], p) {
		switch c.Name {
		case TransmitErrors, ReceiveErrors, TransmitDiscards, ReceiveDiscards:
			sum, known = sum+c.Value, true
		}
	}
	return sum, known
}
