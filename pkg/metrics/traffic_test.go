// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// trafficRefresh returns a pod with its own VF, a pod whose calls are all counted, and a pod that is counted in surveys
// only. The last two share a device.
func trafficRefresh() *engine.Refresh {
	var write model.FineHistogram
	write.Count, write.Sum = 6, 1e6
	write.Buckets[0], write.Buckets[17], write.Buckets[18], write.Buckets[model.FineBuckets-1] = 1, 2, 2, 1
	return &engine.Refresh{
		At: time.Unix(1, 0),
		Facts: model.Snapshot{
			VFs: []model.VF{
				{
					PF: "mlx5_0", Number: 0, PCIAddress: "0000:18:00.2", NodeGUID: "0x0011223344556677",
					PortGUID: "0x0011223344556678", Counted: true,
					TransmitBytes: 111, ReceiveBytes: 222, TransmitPackets: 3, ReceivePackets: 4,
				},
				{PF: "mlx5_0", Number: 1, TransmitBytes: 404},
			},
			DataPath: &model.DataPathStats{LimitRatio: 0.01, Processes: 3, Probes: 12, Late: 1},
		},
		Shares: attribution.Attribution{
			Owners: []identity.Owner{
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
				{Owner: 3, Device: "mlx5_0", Method: model.MethodSurvey, Direction: model.Transmit, Bytes: 66},
				{Owner: 3, Device: "mlx5_0", Method: model.MethodSurvey, Direction: model.Receive, Bytes: 67},
			},
			CounterShares: attribution.CounterShares{
				WorkRequests: []attribution.Share[model.WorkRequestKey, model.Requests]{
					{Owner: 2, Key: model.WorkRequestKey{Device: "mlx5_0", Opcode: "rdma_write"}, Value: model.Requests{Count: 9, Bytes: 1 << 40}},
					{Owner: 2, Key: model.WorkRequestKey{Device: "mlx5_0", Opcode: "recv"}, Value: model.Requests{Count: 8, Bytes: 0}},
					{Owner: 3, Key: model.WorkRequestKey{Device: "mlx5_0", Opcode: "send"}, Value: model.Requests{Count: 404, Bytes: 404}, Resting: true},
				},
				CompletionErrors: []attribution.Share[model.CompletionErrorKey, model.Count]{
					{Owner: 2, Key: model.CompletionErrorKey{Device: "mlx5_0", Status: "retry_exceeded"}, Value: 2},
					{Owner: 3, Key: model.CompletionErrorKey{Device: "mlx5_0", Status: "wr_flush_error"}, Value: 404, Resting: true},
				},
				Late:   []attribution.Share[model.DeviceKey, model.Count]{{Owner: 2, Key: model.DeviceKey{Device: "mlx5_0"}, Value: 1}},
				Unread: []attribution.Share[model.DeviceKey, model.Count]{{Owner: 3, Key: model.DeviceKey{Device: "mlx5_0"}, Value: 21}},
				ReceiveWaits: []attribution.Share[model.DeviceKey, model.WaitTime]{
					{Owner: 2, Key: model.DeviceKey{Device: "mlx5_0"}, Value: 7500e6},
					{Owner: 3, Key: model.DeviceKey{Device: "mlx5_0"}, Value: 404e9, Resting: true},
				},
				Completions: []attribution.Share[model.CompletionKey, model.FineHistogram]{
					{Owner: 2, Key: model.CompletionKey{Device: "mlx5_0", Opcode: "write"}, Value: write},
					{Owner: 3, Key: model.CompletionKey{Device: "mlx5_0", Opcode: "send"}, Value: write, Resting: true},
				},
			},
			Coverage: []attribution.CoverageShare{
				{Owner: 1, Device: "mlx5_2"},
				{Owner: 2, Device: "mlx5_0", Gap: model.GapLate},
				{Owner: 3, Device: "mlx5_0", Gap: model.GapSurvey},
				{Owner: 3, Device: "mlx5_0", Gap: model.GapDEVX},
				{Owner: 1, Device: "mlx5_0", Gap: model.GapUnattributed},
				{Owner: 1, Device: "mlx5_1", Gap: model.GapUnattributed},
			},
			Missed: []attribution.MissedShare{
				{Owner: 1, Device: "mlx5_0", Bytes: 643e6},
				{Owner: 1, Device: "mlx5_1", Bytes: 404, Unlimited: true},
			},
			Outstanding: []attribution.OutstandingShare{
				{
					Owner: 2, Device: "mlx5_0", Oldest: 12500 * time.Millisecond, Stalled: 3,
					OldestReceive: 31500 * time.Millisecond, ReceiveGaps: []model.Gap{model.GapPreposted},
				},
				{Owner: 3, Device: "mlx5_0"},
				{
					Owner: 3, Device: "mlx5_1", Gaps: []model.Gap{model.GapLate, model.GapUnmatched},
					ReceiveGaps: []model.Gap{model.GapLate},
				},
			},
			Budgets: []attribution.BudgetShare{
				{Owner: 2, SpentRatio: 0.04, Spent: 15e8},
				{Owner: 3, SpentRatio: 0.0099, Spent: 25e8},
			},
		},
	}
}

func TestTrafficGolden(t *testing.T) {
	b := newCollector(setup{})
	families := b.families(trafficRefresh())
	text := library.Encode(t, exposition.NewPage(families, exposition.Forms{}).Proto(), expfmt.TypeTextPlain)
	compare(t, filepath.Join("testdata", "traffic.prom"), text)
	compareText(t, families)
	for _, m := range trafficMetrics() {
		if !strings.Contains(text, "# TYPE "+m.name+" ") {
			t.Errorf("%s is not shown", m.name)
		}
	}
	// Counters of workloads in surveys only, and of a function without counters, have no series.
	if strings.Contains(text, "404") || strings.Contains(text, `opcode="send"} 4`) {
		t.Error("an unknown value has a series")
	}
}

func TestTrafficLabelsStay(t *testing.T) {
	b := newCollector(setup{})
	r := trafficRefresh()
	b.families(r)
	b.families(r)
	before := testing.AllocsPerRun(10, func() { b.families(r) })
	for range 1000 { // the same rows again, for existing series
		r.Shares.Traffic = append(r.Shares.Traffic, r.Shares.Traffic[3])
		r.Shares.Completions = append(r.Shares.Completions, r.Shares.Completions[0])
	}
	if after := testing.AllocsPerRun(10, func() { b.families(r) }); after > before+2 {
		t.Errorf("2000 more rows take %v allocations, without them it takes %v", after, before)
	}
}
