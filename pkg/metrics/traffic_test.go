// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// trafficRefresh is made up: a pod that has a VF alone, one whose calls are all
// counted, and one that polls too much for it, on a device that they share.
func trafficRefresh() *engine.Refresh {
	var write model.FineHistogram
	write.Count, write.SumSeconds = 6, 1e-3
	write.Buckets[0], write.Buckets[17], write.Buckets[18], write.Buckets[model.FineBuckets-1] = 1, 2, 2, 1
	scaled := model.Seen{Sampled: true}
	rests := model.Seen{Resting: true}
	return &engine.Refresh{
		At: time.Unix(1, 0),
		Facts: model.Snapshot{
			VFs: []model.VF{
				{
					PF: "mlx5_0", Number: 0, PCIAddress: "0000:18:00.2", NodeGUID: "0011:2233:4455:6677",
					PortGUID: "0011:2233:4455:6678", Counted: true,
					TransmitBytes: 111, ReceiveBytes: 222, TransmitPackets: 3, ReceivePackets: 4,
				},
				{PF: "mlx5_0", Number: 1, TransmitBytes: 404},
			},
			DataPath: &model.DataPathStats{Processes: 3, Probes: 12, Late: 1},
		},
		Shares: attribution.Attribution{
			Owners: []attribution.Owner{
				{},
				{Workload: "ml/alone/main", Namespace: "ml", Pod: "alone", Container: "main", ContainerID: "0a"},
				{Workload: "ml/exact/main", Namespace: "ml", Pod: "exact", Container: "main", ContainerID: "0b"},
				{Workload: "ml/busy/main", Namespace: "ml", Pod: "busy", Container: "main", ContainerID: "0c"},
			},
			Traffic: []attribution.TrafficShare{
				{Owner: 1, Device: "mlx5_2", Method: model.MethodPort, Direction: model.Transmit, Bytes: 4000},
				{Owner: 1, Device: "mlx5_2", Method: model.MethodPort, Direction: model.Receive, Bytes: 8000},
				{Owner: 0, Device: "mlx5_0", Method: model.MethodPort, Direction: model.Transmit, Bytes: 77},
				{Owner: 2, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: 1 << 40},
				{Owner: 2, Device: "mlx5_0", Method: model.MethodQPCounter, Direction: model.Transmit, Bytes: 5},
				{Owner: 3, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: 55},
				{Owner: 3, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: 66, Sampled: true},
				{Owner: 3, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Receive, Bytes: 67, Sampled: true},
			},
			WorkRequests: []attribution.WorkRequestShare{
				{Owner: 2, Device: "mlx5_0", Opcode: "rdma_write", Count: 9, Bytes: 1 << 40},
				{Owner: 2, Device: "mlx5_0", Opcode: "recv", Count: 8},
				{Owner: 3, Device: "mlx5_0", Opcode: "send", Count: 404, Bytes: 404, Seen: rests},
				{Owner: 3, Device: "mlx5_0", Opcode: "send", Count: 6, Bytes: 66, Seen: scaled},
			},
			CompletionErrors: []attribution.CompletionErrorShare{
				{Owner: 2, Device: "mlx5_0", Status: "retry_exceeded", Count: 2},
				{Owner: 3, Device: "mlx5_0", Status: "wr_flush_error", Count: 404, Seen: rests},
				{Owner: 3, Device: "mlx5_0", Status: "wr_flush_error", Count: 3, Seen: scaled},
			},
			Completions: []attribution.CompletionShare{
				{Owner: 2, Device: "mlx5_0", Opcode: "write", Duration: write},
				{Owner: 3, Device: "mlx5_0", Opcode: "send", Duration: write, Seen: rests},
				{Owner: 3, Device: "mlx5_0", Opcode: "atomic", Duration: write, Seen: scaled},
			},
			Sampling: []attribution.SamplingShare{
				{Owner: 2, Device: "mlx5_0", Calls: model.PostCalls, Ratio: 1},
				{Owner: 3, Device: "mlx5_0", Calls: model.PollCalls, Ratio: 0.015},
			},
			Budgets: []attribution.BudgetShare{
				{Owner: 2, LimitRatio: math.Inf(1), SpentRatio: 0.04, SpentSeconds: 1.5},
				{Owner: 3, LimitRatio: 0.01, SpentRatio: 0.0099, SpentSeconds: 2.5},
			},
		},
	}
}

func TestTrafficGolden(t *testing.T) {
	b := newCollector(setup{})
	families := b.families(trafficRefresh())
	text := encode(t, exposition.NewPage(families).Proto(), expfmt.TypeTextPlain)
	compare(t, filepath.Join("testdata", "traffic.prom"), text)
	compareText(t, families)
	for _, m := range trafficMetrics() {
		if !strings.Contains(text, "# TYPE "+m.name+" ") {
			t.Errorf("%s is not shown", m.name)
		}
	}
	// What rests, and the counters of a function that nobody counts.
	if strings.Contains(text, "404") || strings.Contains(text, `opcode="send"} 4`) {
		t.Error("a figure that is not known is shown")
	}
}

// TestTrafficLabelsStay: series are prepared once, whatever a row is of.
func TestTrafficLabelsStay(t *testing.T) {
	b := newCollector(setup{})
	r := trafficRefresh()
	b.families(r)
	b.families(r)
	before := testing.AllocsPerRun(10, func() { b.families(r) })
	for range 1000 { // as many rows again, of series that are there
		r.Shares.Traffic = append(r.Shares.Traffic, r.Shares.Traffic[3])
		r.Shares.Completions = append(r.Shares.Completions, r.Shares.Completions[0])
	}
	if after := testing.AllocsPerRun(10, func() { b.families(r) }); after > before+2 {
		t.Errorf("2000 more rows take %v allocations, without them it takes %v", after, before)
	}
}
