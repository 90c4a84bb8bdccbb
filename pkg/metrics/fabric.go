// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var fabricPortLabels = []string{"guid", "port"}

// laneRates are the bits per second of a lane, in units of 1e9: those on the wire, and
// those that are left of them for data. They are the figures of infiniband_exporter,
// which does not count the error correction of HDR and later; only of XDR it has others.
var laneRates = map[string]struct{ raw, data float64 }{
	"SDR": {2.5, 2}, "DDR": {5, 4}, "QDR": {10, 8}, "FDR10": {10.3125, 10}, "FDR": {14.0625, 13.64},
	"EDR": {25.78125, 25}, "HDR": {50, 50}, "NDR": {100, 100}, "XDR": {200, 200},
}

// fabricView is the fabric as the rows of the table want it.
type fabricView struct {
	*model.Fabric // nil: not collected
	nodes         map[string]*model.FabricNode
	ports         []fabricPort
	counters      map[string]*columns // of the ports, by the kind of their nodes
}

// fabricPort is a port with its node.
type fabricPort struct {
	*model.FabricPort
	node   *model.FabricNode
	number string
	labels *exposition.LabelSet // guid, port
}

// noFabricErrors are the errors of an adapter's port as it has none. The tools leave out
// what is zero, but a series that begins with its first error has no increase. Of two
// series that are the same the first is believed, which is what the tools told.
var noFabricErrors = func() (zeros []model.Counter) {
	for _, c := range fabricErrors {
		if c.counter != "QP1Dropped" { // which they never tell of adapters
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

// fabricMetrics are those of the whole fabric. Those of its switches and adapters have
// the names of infiniband_exporter (see fabricNodeMetrics) where it has them.
func fabricMetrics() []metric {
	return append([]metric{
		{
			name: "infiniband_fabric_nodes", typ: gauge, labels: []string{"type"},
			help: "Nodes of the InfiniBand fabric, by type: switch, ca (channel adapter), router.",
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
		{
			name: "infiniband_fabric_links", typ: gauge, help: "Links of the InfiniBand fabric that are up.",
			emit: func(v *view, b *exposition.Builder) {
				if v.fabric.Fabric != nil {
					b.Value(float64(len(v.fabric.Links())))
				}
			},
		},
		{
			name: "infiniband_fabric_discovered_timestamp_seconds", typ: gauge,
			help: "When the topology of the InfiniBand fabric was read last, in seconds since 1970.",
			emit: func(v *view, b *exposition.Builder) {
				if f := v.fabric.Fabric; f != nil && !f.Discovered.IsZero() {
					b.Value(seconds(f.Discovered))
				}
			},
		},
		{
			name: "infiniband_fabric_queries_total", typ: counter, labels: []string{"tool", "result"},
			help: "Runs of the tools that read the InfiniBand fabric, by how they ended: ok, error, timeout.",
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

// fabricNode is a row with a figure for each node of a kind that has it.
func fabricNode(name, kind, help string, of func(*model.FabricNode) model.Optional) metric {
	return metric{
		name: name, typ: gauge, labels: []string{"guid"}, help: help,
		emit: func(v *view, b *exposition.Builder) {
			if v.fabric.Fabric == nil {
				return
			}
			for i := range v.fabric.Nodes {
				n := &v.fabric.Nodes[i]
				if o := of(n); n.Kind == kind && o.Known {
					b.Value(o.Value, n.GUID)
				}
			}
		},
	}
}

// fabricSwitchPort is a row with a figure for each port of a switch that has it. Port
// 0, to which the switch answers itself, has no link.
func fabricSwitchPort(name, help string, of func(*model.FabricPort) model.Optional) metric {
	return metric{
		name: name, typ: gauge, labels: fabricPortLabels, help: help,
		emit: func(v *view, b *exposition.Builder) {
			for i := range v.fabric.ports {
				p := &v.fabric.ports[i]
				if p.node.Kind != model.FabricSwitch || p.Number == 0 {
					continue
				}
				if o := of(p.FabricPort); o.Known {
					b.Add(p.labels, o.Value)
				}
			}
		},
	}
}
