// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
)

func outstandingMetrics() []metric {
	outstanding := func(name, help string, of func(*attribution.OutstandingShare) float64) metric {
		return metric{
			name: name, typ: gauge, owned: true, labels: []string{"device"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Outstanding {
					if s := &v.shares.Outstanding[i]; s.Known() {
						b.Share(of(s), v.owners[s.Owner], s.Device)
					}
				}
			},
		}
	}
	return []metric{
		outstanding("container_rdma_oldest_outstanding_seconds",
			"Age of the oldest outstanding signaled work request, or 0.",
			func(s *attribution.OutstandingShare) float64 { return s.Oldest.Seconds() }),
		outstanding("container_rdma_stalled_queue_pairs",
			"Queue pairs with outstanding signaled requests and no completion for a while.",
			func(s *attribution.OutstandingShare) float64 { return float64(s.Stalled) }),
		{
			name: "container_rdma_outstanding_coverage", typ: gauge, owned: true, labels: []string{"device", "reason"},
			help: "Whether all queue pairs are traced, 1 (complete) or 0 for each reason.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Outstanding {
					s := &v.shares.Outstanding[i]
					if len(s.Gaps) == 0 {
						b.Share(1, v.owners[s.Owner], s.Device, "complete")
					}
					for _, gap := range s.Gaps {
						b.Share(0, v.owners[s.Owner], s.Device, string(gap))
					}
				}
			},
		},
	}
}
