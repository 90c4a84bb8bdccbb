// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var pcieNotes = []string{
	"Physical functions only. Functions of one card share the upstream port.",
	"See [PCIe links](../docs/links.md#pcie-links) for the maximum and for absent values.",
	"`*_pcie_aer_errors_by_type_total`: `end` is `device` or `port`. The kernel's totals may differ from their sum.",
}

// pcieMetrics returns the metrics of the PCIe links of HCAs, and the PCIe errors of GPUs. gpuPCIeMetrics has the speed
// and width of GPUs, from their drivers.
func pcieMetrics() []metric {
	return []metric{
		hcaPCIe("link_transfers_per_second", "Current PCIe transfers per second and lane.",
			func(f *model.PCIFunction) model.Optional { return positive(f.Link.Speed) }),
		hcaPCIe("link_max_transfers_per_second", "Highest transfers per second that device and slot support.",
			func(f *model.PCIFunction) model.Optional { speed, _ := f.Possible(); return positive(speed) }),
		hcaPCIe("link_width_lanes", "PCIe lanes in use.",
			func(f *model.PCIFunction) model.Optional { return positive(float64(f.Link.Width)) }),
		hcaPCIe("link_max_width_lanes", "PCIe lanes that device and slot support.",
			func(f *model.PCIFunction) model.Optional { _, width := f.Possible(); return positive(float64(width)) }),
		hcaPCIe("slot_power_watts", "Power limit of the device's PCIe slot.", slotPower),
		{
			name: "gpu_pcie_slot_power_watts", typ: gauge, gpu: true, help: "Power limit of the GPU's PCIe slot.",
			emit: eachGPUFunction(func(b *exposition.Builder, g *gpuView, f *model.PCIFunction) { known(b, slotPower(f), g.labels) }),
		},
		{
			name: "rdma_device_pcie_aer_errors_total", typ: counter, labels: []string{"device", "severity"},
			help: "PCIe errors detected by the device and the port above it.",
			emit: each(hcaFunctionsOf, func(_ *view, b *exposition.Builder, f *hcaFunction) {
				var sums [3]model.Counter // correctable, nonfatal, fatal
				for _, e := range f.Errors(sums[:0]) {
					b.Value(float64(e.Value), f.device, e.Name)
				}
			}),
		},
		{
			name: "rdma_device_pcie_aer_errors_by_type_total", typ: counter, labels: []string{"device", "end", "severity", "type"},
			help: "PCIe errors by type and by the end that detected them.",
			emit: each(hcaFunctionsOf, func(_ *view, b *exposition.Builder, f *hcaFunction) {
				eachErrorType(f.PCIFunction, func(value float64, end, severity, name string) {
					b.Value(value, f.device, end, severity, name)
				})
			}),
		},
		{
			name: "gpu_pcie_aer_errors_total", typ: counter, gpu: true, labels: []string{"severity"},
			help: "PCIe errors detected by the GPU and the port above it.",
			emit: eachGPUFunction(func(b *exposition.Builder, g *gpuView, f *model.PCIFunction) {
				var sums [3]model.Counter // correctable, nonfatal, fatal
				for _, e := range f.Errors(sums[:0]) {
					b.Share(float64(e.Value), g.labels, e.Name)
				}
			}),
		},
		{
			name: "gpu_pcie_aer_errors_by_type_total", typ: counter, gpu: true, labels: []string{"end", "severity", "type"},
			help: "PCIe errors by type and by the end that detected them.",
			emit: eachGPUFunction(func(b *exposition.Builder, g *gpuView, f *model.PCIFunction) {
				eachErrorType(f, func(value float64, end, severity, name string) { b.Share(value, g.labels, end, severity, name) })
			}),
		},
	}
}

func hcaPCIe(name, help string, of func(*model.PCIFunction) model.Optional) metric {
	return metric{
		name: "rdma_device_pcie_" + name, typ: gauge, labels: []string{"device"}, help: help,
		emit: each(hcaFunctionsOf, func(_ *view, b *exposition.Builder, f *hcaFunction) { known(b, of(f.PCIFunction), nil, f.device) }),
	}
}

func slotPower(f *model.PCIFunction) model.Optional { return f.Upstream.SlotPower }

// positive returns a value for which 0 means unknown.
func positive(value float64) model.Optional { return model.Optional{Value: value, Known: value > 0} }

// eachErrorType calls add with each type of error that an end of the link detected.
func eachErrorType(f *model.PCIFunction, add func(value float64, end, severity, name string)) {
	for _, end := range []struct {
		name string
		aer  []model.AERErrors
	}{{"device", f.AER}, {"port", f.Upstream.AER}} {
		for _, e := range end.aer {
			for _, c := range e.Types {
				add(float64(c.Value), end.name, e.Severity, c.Name)
			}
		}
	}
}

type hcaFunction struct {
	*model.PCIFunction
	device string
}

func hcaFunctions(list []hcaFunction, facts *model.Snapshot) []hcaFunction {
	own := model.ByFunction(facts.HCAs)
	for i := range facts.PCI {
		f := &facts.PCI[i]
		if h := own[strings.ToLower(f.Address)]; h != nil {
			list = append(list, hcaFunction{f, h.Name})
		}
	}
	return list
}

// eachGPUFunction returns an emit function that calls add for each PCI function that is a whole GPU.
func eachGPUFunction(add func(b *exposition.Builder, g *gpuView, f *model.PCIFunction)) func(*view, *exposition.Builder) {
	return each(gpusOf, func(v *view, b *exposition.Builder, g *gpuView) {
		if g.Parent != "" { // a partition has the PCI address of its GPU
			return
		}
		for i := range v.facts.PCI {
			if f := &v.facts.PCI[i]; f.Address == g.PCIAddress {
				add(b, g, f)
			}
		}
	})
}
