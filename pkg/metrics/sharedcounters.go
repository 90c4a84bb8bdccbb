// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/model"

var sharedNotes = []string{
	"Each value is one driver counter or a sum: see [the table by driver](../docs/links.md#counters-of-all-drivers).",
	"Errors and discards exist for drivers without `counters/`; other drivers have `infiniband_port_errors_total`.",
}

func sharedMetrics() []metric {
	return []metric{
		sharedCounter(model.TransmitBytes, "Bytes sent, from the driver's counters."),
		sharedCounter(model.ReceiveBytes, "Bytes received, from the driver's counters."),
		sharedCounter(model.TransmitPackets, "Packets sent, from the driver's counters."),
		sharedCounter(model.ReceivePackets, "Packets received, from the driver's counters."),
		sharedCounter(model.TransmitErrors, "Packets that could not be sent."),
		sharedCounter(model.ReceiveErrors, "Packets received with errors."),
		sharedCounter(model.TransmitDiscards, "Packets dropped instead of sent."),
		sharedCounter(model.ReceiveDiscards, "Packets received and dropped."),
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

func sharedCounter(counter, help string) metric {
	return portCounter("rdma_port_"+counter+"_total", counter, 1, help, func(v *view) *columns { return &v.shared })
}
