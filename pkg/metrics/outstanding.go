// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

func outstandingMetrics() []metric {
	outstanding := func(name, help string, known func(*attribution.OutstandingShare) bool,
		of func(*attribution.OutstandingShare) float64,
	) metric {
		return metric{
			name: name, typ: gauge, owned: true, labels: []string{"device"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Outstanding {
					if s := &v.shares.Outstanding[i]; known(s) {
						b.Share(of(s), v.owners[s.Owner], s.Device)
					}
				}
			},
		}
	}
	complete := func(name, help string, gaps func(*attribution.OutstandingShare) []model.Gap) metric {
		return metric{
			name: name, typ: gauge, owned: true, labels: []string{"device", "reason"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Outstanding {
					s := &v.shares.Outstanding[i]
					if len(gaps(s)) == 0 {
						b.Share(1, v.owners[s.Owner], s.Device, "complete")
					}
					for _, gap := range gaps(s) {
						b.Share(0, v.owners[s.Owner], s.Device, string(gap))
					}
				}
			},
		}
	}
	return []metric{
		outstanding("container_rdma_oldest_outstanding_seconds",
			"Age of the oldest outstanding signaled work request, or 0.", (*attribution.OutstandingShare).Known,
			func(s *attribution.OutstandingShare) float64 { return s.Oldest.Seconds() }),
		outstanding("container_rdma_stalled_queue_pairs",
			"Queue pairs with outstanding signaled requests and no completion for a while.", (*attribution.OutstandingShare).Known,
			func(s *attribution.OutstandingShare) float64 { return float64(s.Stalled) }),
		complete("container_rdma_outstanding_coverage", "Whether all queue pairs are traced, 1 (complete) or 0 for each reason.",
			func(s *attribution.OutstandingShare) []model.Gap { return s.Gaps }),
		receiveWait,
		outstanding("container_rdma_oldest_receive_seconds",
			"Longest present wait of a queue pair for a receive, or 0.", (*attribution.OutstandingShare).ReceivesKnown,
			func(s *attribution.OutstandingShare) float64 { return s.OldestReceive.Seconds() }),
		complete("container_rdma_receive_coverage", "Whether all waits for receives are known, 1 (complete) or 0 for each reason.",
			func(s *attribution.OutstandingShare) []model.Gap { return s.ReceiveGaps }),
	}
}

var receiveWait = metric{
	name: "container_rdma_receive_wait_seconds_total", typ: counter, owned: true, labels: []string{"device"},
	help: "Time in which a posted receive was the oldest incomplete work request, of all queue pairs.",
	emit: func(v *view, b *exposition.Builder) {
		for _, s := range v.shares.ReceiveWaits {
			if !s.Resting {
				b.Since(s.Since).Share(float64(s.Value)/1e9, v.owners[s.Owner], s.Key.Device)
			}
		}
	},
}
