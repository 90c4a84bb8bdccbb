// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/model"

var sharedNotes = []string{
	"Each is one counter of the driver, or a sum, which `rdma_stat_<counter>` has under the driver's names. " +
		"[The table by driver](../docs/links.md#counters-of-all-drivers) has its meaning and source. A counter that the driver does not have " +
		"is absent, never 0.",
	"`port` is empty for a counter that the driver has only for the whole device.",
	"`rdma_port_transmit_bytes_total`, `rdma_port_receive_bytes_total` and packets are of `counters/`, or else of the driver's own " +
		"counters. [The table by driver](../docs/links.md#counters-of-all-drivers) has what they count. A port without bytes " +
		"is in `accelscope doctor`, with the reason.",
	"`rdma_port_transmit_errors_total`, `rdma_port_receive_errors_total` and the counters of discards exist for drivers without " +
		"`counters/`. " +
		"The others have `infiniband_port_errors_total`.",
	"Some drivers count these of each function: a VF has its own, and those of a PF exclude its VFs. They are not of the port alone.",
}

// sharedMetrics returns the counters of traffic, errors, congestion and retransmission, under one name for all drivers.
func sharedMetrics() []metric {
	return []metric{
		sharedCounter(model.TransmitBytes, "Bytes that the port sent, by whatever counters its driver has."),
		sharedCounter(model.ReceiveBytes, "Bytes that the port received, by whatever counters its driver has."),
		sharedCounter(model.TransmitPackets, "Packets that the port sent, by whatever counters its driver has."),
		sharedCounter(model.ReceivePackets, "Packets that the port received, by whatever counters its driver has."),
		sharedCounter(model.TransmitErrors, "Packets that could not be sent, of a driver with counters of its own."),
		sharedCounter(model.ReceiveErrors, "Packets received with errors, of a driver with counters of its own."),
		sharedCounter(model.TransmitDiscards, "Packets that were dropped instead of sent, of a driver with counters of its own."),
		sharedCounter(model.ReceiveDiscards, "Packets that were received and dropped, of a driver with counters of its own."),
		sharedCounter(model.ECNMarked, "RoCE packets received with an ECN mark of a congested switch."),
		sharedCounter(model.CNPSent, "Congestion notifications (CNP) sent to senders of marked packets."),
		sharedCounter(model.CNPHandled, "Congestion notifications (CNP) received, for which senders of this port slow down."),
		sharedCounter(model.OutOfSequence, "Requests received out of sequence, after a packet was lost or overtaken."),
		sharedCounter(model.Retransmitted, "Packets that were sent again."),
		sharedCounter(model.Timeouts, "Times that no acknowledgement came before the timeout of a queue pair."),
		sharedCounter(model.RNR, "RNR NAKs received from remote ends without a receive buffer, after which the request is tried again."),
		sharedCounter(model.OutOfBuffer, "Requests received for which no receive buffer was posted."),
		sharedCounter(model.AdaptiveRetransmissions, "Adaptive retransmissions of RoCE."),
		sharedCounter(model.SlowRestart, "Times that RoCE slow restart was used."),
	}
}

// sharedCounter returns the row of a counter that has one name for all drivers.
func sharedCounter(counter, help string) metric {
	return portCounter("rdma_port_"+counter+"_total", counter, 1, help, func(v *view) *columns { return &v.shared })
}
