// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/format"
)

// gpuUse is the GPU usage of workloads.
type gpuUse struct {
	memory, processes map[key]float64
	engines           map[key]map[string]float64
	allocated         map[key]bool
	models            map[string]string // by the name of the GPU
}

// parseGPUs returns the GPU usage of workloads. A GPU is named by vendor and number.
func parseGPUs(families map[string]*dto.MetricFamily) gpuUse {
	names, models := map[string]string{}, map[string]string{}
	each(families, "gpu_info", func(_ key, label map[string]string, _ *dto.Metric) {
		name := label["vendor"] + label["gpu_id"]
		names[label["uuid"]], models[name] = name, label["name"]
	})
	u := gpuUse{map[key]float64{}, map[key]float64{}, map[key]map[string]float64{}, map[key]bool{}, models}
	eachGPU := func(family string, do func(k key, label map[string]string, v float64)) {
		each(families, family, func(k key, label map[string]string, m *dto.Metric) {
			k.device = names[label["uuid"]]
			do(k, label, value(m))
		})
	}
	eachGPU("container_gpu_memory_used_bytes", func(k key, _ map[string]string, v float64) { u.memory[k] += v })
	eachGPU("container_gpu_processes", func(k key, _ map[string]string, v float64) { u.processes[k] += v })
	eachGPU("container_gpu_allocated", func(k key, _ map[string]string, v float64) { u.allocated[k] = v == 1 })
	eachGPU("container_gpu_utilization_ratio", func(k key, label map[string]string, v float64) {
		if u.engines[k] == nil {
			u.engines[k] = map[string]float64{}
		}
		u.engines[k][label["engine"]] += v
	})
	return u
}

// rows returns the uses of GPUs.
func (u gpuUse) rows() []row {
	keys := map[key]bool{}
	addKeys(keys, u.processes)
	addKeys(keys, u.allocated)
	out := make([]row, 0, len(keys))
	for _, k := range slices.SortedFunc(maps.Keys(keys), byName) {
		allocated := format.None
		if u.allocated[k] {
			allocated = "yes"
		}
		out = append(out, row{key: k, kind: kindGPU, cells: map[string]cell{
			defaultSort: words(format.Owner(k.workload)),
			"device":    words(format.Escape(k.device)),
			"processes": figureOf(u.processes, k, format.Count),
			"memory":    figureOf(u.memory, k, format.Size),
			"busy":      busiest(u.engines[k]),
			"allocated": words(allocated),
			"model":     u.model(k.device),
		}})
	}
	return out
}

// model returns the cell with the model of a GPU.
func (u gpuUse) model(gpu string) cell {
	if name := strings.TrimPrefix(u.models[gpu], "NVIDIA "); name != "" {
		return words(format.Escape(name))
	}
	return cell{text: format.None}
}

func busiest(engines map[string]float64) cell {
	most := ""
	for _, name := range slices.Sorted(maps.Keys(engines)) {
		if most == "" || engines[name] > engines[most] {
			most = name
		}
	}
	if most == "" {
		return cell{text: format.None}
	}
	if engines[most] == 0 {
		return cell{"0%", 0, true}
	}
	return cell{fmt.Sprintf("%s %.0f%%", format.Escape(most), 100*engines[most]), engines[most], true}
}
