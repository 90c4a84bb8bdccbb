// SPDX-License-Identifier: Apache-2.0

package model

import "testing"

// TestSaturated checks that each counter of PortCounters is saturated at its highest value only.
func TestSaturated(t *testing.T) {
	full := map[string]uint64{ // InfiniBand architecture, volume 1, PortCounters
		"symbol_error": 65535, "link_error_recovery": 255, "link_downed": 255, "port_rcv_errors": 65535,
		"port_rcv_remote_physical_errors": 65535, "port_rcv_switch_relay_errors": 65535, "port_xmit_discards": 65535,
		"port_xmit_constraint_errors": 255, "port_rcv_constraint_errors": 255, "local_link_integrity_errors": 15,
		"excessive_buffer_overrun_errors": 15, "VL15_dropped": 65535, "port_xmit_wait": 4294967295, "port_xmit_data": 4294967295,
		"port_rcv_data": 4294967295, "port_xmit_packets": 4294967295, "port_rcv_packets": 4294967295,
	}
	for name, value := range full {
		for counter, want := range map[Counter]bool{
			{Name: name, Value: value}: true, {Name: name, Value: value - 1}: false, {Name: name, Value: value + 1}: false,
			{Name: "out_of_buffer", Value: value}: false,
		} {
			if counter.Saturated() != want {
				t.Errorf("%+v: %v", counter, !want)
			}
		}
	}
	if len(full) != len(PMACounters) {
		t.Errorf("%d counters, want %d", len(PMACounters), len(full))
	}
}
