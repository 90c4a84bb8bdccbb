// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var faultNotes = []string{
	"Counters begin at the sensor's start; times of last faults include earlier faults.",
	"`driver` is `nvidia`, `nvidia-nvswitch`, `amdgpu`, `i915`, `xe`, `mlx5_core`, `irdma`, `bnxt_en`, `bnxt_re` or `efa`. " +
		"`code` is an XID or SXid, or [a word](../docs/faults.md#codes). `severity` (`fatal`, `nonfatal`) is the driver's, for " +
		"NVLinks and NVSwitches.",
	"Number and UUID name the whole GPU. They are empty for an NVSwitch and a GPU that no source listed. `device` is empty for " +
		"a NIC function without an HCA.",
	"`container_gpu_faults_total`: shares add up to `gpu_faults_total`. Faults without a known process, or of ended workloads, " +
		"are unattributed.",
	"`gpu_fault_recovered_timestamp_seconds`: XID 154 back to `None`, or a successful reset (`amdgpu`, `xe`).",
}

// faultLabels are the labels of GPU faults. The first four distinguish the faults of a GPU, see exposition.
var faultLabels = []string{"pci_address", "gpu_instance", "code", "severity", "driver"}

func faultMetrics() []metric {
	return []metric{
		gpuFault("gpu_faults_total", counter, "GPU faults in the kernel log, by code.", faultCount),
		gpuFault("gpu_fault_last_timestamp_seconds", gauge, "Unix time of the last log of the GPU fault.", lastFault),
		gpuFault("gpu_fault_recovered_timestamp_seconds", gauge,
			"Unix time of the last log of the fault's end.",
			func(t *model.FaultTotal) model.Optional { return moment(t.Recovered) }),
		{
			name: "container_gpu_faults_total", typ: counter, owned: true, gpu: true, labels: faultLabels, detail: []string{"code"},
			help: "GPU faults that processes of the workload caused, by code.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.FaultShares {
					s := &v.shares.FaultShares[i]
					b.Since(s.Since).Share(float64(s.Count), b.GPU(v.owners[s.Owner], s.GPU, s.UUID),
						s.PCIAddress, s.GPUInstance, s.Code, string(s.Severity), string(s.Driver))
				}
			},
		},
		hcaFault("rdma_faults_total", counter, "HCA faults in the kernel log, by code.", faultCount),
		hcaFault("rdma_fault_last_timestamp_seconds", gauge, "Unix time of the last log of the HCA fault.", lastFault),
	}
}

func faultCount(t *model.FaultTotal) model.Optional { return model.Some(float64(t.Count)) }

func lastFault(t *model.FaultTotal) model.Optional { return moment(t.Last) }

func faultTotalsOf(v *view) []attribution.FaultTotal { return v.shares.FaultTotals }

func gpuFault(name string, typ dto.MetricType, help string, of func(*model.FaultTotal) model.Optional) metric {
	return metric{
		name: name, typ: typ, gpu: true, labels: faultLabels, help: help,
		emit: each(faultTotalsOf, func(_ *view, b *exposition.Builder, t *attribution.FaultTotal) {
			if !t.Driver.OfHCA() {
				known(b, of(t.FaultTotal), b.GPU(nil, t.GPU, t.UUID), t.PCIAddress, t.GPUInstance, t.Code, string(t.Severity),
					string(t.Driver))
			}
		}),
	}
}

func hcaFault(name string, typ dto.MetricType, help string, of func(*model.FaultTotal) model.Optional) metric {
	return metric{
		name: name, typ: typ, labels: []string{"pci_address", "code", "driver", "device"}, help: help,
		emit: each(faultTotalsOf, func(_ *view, b *exposition.Builder, t *attribution.FaultTotal) {
			if t.Driver.OfHCA() {
				known(b, of(t.FaultTotal), nil, t.PCIAddress, t.Code, string(t.Driver), t.HCA)
			}
		}),
	}
}
