// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/model"

var sharedNotes = []string{
	"Each value is one counter of the driver or a sum; [the table by driver](../docs/links.md#counters-of-all-drivers) has the meaning. " +
		"A counter that the driver lacks is absent, never 0. `rdma_stat_<counter>` has the driver's names.",
	"`port` is empty for a counter of the whole device.",
	"Bytes and packets come from `counters/`, or else from the driver's own counters. If a port has no bytes, `accelscope doctor` " +
		"shows the reason.",
	"`rdma_port_transmit_errors_total`, `rdma_port_receive_errors_total` and discards exist for drivers without `counters/`. The " +
		"others have `infiniband_port_errors_total`.",
	"Some drivers count by function, not by port: a VF has its own values, and a PF excludes its VFs.",
}

// sharedMetrics returns the counters of traffic, errors, congestion and retransmission, under one name for all drivers.
func sharedMetrics() []metric {
	return []metric{
		sharedCounter(model.TransmitBytes, "Bytes sent, from the counters that the driver has."),
		sharedCounter(model.ReceiveBytes, "Bytes received, from the counters that the driver has."),
		sharedCounter(model.TransmitPackets, "Packets sent, from the counters that the driver has."),
		sharedCounter(model.ReceivePackets, "Packets received, from the counters that the driver has."),
		sharedCounter(model.TransmitErrors, "Packets that could not be sent, from the driver's own counters."),
		sharedCounter(model.ReceiveErrors, "Packets received with errors, from the driver's own counters."),
		sharedCounter(model.TransmitDiscards, "Packets dropped instead of sent, from the driver's own counters."),
		sharedCounter(model.ReceiveDiscards, "Packets received and dropped, from the driver's own counters."),
		sharedCounter(model.ECNMarked, "RoCE packets received with an ECN mark."),
		sharedCounter(model.CNPSent, "Congestion notifications (CNP) sent."),
		sharedCounter(model.CNPHandled, "Congestion notifications (CNP) received and acted on."),
		sharedCounter(model.OutOfSequence, "Requests received out of sequence."),
		sharedCounter(model.Retransmitted, "Packets sent again."),
		sharedCounter(model.Timeouts, "Acknowledgement timeouts of queue pairs."),
		sharedCounter(model.RNR, "RNR NAKs received, after which the request is retried."),
		sharedCounter(model.OutOfBuffer, "Requests received without a posted receive buffer."),
		sharedCounter(model.AdaptiveRetransmissions, "Adaptive retransmissions of RoCE."),
		sharedCounter(model.SlowRestart, "Uses of RoCE slow restart."),
	}
}

// sharedCounter returns the row of a counter that has one name for all drivers.
func sharedCounter(counter, help string) metric {
	return portCounter("rdma_port_"+counter+"_total", counter, 1, help, func(v *view) *columns { return &v.shared })
}
