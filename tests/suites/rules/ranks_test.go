// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"
)

// BenchmarkRanks evaluates the alerts about ranks on 1,000 nodes with 8 ranks of 4 communicators each: one over all nodes, one over 16
// nodes, two of a node.
func BenchmarkRanks(b *testing.B) {
	const nodes, perNode = 1000, 8
	var load strings.Builder
	load.WriteString("load 1m\n")
	for n := range nodes {
		for r := range perNode {
			id := fmt.Sprintf(`job="accelscope",instance="n%d",workload="ml/w%d-%d/main",namespace="ml",pod="w%d-%d",container="main",container_id="c%d-%d"`,
				n, n, r, n, r, n, r)
			fmt.Fprintf(&load, "  container_collective_coverage{%s,reason=\"complete\"} 1x11\n", id)
			wait := "container_rdma_receive_wait_seconds"
			for communicator, size := range map[string]int{"all": nodes, fmt.Sprint("sixteen", n/16): 16, fmt.Sprint("one", n): 1, fmt.Sprint("other", n): 1} {
				rank := n%size*perNode + r
				of := fmt.Sprintf("%s,communicator=%q,rank=\"%d\"", id, communicator, rank)
				fmt.Fprintf(&load, "  instance_workload_communicator:%s:rate2m{%s,communicator=%q} 0.2x11\n", wait, id, communicator)
				fmt.Fprintf(&load, "  instance_workload_communicator:%s:mean2m{%s,communicator=%q} 0.01x11\n", wait, id, communicator)
				fmt.Fprintf(&load, "  container_collective_launches_total{%s,library=\"nccl\",operation=\"all_reduce\"} 0+600x11\n", of)
				fmt.Fprintf(&load, "  container_collective_last_launch_timestamp_seconds{%s} 0+60x11\n", of)
				fmt.Fprintf(&load, "  container_collective_late_seconds_total{%s} 0x11\n", of)
				fmt.Fprintf(&load, "  container_collective_communicator_info{%s,nranks=\"%d\",library=\"nccl\",version=\"2.28.3\"} 1x11\n", of, size*perNode)
			}
		}
	}
	storage := promqltest.LoadedStorage(b, load.String())
	engine := promqltest.NewTestEngine(b, false, 0, 50_000_000)
	for _, r := range rules(b) {
		if !strings.HasPrefix(r.Alert, "JobMember") {
			continue
		}
		b.Run(r.Alert, func(b *testing.B) {
			for b.Loop() {
				query, err := engine.NewInstantQuery(b.Context(), storage, nil, r.Expr, time.Unix(600, 0))
				if err != nil {
					b.Fatal(err)
				}
				if vector, err := query.Exec(b.Context()).Vector(); err != nil || len(vector) > 0 {
					b.Fatal(len(vector), err)
				}
				query.Close()
			}
		})
	}
}
