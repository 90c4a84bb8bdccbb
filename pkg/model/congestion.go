// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// The counters of congestion and retransmission that Congestion returns. They are the same for all drivers.
const (
	ECNMarked               = "ecn_marked"
	CNPSent                 = "cnp_sent"
	CNPHandled              = "cnp_handled"
	OutOfSequence           = "out_of_sequence"
	Retransmitted           = "retransmitted"
	Timeouts                = "timeouts"
	RNR                     = "rnr"
	OutOfBuffer             = "out_of_buffer"
	AdaptiveRetransmissions = "adaptive_retransmissions"
	SlowRestart             = "slow_restart"
)

// congestionNames has the drivers' names of each counter. The key is the name alone: bnxt_re and irdma renamed their counters, and
// no two drivers use one name for two things. If a driver has several names of a counter, the first in this table counts, and no
// values are added up: names that overlap would count an event twice.
//
// The sources are files of the kernel below drivers/infiniband, with the release that was read. docs/congestion.md has the table by
// driver, with the names that have no place here and why.
var congestionNames = [...]struct{ counter, name string }{
	{ECNMarked, "np_ecn_marked_roce_packets"}, // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{ECNMarked, "rx_ecn_marked_pkts"},         // hw/bnxt_re/hw_counters.c 6.12
	{ECNMarked, "RxECNMrkd"},                  // hw/irdma/verbs.c 6.1
	{ECNMarked, "received_ecns"},              // hw/mana/counters.c 7.2, of the device

	{CNPSent, "np_cnp_sent"}, // hw/mlx5/counters.c 6.1
	{CNPSent, "tx_cnp_pkts"}, // hw/bnxt_re/hw_counters.c 6.12
	{CNPSent, "np_cnp_pkts"}, // hw/bnxt_re/hw_counters.c 7.2
	{CNPSent, "cnpSent"},     // hw/irdma/verbs.c 6.1
	{CNPSent, "sent_cnps"},   // hw/mana/counters.c 7.2, of the device
	{CNPSent, "tx_cnp_pkt"},  // hw/hns/hns_roce_main.c 6.12

	{CNPHandled, "rp_cnp_handled"}, // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2: received
	{CNPHandled, "rx_cnp_pkts"},    // hw/bnxt_re/hw_counters.c 6.12: received
	{CNPHandled, "cnpHandled"},     // hw/irdma/verbs.c 6.1
	{CNPHandled, "received_cnps"},  // hw/mana/counters.c 7.2: received
	{CNPHandled, "rx_cnp_pkt"},     // hw/hns/hns_roce_main.c 6.12: received

	{OutOfSequence, "out_of_sequence"},           // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{OutOfSequence, "oos_drop_count"},            // hw/bnxt_re/hw_counters.c 6.1
	{OutOfSequence, "Rcvd Out of order packets"}, // hw/irdma/verbs.c 7.2
	{OutOfSequence, "responder_oos"},             // hw/mana/counters.c 7.2
	{OutOfSequence, "rq_num_oos"},                // hw/mlx4/main.c 6.1
	{OutOfSequence, "RcSeqNak"},                  // hw/hfi1/chip.c, rc.c 6.1: NAKs sent for a gap
	{OutOfSequence, "out_of_seq_request"},        // sw/rxe/rxe_hw_counters.c 6.1

	{Retransmitted, "tcpRetransSegs"},      // hw/irdma/verbs.c 6.1: segments, also of RoCE
	{Retransmitted, "RetransSegs"},         // hw/irdma/verbs.c 7.2
	{Retransmitted, "retrans_pkts"},        // hw/efa/efa_verbs.c 7.2
	{Retransmitted, "RcResend"},            // hw/hfi1/chip.c, rc.c 6.1: packets, of a read its request
	{Retransmitted, "completer_retry_err"}, // sw/rxe/rxe_comp.c 6.1: times that sending starts again

	{Timeouts, "local_ack_timeout_err"},  // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{Timeouts, "to_retransmits"},         // hw/bnxt_re/hw_counters.c 6.1
	{Timeouts, "RTO"},                    // hw/irdma/verbs.c 7.2
	{Timeouts, "retrans_timeout_events"}, // hw/efa/efa_verbs.c 7.2
	{Timeouts, "requester_timeout"},      // hw/mana/counters.c 7.2
	{Timeouts, "sq_num_to"},              // hw/mlx4/main.c 6.1
	{Timeouts, "RcTimeOut"},              // hw/hfi1/chip.c 6.1

	{RNR, "rnr_nak_retry_err"}, // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2
	{RNR, "rnr_naks_rcvd"},     // hw/bnxt_re/hw_counters.c 6.1
	{RNR, "RNR received"},      // hw/irdma/verbs.c 7.2
	{RNR, "requester_rnr_nak"}, // hw/mana/counters.c 7.2
	{RNR, "sq_num_rnr"},        // hw/mlx4/main.c 6.1
	{RNR, "RnrNak"},            // hw/hfi1/chip.c, rc.c 6.1
	{RNR, "rcvd_rnr_err"},      // sw/rxe/rxe_hw_counters.c 6.1

	{OutOfBuffer, "out_of_buffer"},     // hw/mlx5/counters.c 6.1; hw/bnxt_re/hw_counters.c 7.2: packets
	{OutOfBuffer, "rx_out_of_buffer"},  // hw/bnxt_re/hw_counters.c 6.1: packets
	{OutOfBuffer, "RNR sent"},          // hw/irdma/verbs.c 7.2: RNR NAKs sent
	{OutOfBuffer, "responder_rnr_nak"}, // hw/mana/counters.c 7.2: RNR NAKs sent
	{OutOfBuffer, "rq_num_rnr"},        // hw/mlx4/main.c 6.1: RNR NAKs sent
	{OutOfBuffer, "send_rnr_err"},      // sw/rxe/rxe_hw_counters.c 6.1: RNR NAKs sent

	{AdaptiveRetransmissions, "roce_adp_retrans"}, // hw/mlx5/counters.c 6.1
	{SlowRestart, "roce_slow_restart"},            // hw/mlx5/counters.c 6.1
}

// congestionRanks maps a driver's name to its line of congestionNames.
var congestionRanks = func() map[string]int {
	ranks := make(map[string]int, len(congestionNames))
	for i, n := range congestionNames {
		ranks[n.name] = i
	}
	return ranks
}()

// Congestion appends the counters of congestion and retransmission among a driver's counters to a list, under the names that all
// drivers share, in the order of the table. What the driver does not count is absent.
func Congestion(found, counters []Counter) []Counter {
	var values [len(congestionNames)]*uint64
	for i := range counters {
		if rank, ok := congestionRanks[counters[i].Name]; ok {
			values[rank] = &counters[i].Value
		}
	}
	last := ""
	for i, value := range values {
		if name := congestionNames[i].counter; value != nil && name != last {
			last = name
			found = append(found, Counter{name, *value})
		}
	}
	return found
}

// DeviceCongestion returns the same of the device's own counters, without those that one of its ports has: the device's would count
// the events of the port again.
func (h *HCA) DeviceCongestion() []Counter {
	device := Congestion(nil, h.HWCounters)
	if len(device) == 0 {
		return nil
	}
	for i := range h.Ports {
		for _, c := range Congestion(nil, h.Ports[i].HWCounters) {
			device = slices.DeleteFunc(device, func(d Counter) bool { return d.Name == c.Name })
		}
	}
	return device
}
