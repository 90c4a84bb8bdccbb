// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var gpuHealthNotes = []string{
	"`gpu_health` is 0 while any `gpu_problem` is 1. It is absent if the state is unknown.",
	"`gpu_problem`: a GPU that is `lost` (fell off the bus), `stuck` (a driver call has not returned) or `unreadable` " +
		"(errors in place of values) keeps only `gpu_info`, `gpu_health`, its XIDs, and readable values. GPUs that wait for a " +
		"stuck GPU are `blocked` in `accelscope_device_state`, without `gpu_health` and `gpu_problem`: they may be healthy. " +
		"`power_change` has a series only while it lasts.",
	"`gpu_recovery_action`: drivers since 570. While it is `none`, XIDs are no problem.",
	"`gpu_fabric_state`, `gpu_fabric_info`: GPUs with NVSwitches only. CUDA needs `completed`. `gpu_fabric_info` is absent if " +
		"the NVSwitches connect one node only.",
	"`nvidia_fabric_manager_running`: nodes with NVSwitches, or where the manager has run for a minute, if the sensor sees the " +
		"node's processes. The executable must run as root.",
	"`gpu_ecc_errors_total`: `type` is `corrected`, `uncorrected` or `deferred`; `scope` is `volatile` (since driver load) or " +
		"`aggregate` (lifetime).",
	"`gpu_remapped_rows`: `cause` is `correctable` or `uncorrectable`.",
	"`gpu_last_reset_timestamp_seconds`: from restarted counters, or a release for a reset after which they did not continue. " +
		"Earlier XIDs are no problem any more.",
	"`gpu_xid_errors_total` counts from the sensor's start. XIDs of a MIG instance count for the instance.",
}

func gpuHealthMetrics() []metric {
	return []metric{
		gpuValue("gpu_health", gauge, "Whether the GPU is healthy (1) or has a problem (0).",
			func(g *gpuView) model.Optional {
				return model.Optional{Value: truth(len(g.ActiveProblems()) == 0), Known: g.Problems != nil}
			}),
		gpuConditions("gpu_problem", "problem", "Whether the GPU has the problem.",
			func(g *gpuView) []model.GPUCondition { return g.Problems }),
		gpuState("gpu_recovery_action", "action", model.RecoveryActions,
			"Action that the NVIDIA driver asks for, 1 if current.",
			func(g *gpuView) string { return g.RecoveryAction }),
		gpuState("gpu_fabric_state", "state", model.FabricStates,
			"State of the GPU's registration in the NVLink fabric, 1 if current.",
			func(g *gpuView) string { return g.Fabric }),
		{
			name: "gpu_fabric_info", typ: gauge, gpu: true, labels: []string{"cluster_uuid", "clique"},
			help: "NVLink domain (cluster) of the GPU, and the part in which GPUs reach each other.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				if g.FabricCluster != "" {
					b.Share(1, g.labels, g.FabricCluster, strconv.FormatUint(uint64(g.FabricClique), 10))
				}
			}),
		},
		single("nvidia_fabric_manager_running", gauge, "Whether the fabric manager of the NVSwitches runs.",
			managerOf, func(m *model.FabricManager) model.Optional { return model.Some(truth(m.Running)) }),
		single("nvidia_fabric_manager_starts_total", counter,
			"Restarts of the fabric manager that the sensor noticed.",
			managerOf, func(m *model.FabricManager) model.Optional { return model.Some(float64(m.Starts)) }),
		gpuValue("gpu_suspended", gauge, "Whether runtime power management suspended the GPU.",
			func(g *gpuView) model.Optional {
				return model.Optional{Value: truth(g.Suspended), Known: !unreadable(g.GPU)}
			}),
		{
			name: "gpu_ecc_errors_total", typ: counter, gpu: true, labels: []string{"type", "scope", "block"}, sum: "block",
			help: "ECC memory errors, by type, scope and block.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				for _, e := range g.Errors {
					b.Share(float64(e.Count), g.labels, e.Type, e.Scope, e.Block)
				}
			}),
		},
		gpuFigures("gpu_remapped_rows", gauge, "cause", "GPU memory rows replaced by spare rows, by cause.",
			func(g *gpuView) []model.Figure { return g.RemappedRows }),
		gpuFigures("gpu_retired_pages", gauge, "cause", "GPU memory pages taken out of use, by cause.",
			func(g *gpuView) []model.Figure { return g.RetiredPages }),
		xid("gpu_xid_errors_total", counter, "XIDs that the NVIDIA driver reported.",
			func(x *model.XID) model.Optional { return model.Some(float64(x.Count)) }),
		xid("gpu_xid_last_timestamp_seconds", gauge, "Unix time of the last report of the XID.",
			func(x *model.XID) model.Optional { return moment(x.Last) }),
		gpuValue("gpu_last_reset_timestamp_seconds", gauge,
			"Unix time when the sensor noticed a GPU reset or driver reload (NVIDIA).",
			func(g *gpuView) model.Optional { return moment(g.Reset) }),
	}
}

func managerOf(v *view) *model.FabricManager { return v.facts.FabricManager }

func xid(name string, typ dto.MetricType, help string, of func(*model.XID) model.Optional) metric {
	return metric{
		name: name, typ: typ, gpu: true, labels: []string{"xid"}, help: help,
		emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
			for i := range g.XIDs {
				known(b, of(&g.XIDs[i]), g.labels, strconv.FormatUint(g.XIDs[i].Code, 10))
			}
		}),
	}
}

// unreadable reports whether a GPU is lost, stuck, unreadable or blocked: its driver reports few values, or no values.
func unreadable(g *model.GPU) bool {
	return g.Blocked || slices.ContainsFunc(g.Problems, func(c model.GPUCondition) bool {
		return c.Active && (c.Name == model.ProblemLost || c.Name == model.ProblemStuck || c.Name == model.ProblemUnreadable)
	})
}
