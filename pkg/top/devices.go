// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
)

// gpuDeviceColumns are the columns of GPUs. STATE has their problems.
var gpuDeviceColumns = []column{
	{name: "DEVICE", key: defaultSort, text: true},
	{name: "STATE", key: "state", text: true},
	{name: "BUSY", key: "busy"},
	{name: "MEMORY", key: "memory"},
	{name: "OF", key: "total"},
	{name: "CELSIUS", key: "celsius"},
	{name: "WORKLOADS", key: "workloads"},
	{name: "MODEL", key: "model", text: true},
}

// portColumns are the columns of the ports of HCAs. BUSY is the larger rate of bytes as a part of the rate of the link (on a bond, of its
// active legs). ERRORS counts since the driver was loaded.
var portColumns = []column{
	{name: "DEVICE", key: defaultSort, text: true},
	{name: "STATE", key: "state", text: true},
	{name: "BUSY", key: "busy"},
	{name: "RATE", key: "rate"},
	{name: "TX/S", key: "tx"},
	{name: "RX/S", key: "rx"},
	{name: "ERRORS", key: "errors"},
	{name: "WORKLOADS", key: "workloads"},
}

// devices returns the tables of GPUs and of ports of HCAs.
func devices(r *reading) []*sheet {
	gpus, ports := &sheet{kind: overview.GPU, columns: gpuDeviceColumns}, &sheet{kind: overview.HCA, columns: portColumns}
	for i := range r.devices {
		d := &r.devices[i]
		if d.Kind == overview.GPU {
			gpus.rows = append(gpus.rows, gpuRow(d))
		}
		for j := range d.Ports {
			ports.rows = append(ports.rows, portRow(d, &d.Ports[j]))
		}
	}
	return []*sheet{gpus, ports}
}

func portRow(d *overview.Device, p *overview.Port) row {
	name := fmt.Sprint(d.Device, "/", p.Number)
	var rate, busy cell
	if p.RateBits > 0 {
		rate = figure(p.RateBits/8, func(n float64) string { return fmt.Sprintf("%g Gbit/s", n*8/1e9) })
	}
	tx, rx := rateOf(p.Transmit), rateOf(p.Receive)
	if rate.known && (tx.known || rx.known) {
		busy = figure(max(tx.value, rx.value)/rate.value, format.Percent)
	}
	return row{device: name, cells: map[string]cell{
		defaultSort: words(format.Escape(name)),
		"state":     words(format.Escape(cmp.Or(strings.ToLower(p.State), "unknown"))),
		"busy":      busy,
		"rate":      rate,
		"tx":        tx,
		"rx":        rx,
		"errors":    known(p.Errors, format.Count),
		"workloads": known(d.Workloads, format.Count),
	}}
}

func gpuRow(d *overview.Device) row {
	name, state := d.Vendor+d.GPU, "healthy"
	switch {
	case d.Problems == nil:
		state = "unknown"
	case len(d.Problems) > 0:
		state = strings.Join(slices.Sorted(slices.Values(d.Problems)), ",")
	}
	return row{device: name, cells: map[string]cell{
		defaultSort: words(format.Escape(name)),
		"state":     words(format.Escape(state)),
		"busy":      known(d.Utilization, format.Percent),
		"memory":    known(d.Memory, format.Size),
		"total":     known(d.MemoryTotal, format.Size),
		"celsius":   known(d.Temperature, format.Count),
		"workloads": known(d.Workloads, format.Count),
		"model":     modelOf(d),
	}}
}
