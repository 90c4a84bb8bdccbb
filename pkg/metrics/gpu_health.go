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
	"`gpu_health` is 0 while any series of `gpu_problem` is 1. It is absent where the state of the GPU is unknown.",
	"`gpu_problem` has a series for every problem that the sensor checks. A GPU that is lost (fell off the bus), stuck (a " +
		"call into its driver has not returned) or unreadable (the driver reports errors in place of its values) has no other metrics " +
		"except `gpu_info`, `gpu_health`, its XIDs, and the values that an unreadable one still reports.",
	"A GPU that is stuck may hold a lock of its driver. Other GPUs that wait for it are `blocked` in `accelscope_device_state`, " +
		"and have neither `gpu_health` nor `gpu_problem`: they may be healthy.",
	"`gpu_recovery_action`: drivers since 570 report it. While it is `none`, no XID is a problem: the list of critical XIDs is for " +
		"drivers that do not report it. After one GPU fell off the bus, the driver may ask for a reboot of the node on all its GPUs.",
	"`gpu_fabric_state`, `gpu_fabric_info`: only GPUs with NVSwitches have them. CUDA cannot use a GPU before its registration is " +
		"`completed`: the problem `fabric_not_ready` is a registration that takes too long. The problem `fabric` is a registration that " +
		"failed, or a fabric that is degraded. Where the NVSwitches connect one node only, the cluster has no " +
		"UUID, and `gpu_fabric_info` is absent.",
	"`gpu_problem`: `power_change`, of a GPU that is being suspended or woken for too long, has a series only then.",
	"`nvidia_fabric_manager_running`: of nodes with NVSwitches, and of nodes with GPUs in an NVLink fabric after the manager has " +
		"run there for a minute, where the sensor sees the processes of the node. Only root of the node with an executable of this name " +
		"is the fabric manager.",
	"`gpu_suspended`: the sensor does not wake a suspended GPU; its other series except `gpu_info` are absent meanwhile.",
	"`gpu_ecc_errors_total`: `type` is `corrected`, `uncorrected` or `deferred`; `scope` is `volatile` (since the driver was " +
		"loaded) or `aggregate` (over the life of the GPU); the block `all` is a sum over blocks.",
	"`gpu_remapped_rows`: `cause` is `correctable` or `uncorrectable` errors.",
	"`gpu_last_reset_timestamp_seconds`: counters of the GPU started again (energy, volatile ECC errors), or an operator ended a release " +
		"for a reset and they did not go on. XIDs from before are no problem any more. It is absent if the sensor has noticed none.",
	"`gpu_xid_errors_total` counts from the start of the sensor. An XID of a MIG instance counts for the instance, other XIDs for the GPU.",
}

// gpuHealthMetrics returns the health and error metrics of GPUs.
func gpuHealthMetrics() []metric {
	return []metric{
		gpuValue("gpu_health", gauge, "Whether the GPU is healthy (1) or has a problem (0).",
			func(g *gpuView) model.Optional {
				return model.Optional{Value: truth(len(g.ActiveProblems()) == 0), Known: g.Problems != nil}
			}),
		gpuConditions("gpu_problem", "problem", "Whether the GPU has the problem (1) or not (0).",
			func(g *gpuView) []model.GPUCondition { return g.Problems }),
		gpuState("gpu_recovery_action", "action", model.RecoveryActions,
			"Action that the NVIDIA driver asks for so that the GPU works, 1 for the current one and 0 for the others.",
			func(g *gpuView) string { return g.RecoveryAction }),
		gpuState("gpu_fabric_state", "state", model.FabricStates,
			"State of the GPU's registration in the NVLink fabric, 1 for the current state and 0 for the others.",
			func(g *gpuView) string { return g.Fabric }),
		{
			name: "gpu_fabric_info", typ: gauge, gpu: true, labels: []string{"cluster_uuid", "clique"},
			help: "NVLink domain (cluster) that the GPU has joined, and the part of it in which GPUs reach each other, always 1.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				if g.FabricCluster != "" {
					b.Share(1, g.labels, g.FabricCluster, strconv.FormatUint(uint64(g.FabricClique), 10))
				}
			}),
		},
		single("nvidia_fabric_manager_running", gauge, "Whether the fabric manager of the node's NVSwitches runs (1) or not (0).",
			managerOf, func(m *model.FabricManager) model.Optional { return model.Some(truth(m.Running)) }),
		single("nvidia_fabric_manager_starts_total", counter,
			"Starts of the fabric manager of the node's NVSwitches that the sensor has seen, without the first.",
			managerOf, func(m *model.FabricManager) model.Optional { return model.Some(float64(m.Starts)) }),
		gpuValue("gpu_suspended", gauge, "Whether runtime power management has suspended the GPU (1) or not (0).",
			func(g *gpuView) model.Optional {
				return model.Optional{Value: truth(g.Suspended), Known: !unreadable(g.GPU)}
			}),
		{
			name: "gpu_ecc_errors_total", typ: counter, gpu: true, labels: []string{"type", "scope", "block"}, sum: "block",
			help: "Memory errors of the GPU that ECC has found, by type, scope and block.",
			emit: each(gpusOf, func(_ *view, b *exposition.Builder, g *gpuView) {
				for _, e := range g.Errors {
					b.Share(float64(e.Count), g.labels, e.Type, e.Scope, e.Block)
				}
			}),
		},
		gpuFigures("gpu_remapped_rows", gauge, "cause", "Rows of GPU memory that were replaced by spare rows, by cause.",
			func(g *gpuView) []model.Figure { return g.RemappedRows }),
		gpuFigures("gpu_retired_pages", gauge, "cause", "Pages of GPU memory that were taken out of use, by cause.",
			func(g *gpuView) []model.Figure { return g.RetiredPages }),
		xid("gpu_xid_errors_total", counter, "Times that the NVIDIA driver has reported the error (XID).",
			func(x *model.XID) model.Optional { return model.Some(float64(x.Count)) }),
		xid("gpu_xid_last_timestamp_seconds", gauge, "Unix time at which the NVIDIA driver last reported the error (XID).",
			func(x *model.XID) model.Optional { return moment(x.Last) }),
		gpuValue("gpu_last_reset_timestamp_seconds", gauge,
			"Unix time at which the sensor noticed that the NVIDIA GPU was reset, or its driver loaded again.",
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

// unreadable reports whether a GPU is lost, stuck, unreadable or blocked: its driver then reports no values, or few.
func unreadable(g *model.GPU) bool {
	return g.Blocked || slices.ContainsFunc(g.Problems, func(c model.GPUCondition) bool {
		return c.Active && (c.Name == model.ProblemLost || c.Name == model.ProblemStuck || c.Name == model.ProblemUnreadable)
	})
}
