// SPDX-License-Identifier: Apache-2.0

package model

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
