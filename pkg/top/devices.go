// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/format"
)

// deviceColumns are those of the view of devices: ports of HCAs, and GPUs. BUSY is the larger rate of a port, as a part of that of its
// link (on a bond, of its active legs), or the utilization of a GPU. ERRORS of a port counts since the driver was loaded; of a GPU it has
// its problems.
var deviceColumns = []column{
	{name: "DEVICE", key: defaultSort, text: true},
	{name: "STATE", key: "state", text: true},
	{name: "BUSY", key: "busy"},
	{name: "RATE", key: "rate", kind: kindHCA},
	{name: "TX/S", key: "tx", kind: kindHCA},
	{name: "RX/S", key: "rx", kind: kindHCA},
	{name: "ERRORS", key: "errors", kind: kindHCA},
	{name: "MEMORY", key: "memory", kind: kindGPU},
	{name: "OF", key: "total", kind: kindGPU},
	{name: "CELSIUS", key: "celsius", kind: kindGPU},
	{name: "WORKLOADS", key: "workloads"},
	{name: "MODEL", key: "model", kind: kindGPU, text: true},
}

// port is a port of an HCA.
type port struct{ device, number string }

// deviceSet is the figures of all devices of a sample.
type deviceSet struct {
	states                        map[port]string
	rates                         map[port]float64 // bytes per second
	transmitted, received, errors map[port]float64

	gpus                                map[string]string // names by UUID
	problems                            map[string][]string
	busy, memory, total, celsius, known map[string]float64 // by UUID

	workloads map[string]map[key]bool // by HCA, or UUID
}

// parseDevices returns the figures of devices.
func parseDevices(families map[string]*dto.MetricFamily) deviceSet {
	d := deviceSet{
		states: map[port]string{}, rates: map[port]float64{}, gpus: map[string]string{}, problems: map[string][]string{},
		transmitted: map[port]float64{}, received: map[port]float64{}, errors: map[port]float64{},
		busy: map[string]float64{}, memory: map[string]float64{}, total: map[string]float64{}, celsius: map[string]float64{},
		known: map[string]float64{}, workloads: map[string]map[key]bool{},
	}
	// While the kernel does not answer for its state, a port has no series of it.
	each(families, "infiniband_port_info", func(_ key, label map[string]string, _ *dto.Metric) {
		d.states[port{label["device"], label["port"]}] = "unknown"
	})
	each(families, "infiniband_port_state", func(_ key, label map[string]string, m *dto.Metric) {
		if value(m) == 1 {
			d.states[port{label["device"], label["port"]}] = label["state"]
		}
	})
	for family, to := range map[string]map[port]float64{
		"infiniband_port_rate_bytes_per_second": d.rates, "rdma_port_transmit_bytes_total": d.transmitted,
		"rdma_port_receive_bytes_total": d.received, "infiniband_port_errors_total": d.errors,
		"rdma_port_transmit_errors_total": d.errors, "rdma_port_receive_errors_total": d.errors,
		"rdma_port_transmit_discards_total": d.errors, "rdma_port_receive_discards_total": d.errors,
	} {
		each(families, family, func(_ key, label map[string]string, m *dto.Metric) {
			to[port{label["device"], label["port"]}] += value(m)
		})
	}
	each(families, "rdma_port_bond_rate_bytes_per_second", func(_ key, label map[string]string, m *dto.Metric) {
		d.rates[port{label["device"], label["port"]}] = value(m)
	})
	each(families, "gpu_info", func(_ key, label map[string]string, _ *dto.Metric) {
		d.gpus[label["uuid"]] = label["vendor"] + label["gpu_id"]
	})
	each(families, "gpu_problem", func(_ key, label map[string]string, m *dto.Metric) {
		if value(m) == 1 {
			d.problems[label["uuid"]] = append(d.problems[label["uuid"]], format.Escape(label["problem"]))
		}
	})
	for family, to := range map[string]map[string]float64{
		"gpu_utilization": d.busy, "gpu_memory_used_bytes": d.memory, "gpu_memory_total_bytes": d.total, "gpu_health": d.known,
	} {
		each(families, family, func(_ key, label map[string]string, m *dto.Metric) { to[label["uuid"]] = value(m) })
	}
	for uuid := range d.busy { // in percent
		d.busy[uuid] /= 100
	}
	each(families, "gpu_temperature_celsius", func(_ key, label map[string]string, m *dto.Metric) {
		d.celsius[label["uuid"]] = max(d.celsius[label["uuid"]], value(m))
	})
	use := func(device string, k key) {
		if k.workload == "" {
			return
		}
		if d.workloads[device] == nil {
			d.workloads[device] = map[key]bool{}
		}
		d.workloads[device][key{workload: k.workload, containerID: k.containerID}] = true
	}
	each(families, "container_rdma_resources", func(k key, _ map[string]string, m *dto.Metric) {
		if value(m) > 0 {
			use(k.device, k)
		}
	})
	each(families, "container_gpu_processes", func(k key, label map[string]string, m *dto.Metric) {
		if value(m) > 0 {
			use(label["uuid"], k)
		}
	})
	return d
}

// devices returns the view of devices of now, with the growth since last, which may be nil.
func devices(last, now *sample) *sheet {
	s := &sheet{columns: deviceColumns}
	ports := slices.SortedFunc(maps.Keys(now.devices.states), func(a, b port) int {
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.number, b.number))
	})
	for _, p := range ports {
		s.rows = append(s.rows, now.portRow(last, p))
	}
	uuids := slices.SortedFunc(maps.Keys(now.devices.gpus), func(a, b string) int {
		return cmp.Or(cmp.Compare(now.devices.gpus[a], now.devices.gpus[b]), cmp.Compare(a, b))
	})
	for _, uuid := range uuids {
		s.rows = append(s.rows, now.gpuRow(uuid))
	}
	return s
}

func (s *sample) portRow(last *sample, p port) row {
	d := &s.devices
	name := p.device + "/" + p.number
	cells := map[string]cell{
		defaultSort: words(format.Escape(name)),
		"state":     words(format.Escape(d.states[p])),
		"rate":      figureOf(d.rates, p, func(n float64) string { return fmt.Sprintf("%g Gbit/s", n*8/1e9) }),
		"errors":    figureOf(d.errors, p, format.Count),
		"workloads": figure(float64(len(d.workloads[p.device])), format.Count),
	}
	if last != nil {
		grown := func(of func(*deviceSet) map[port]float64) (float64, bool) {
			n, ok := of(d)[p]
			return growth(of(&last.devices)[p], n) / s.at.Sub(last.at).Seconds(), ok
		}
		tx, transmits := grown(func(d *deviceSet) map[port]float64 { return d.transmitted })
		rx, receives := grown(func(d *deviceSet) map[port]float64 { return d.received })
		if transmits {
			cells["tx"] = figure(tx, format.Size)
		}
		if receives {
			cells["rx"] = figure(rx, format.Size)
		}
		if d.rates[p] > 0 && (transmits || receives) {
			cells["busy"] = figure(max(tx, rx)/d.rates[p], format.Percent)
		}
	}
	return row{key: key{device: name}, kind: kindHCA, cells: cells}
}

func (s *sample) gpuRow(uuid string) row {
	d := &s.devices
	name, state := d.gpus[uuid], "unknown"
	if d.known[uuid] == 1 {
		state = "healthy"
	} else if len(d.problems[uuid]) > 0 {
		state = strings.Join(slices.Sorted(slices.Values(d.problems[uuid])), ",")
	}
	return row{key: key{device: name}, kind: kindGPU, cells: map[string]cell{
		defaultSort: words(format.Escape(name)),
		"state":     words(state),
		"busy":      figureOf(d.busy, uuid, format.Percent),
		"memory":    figureOf(d.memory, uuid, format.Size),
		"total":     figureOf(d.total, uuid, format.Size),
		"celsius":   figureOf(d.celsius, uuid, format.Count),
		"workloads": figure(float64(len(d.workloads[uuid])), format.Count),
		"model":     s.gpus.model(name),
	}}
}
