// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// view is a refresh, arranged for the rows of the metric table.
type view struct {
	facts  *model.Snapshot
	shares *attribution.Attribution
	states []model.SourceState
	build  []string // values of accelscope_build_info
	node   string   // name of the node

	owners []*exposition.OwnerLabels // of shares.Owners
	gpus   []gpuView
	users  []*exposition.OwnerLabels // of shares.GPUs: the owner with the GPU
	// dcgmGPUs is nil until it is first used.
	dcgmGPUs []dcgmGPU
	ports    []portView
	pma      columns // sysfs counters/
	hw       columns // hw_counters of ports, and of devices as port ""
	fabric   fabricView
}

// portView is a port with its device.
type portView struct {
	*model.Port
	hca    *model.HCA
	number string
	labels *exposition.LabelSet // device, port
}

// gpuView is a GPU with the totals that its shares add up to.
type gpuView struct {
	*model.GPU
	figures *attribution.GPUFigures
	labels  *exposition.OwnerLabels // exposition.GPULabels
}

// columns holds counters by name, with one value per port.
type columns struct {
	round  uint64
	byName map[string]*column
	names  []string // of this refresh, sorted
}

type column struct {
	round   uint64
	samples []sample
}

// sample is one counter of one port.
type sample struct {
	labels *exposition.LabelSet // device, port
	value  uint64
}

func (s sample) device() string { return s.labels.Value("device") }
func (s sample) port() string   { return s.labels.Value("port") }

func (c *columns) begin() {
	if c.byName == nil {
		c.byName = map[string]*column{}
	}
	c.round++
	c.names = c.names[:0]
}

func (c *columns) add(set *exposition.LabelSet, counters []model.Counter) {
	for _, n := range counters {
		if n.Name == "" {
			continue
		}
		col := c.byName[n.Name]
		if col == nil {
			col = &column{}
			c.byName[n.Name] = col
		}
		if col.round != c.round {
			col.round = c.round
			col.samples = col.samples[:0]
			c.names = append(c.names, n.Name)
		}
		col.samples = append(col.samples, sample{set, n.Value})
	}
}

func (c *columns) end() {
	slices.Sort(c.names)
	for name, col := range c.byName {
		if col.round != c.round {
			delete(c.byName, name)
		}
	}
}

// of returns the samples of a counter; it is empty for columns that are nil.
func (c *columns) of(name string) []sample {
	if c == nil {
		return nil
	}
	if col := c.byName[name]; col != nil {
		return col.samples
	}
	return nil
}

func (v *view) fill(r *engine.Refresh, b *exposition.Builder) {
	v.facts, v.shares, v.states = &r.Facts, &r.Shares, r.States
	v.owners = v.owners[:0]
	for _, o := range r.Shares.Owners {
		v.owners = append(v.owners, b.Owner(o))
	}
	v.gpus = v.gpus[:0]
	for i := range r.Shares.GPUFigures {
		f := &r.Shares.GPUFigures[i]
		v.gpus = append(v.gpus, gpuView{
			GPU: f.GPU, figures: f, labels: b.GPU(nil, f.GPU.ID, f.GPU.UUID),
		})
	}
	v.users, v.dcgmGPUs = v.users[:0], nil
	for i := range r.Shares.GPUs {
		s := &r.Shares.GPUs[i]
		v.users = append(v.users, b.GPU(v.owners[s.Owner], s.GPU.ID, s.GPU.UUID))
	}
	v.ports = v.ports[:0]
	v.pma.begin()
	v.hw.begin()
	devicePort := b.Schema(devicePortLabels)
	for i := range r.Facts.HCAs {
		hca := &r.Facts.HCAs[i]
		if len(hca.HWCounters) > 0 {
			v.hw.add(b.Labels(devicePort, nil, hca.Name, ""), hca.HWCounters)
		}
		for j := range hca.Ports {
			p := &hca.Ports[j]
			number := strconv.Itoa(p.Number)
			set := b.Labels(devicePort, nil, hca.Name, number)
			v.ports = append(v.ports, portView{Port: p, hca: hca, number: number, labels: set})
			v.pma.add(set, p.Counters)
			v.hw.add(set, p.HWCounters)
		}
	}
	v.pma.end()
	v.hw.end()
	v.fabric.fill(r.Facts.Fabric, b)
}
