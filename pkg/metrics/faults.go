// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var faultNotes = []string{
	"These families are read from the kernel log. They count from the start of the sensor; the times of the last faults include " +
		"those from before the start. A fault that recurs in the log under several lines counts once.",
	"`driver` is `nvidia`, `nvidia-nvswitch`, `amdgpu`, `i915`, `xe`, `mlx5_core`, `irdma`, `bnxt_en`, `bnxt_re` or `efa`. `code` is the " +
		"number of an XID or SXid, and of other drivers a word from [a list](../docs/faults.md#codes). `severity` is `fatal` or " +
		"`nonfatal` for errors of NVLinks and NVSwitches of which the driver says so.",
	"The number and the UUID are those of the whole GPU, and empty for an NVSwitch and for a GPU that no source has listed. A GPU " +
		"instance is that of a MIG slice, if the driver reports it. `device` is empty for a function of a NIC without an HCA.",
	"`container_gpu_faults_total`: faults of the processes of the workload. The shares of a GPU add up to `gpu_faults_total`; faults " +
		"without a known process, and those of workloads that ended, are in the unattributed share.",
	"`gpu_fault_recovered_timestamp_seconds`: XID 154 back to `None`, or a reset that succeeded (`amdgpu`, `xe`).",
	"`gpu_xid_errors_total` counts the XIDs that NVML reports, `gpu_faults_total` those in the kernel log: an XID counts once in each.",
}

// faultLabels are the labels of faults of GPUs. The first four distinguish the faults of a GPU, see exposition.
var faultLabels = []string{"pci_address", "gpu_instance", "code", "severity", "driver"}

// faultMetrics returns the metrics of faults that drivers logged.
func faultMetrics() []metric {
	return []metric{
		gpuFault("gpu_faults_total", counter, "Faults of the GPU that its driver has logged in the kernel log, by code.", faultCount),
		gpuFault("gpu_fault_last_timestamp_seconds", gauge, "Unix time at which the driver of the GPU last logged the fault.", lastFault),
		gpuFault("gpu_fault_recovered_timestamp_seconds", gauge,
			"Unix time at which the driver of the GPU last logged the end of the fault.",
			func(t *model.FaultTotal) model.Optional { return moment(t.Recovered) }),
		{
			name: "container_gpu_faults_total", typ: counter, owned: true, gpu: true, labels: faultLabels, detail: []string{"code"},
			help: "Faults of the GPU that processes of the workload have caused, by code.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.FaultShares {
					s := &v.shares.FaultShares[i]
					b.Since(s.Since).Share(float64(s.Count), b.GPU(v.owners[s.Owner], s.GPU, s.UUID),
						s.PCIAddress, s.GPUInstance, s.Code, string(s.Severity), string(s.Driver))
				}
			},
		},
		hcaFault("rdma_faults_total", counter, "Faults of the HCA that its driver has logged in the kernel log, by code.", faultCount),
		hcaFault("rdma_fault_last_timestamp_seconds", gauge, "Unix time at which the driver of the HCA last logged the fault.", lastFault),
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
