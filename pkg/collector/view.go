// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// view is what the rows of the metric table read: a refresh, turned so that a
// row finds its figures in one place.
type view struct {
	facts  *model.Snapshot
	shares *attribution.Attribution
	states []SourceState
	build  []string

	owners []*owner // of shares.Owners
	gpus   []gpuView
	users  []*owner // of shares.GPUs: the owner with the GPU
	// dcgmGPUs are nil until somebody asks for them.
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
	labels *labelSet // device, port
}

// gpuView is a GPU with the figures that its shares add up to.
type gpuView struct {
	*model.GPU
	figures *attribution.GPUFigures
	labels  *owner // gpuLabels
}

// columns are the counters by name: one name, its figure for each port.
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
	labels *labelSet // device, port
	value  uint64
}

func (s sample) device() string { return s.labels.values[0] }
func (s sample) port() string   { return s.labels.values[1] }

func (c *columns) begin() {
	if c.byName == nil {
		c.byName = map[string]*column{}
	}
	c.round++
	c.names = c.names[:0]
}

func (c *columns) add(set *labelSet, counters []model.Counter) {
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

// of is empty for columns that are nil.
func (c *columns) of(name string) []sample {
	if c == nil {
		return nil
	}
	if col := c.byName[name]; col != nil {
		return col.samples
	}
	return nil
}

func (v *view) fill(r *refresh, b *builder) {
	v.facts, v.shares, v.states, v.build = &r.facts, &r.shares, r.states, b.build
	v.owners = v.owners[:0]
	for _, o := range r.shares.Owners {
		v.owners = append(v.owners, b.labels.owner(o))
	}
	v.gpus = v.gpus[:0]
	for i := range r.shares.GPUFigures {
		f := &r.shares.GPUFigures[i]
		v.gpus = append(v.gpus, gpuView{
			GPU: f.GPU, figures: f, labels: b.labels.gpu(nil, f.GPU.ID, f.GPU.UUID),
		})
	}
	v.users, v.dcgmGPUs = v.users[:0], nil
	for i := range r.shares.GPUs {
		s := &r.shares.GPUs[i]
		v.users = append(v.users, b.labels.gpu(v.owners[s.Owner], s.GPU.ID, s.GPU.UUID))
	}
	v.ports = v.ports[:0]
	v.pma.begin()
	v.hw.begin()
	devicePort := b.schemaFor(devicePortLabels)
	for i := range r.facts.HCAs {
		hca := &r.facts.HCAs[i]
		if len(hca.HWCounters) > 0 {
			v.hw.add(b.labels.get(devicePort, nil, hca.Name, ""), hca.HWCounters)
		}
		for j := range hca.Ports {
			p := &hca.Ports[j]
			number := strconv.Itoa(p.Number)
			set := b.labels.get(devicePort, nil, hca.Name, number)
			v.ports = append(v.ports, portView{Port: p, hca: hca, number: number, labels: set})
			v.pma.add(set, p.Counters)
			v.hw.add(set, p.HWCounters)
		}
	}
	v.pma.end()
	v.hw.end()
	v.fabric.fill(r.facts.Fabric, b)
}
