// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var fabricPortLabels = []string{"guid", "port"}

// laneRates lists the bit rates of a lane, in 1e9 bits per second: raw on the wire, and data without the encoding. The
// values are infiniband_exporter's, which ignores the error correction of HDR and later; the values of XDR differ.
var laneRates = map[string]struct{ raw, data float64 }{
	"SDR": {2.5, 2}, "DDR": {5, 4}, "QDR": {10, 8}, "FDR10": {10.3125, 10}, "FDR": {14.0625, 13.64},
	"EDR": {25.78125, 25}, "HDR": {50, 50}, "NDR": {100, 100}, "XDR": {200, 200},
}

type fabricView struct {
	*model.Fabric // nil: not collected
	nodes         map[string]*model.FabricNode
	ports         []fabricPort
	counters      map[string]*columns // of the ports, by the kind of the node
}

type fabricPort struct {
	*model.FabricPort
	node   *model.FabricNode
	number string
	labels *exposition.LabelSet // guid, port
}

// noFabricErrors are error counters of 0 for an adapter's port. The tools leave out counters that are 0, but a series
// that begins with its first error has no increase. If the tools report the counter too, their series comes first and
// counts.
var noFabricErrors = func() (zeros []model.Counter) {
	for _, c := range fabricErrors {
		if c.counter != "QP1Dropped" { // the tools never report it for adapters
			zeros = append(zeros, model.Counter{Name: c.counter})
		}
	}
	return zeros
}()

func (v *fabricView) fill(f *model.Fabric, b *exposition.Builder) {
	v.Fabric, v.ports = f, v.ports[:0]
	if f == nil {
		v.nodes, v.counters = nil, nil
		return
	}
	v.nodes = make(map[string]*model.FabricNode, len(f.Nodes))
	if v.counters == nil {
		v.counters = map[string]*columns{model.FabricSwitch: {}, model.FabricCA: {}}
	}
	for _, c := range v.counters {
		c.begin()
	}
	schema := b.Schema(fabricPortLabels)
	for i := range f.Nodes {
		n := &f.Nodes[i]
		v.nodes[n.GUID] = n
		for j := range n.Ports {
			p := &n.Ports[j]
			number := strconv.Itoa(p.Number)
			set := b.Labels(schema, nil, n.GUID, number)
			v.ports = append(v.ports, fabricPort{p, n, number, set})
			if c := v.counters[n.Kind]; c != nil {
				c.add(set, p.Counters)
				if n.Kind == model.FabricCA && p.Counters != nil {
					c.add(set, noFabricErrors)
				}
			}
		}
	}
	for _, c := range v.counters {
		c.end()
	}
}

var fabricNotes = []string{
	"Names follow infiniband_exporter if it has the metric. The word in brackets is perfquery's counter. " +
		"`infiniband_hca_port_*`: as of switches.",
	"`infiniband_switch_up`: 0: counters are from the last successful query.",
	"`infiniband_switch_port_degraded`: `reason` is `width` or `speed`, compared with both ends' capability and the expected " +
		"value. Absent if these are unknown.",
	"`infiniband_switch_uplink_info`, `infiniband_hca_uplink_info`: `uplink_type` is `SW`, `CA` or `RT`.",
}

// fabricMetrics returns the metrics of the InfiniBand fabric, with infiniband_exporter's names where it has the metric.
func fabricMetrics() []metric {
	return append([]metric{
		{
			name: "infiniband_fabric_nodes", typ: gauge, labels: []string{"type"},
			help: "Nodes of the fabric, by type (switch, ca, router).",
			emit: func(v *view, b *exposition.Builder) {
				if v.fabric.Fabric == nil {
					return
				}
				count := map[string]int{}
				for i := range v.fabric.Nodes {
					count[v.fabric.Nodes[i].Kind]++
				}
				for _, k := range model.FabricKinds {
					b.Value(float64(count[k.Kind]), k.Word)
				}
			},
		},
		single("infiniband_fabric_links", gauge, "Links of the fabric that are up.",
			func(v *view) *model.Fabric { return v.fabric.Fabric },
			func(f *model.Fabric) model.Optional { return model.Some(float64(len(f.Links()))) }),
		single("infiniband_fabric_unhealthy_ports", gauge,
			"Ports with a link that the subnet manager has not made active.",
			func(v *view) *model.Fabric { return v.fabric.Fabric }, unhealthyPorts),
		single("infiniband_fabric_sm_changes_total", counter,
			"Changes of the master subnet manager's port GUID.",
			func(v *view) *model.Fabric { return v.fabric.Fabric },
			func(f *model.Fabric) model.Optional { return model.Some(float64(f.MasterChanges)) }),
		{
			name: "infiniband_fabric_sm_info", typ: gauge, labels: []string{"port_guid", "lid", "priority"},
			help: "Port GUID, LID and priority of the master subnet manager.",
			emit: func(v *view, b *exposition.Builder) {
				if f := v.fabric.Fabric; f != nil && f.Master != nil {
					b.Value(1, f.Master.GUID, strconv.FormatUint(uint64(f.Master.LID), 10), strconv.Itoa(f.Master.Priority))
				}
			},
		},
		single("infiniband_fabric_discovered_timestamp_seconds", gauge,
			"Unix time of the last reading of the topology.",
			func(v *view) *model.Fabric { return v.fabric.Fabric },
			func(f *model.Fabric) model.Optional { return moment(f.Discovered) }),
		{
			name: "infiniband_fabric_queries_total", typ: counter, labels: []string{"tool", "result"},
			help: "Runs of the fabric's tools, by result (ok, error, timeout).",
			emit: func(v *view, b *exposition.Builder) {
				if f := v.fabric.Fabric; f != nil {
					for _, q := range f.Queries {
						b.Value(float64(q.Count), q.Tool, q.Result)
					}
				}
			},
		},
	}, fabricNodeMetrics()...)
}

// unhealthyPorts counts the ports that are not active. Without any known state, the number is unknown.
func unhealthyPorts(f *model.Fabric) model.Optional {
	count, isKnown := 0, false
	for i := range f.Nodes {
		for _, p := range f.Nodes[i].Ports {
			isKnown = isKnown || p.State != ""
			if p.State != "" && p.State != "Active" {
				count++
			}
		}
	}
	if !isKnown {
		return model.Optional{}
	}
	return model.Some(float64(count))
}

// fabricNode returns a row with one value for each node of a kind that has the value.
func fabricNode(name, kind, help string, of func(*model.FabricNode) model.Optional) metric {
	return metric{
		name: name, typ: gauge, labels: []string{"guid"}, help: help,
		emit: each(fabricNodesOf, func(_ *view, b *exposition.Builder, n *model.FabricNode) {
			if n.Kind == kind {
				known(b, of(n), nil, n.GUID)
			}
		}),
	}
}

// fabricSwitchPort returns a row with one value for each switch port that has the value. Port 0 is the switch's
// management port and has no link.
func fabricSwitchPort(name, help string, of func(*model.FabricPort) model.Optional) metric {
	return metric{
		name: name, typ: gauge, labels: fabricPortLabels, help: help,
		emit: each(fabricPortsOf, func(_ *view, b *exposition.Builder, p *fabricPort) {
			if o := of(p.FabricPort); o.Known && p.node.Kind == model.FabricSwitch && p.Number != 0 {
				b.Add(p.labels, o.Value)
			}
		}),
	}
}
