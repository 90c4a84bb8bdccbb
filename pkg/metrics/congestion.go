// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/model"

var congestionNotes = []string{
	"Each is one counter of the driver, which `rdma_stat_<counter>` has under the driver's name. " +
		"[The table by driver](../docs/congestion.md) has its meaning and source. A counter that the driver does not have is absent, " +
		"never 0.",
	"`port` is empty for a counter that the driver has only for the whole device.",
	"Some drivers count these of each function: a VF has its own, and those of a PF exclude its VFs. They are not of the port alone.",
}

// congestionMetrics returns the counters of congestion and retransmission, under one name for all drivers.
func congestionMetrics() []metric {
	row := func(counter, help string) metric {
		return portCounter("rdma_port_"+counter+"_total", counter, 1, help, func(v *view) *columns { return &v.congestion })
	}
	return []metric{
		row(model.ECNMarked, "RoCE packets received with an ECN mark of a congested switch."),
		row(model.CNPSent, "Congestion notifications (CNP) sent to senders of marked packets."),
		row(model.CNPHandled, "Congestion notifications (CNP) received, for which senders of this port slow down."),
		row(model.OutOfSequence, "Requests received out of sequence, after a packet was lost or overtaken."),
		row(model.Retransmitted, "Packets that were sent again."),
		row(model.Timeouts, "Times that no acknowledgement came before the timeout of a queue pair."),
		row(model.RNR, "RNR NAKs received from remote ends without a receive buffer, after which the request is tried again."),
		row(model.OutOfBuffer, "Requests received for which no receive buffer was posted."),
		row(model.AdaptiveRetransmissions, "Adaptive retransmissions of RoCE."),
		row(model.SlowRestart, "Times that RoCE slow restart was used."),
	}
}
