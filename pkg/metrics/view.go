// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// view is a refresh, arranged for the rows of the metric table.
type view struct {
	facts  *model.Snapshot
	shares *attribution.Attribution
	// placement is computed by the verdicts if the node has GPUs and HCAs.
	placement *placement.Refresh
	states    []model.SourceState
	panics    uint64
	dropped   map[engine.Dropped]uint64
	build     []string // values of accelscope_build_info
	node      string   // name of the node
	allStates bool     // of sources, devices and hooks

	scope        scope
	owners       []*exposition.OwnerLabels // of shares.Owners
	gpus         []gpuView
	users        []*exposition.OwnerLabels // of shares.GPUs: the owner with the GPU
	dcgmGPUs     []dcgmGPU
	ports        []portView
	hcaFunctions []hcaFunction
	pma          columns // sysfs counters/
	hw           columns // hw_counters of ports, and of devices as port ""
	ext          columns // sysfs counters_ext/
	// shared has the counters with one name for all drivers.
	shared            columns
	counters          []model.SharedCounter // buffer
	fabric            fabricView
	excludesInterface func(name string) bool
	netDevs           []model.NetDev
	netClasses        []model.NetClass
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

// columns holds the values of a pattern, or of the counters of ports, by name. It is kept between refreshes to avoid
// allocations.
type columns struct {
	byName map[string]*[]sample
	names  []string // of this refresh, sorted
}

// sample is the value of one port or sensor.
type sample struct {
	labels *exposition.LabelSet // device, port; or chip, sensor
	value  float64
}

func (s sample) device() string { return s.labels.Value("device") }
func (s sample) port() string   { return s.labels.Value("port") }

func (c *columns) begin() {
	if c.byName == nil {
		c.byName = map[string]*[]sample{}
	}
	for _, samples := range c.byName {
		*samples = (*samples)[:0]
	}
}

func (c *columns) add(set *exposition.LabelSet, counters []model.Counter) {
	for _, n := range counters {
		c.addValue(n.Name, set, float64(n.Value))
	}
}

func (c *columns) addShared(set *exposition.LabelSet, counters []model.SharedCounter) {
	for i := range counters {
		c.addValue(counters[i].Name, set, float64(counters[i].Value))
	}
}

// addValue adds a value. A value without a name is left out.
func (c *columns) addValue(name string, set *exposition.LabelSet, value float64) {
	if name == "" {
		return
	}
	samples := c.byName[name]
	if samples == nil {
		samples = new([]sample)
		c.byName[name] = samples
	}
	*samples = append(*samples, sample{set, value})
}

func (c *columns) end() {
	maps.DeleteFunc(c.byName, func(_ string, samples *[]sample) bool { return len(*samples) == 0 })
	c.names = slices.AppendSeq(c.names[:0], maps.Keys(c.byName))
	slices.Sort(c.names)
}

// of returns the samples of a counter. c may be nil.
func (c *columns) of(name string) []sample {
	if c == nil {
		return nil
	}
	if samples := c.byName[name]; samples != nil {
		return *samples
	}
	return nil
}

// emit adds the families of a pattern, one for each name.
func (c *columns) emit(b *exposition.Builder) {
	for _, name := range c.names {
		if b.OpenPart(name) {
			for _, s := range c.of(name) {
				b.Add(s.labels, s.value)
			}
		}
	}
}

func (v *view) fill(r *engine.Refresh, b *exposition.Builder) {
	v.facts, v.shares, v.states, v.panics, v.dropped = &r.Facts, &r.Shares, r.States, r.Panics, r.Dropped
	v.placement = r.Placement
	v.scope.fill(&r.Shares)
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
	v.ext.begin()
	v.shared.begin()
	devicePort := b.Schema(devicePortLabels)
	for i := range r.Facts.HCAs {
		hca := &r.Facts.HCAs[i]
		if len(hca.HWCounters) > 0 {
			set := b.Labels(devicePort, nil, hca.Name, "")
			v.hw.add(set, hca.HWCounters)
			v.shared.addShared(set, hca.DeviceCounters())
		}
		for j := range hca.Ports {
			p := &hca.Ports[j]
			number := strconv.Itoa(p.Number)
			set := b.Labels(devicePort, nil, hca.Name, number)
			v.ports = append(v.ports, portView{Port: p, hca: hca, number: number, labels: set})
			v.pma.add(set, p.Counters)
			v.hw.add(set, p.HWCounters)
			v.ext.add(set, p.ExtCounters)
			v.counters = hca.PortCounters(v.counters[:0], p)
			v.shared.addShared(set, v.counters)
		}
	}
	v.pma.end()
	v.hw.end()
	v.ext.end()
	v.shared.end()
	v.hcaFunctions = hcaFunctions(v.hcaFunctions[:0], &r.Facts)
	v.fabric.fill(r.Facts.Fabric, b)
	v.fillInterfaces(r.Facts.Node)
}

func (v *view) fillInterfaces(n *model.Node) {
	excluded := func(name string) bool { return v.excludesInterface != nil && v.excludesInterface(name) }
	if n == nil {
		n = &model.Node{}
	}
	v.netDevs = leaveOut(v.netDevs, n.NetDevs, func(d model.NetDev) bool { return excluded(d.Name) })
	v.netClasses = leaveOut(v.netClasses, n.NetClasses, func(c model.NetClass) bool { return excluded(c.Name) })
}

// each returns an emit function that calls add for every element of a list.
func each[T any](
	list func(*view) []T, add func(*view, *exposition.Builder, *T),
) func(*view, *exposition.Builder) {
	return func(v *view, b *exposition.Builder) {
		elements := list(v)
		for i := range elements {
			add(v, b, &elements[i])
		}
	}
}

type verbShare = attribution.Share[model.VerbKey, model.Histogram]

// The lists of several metrics. The lists of Node need a Node.
func gpusOf(v *view) []gpuView                         { return v.gpus }
func portsOf(v *view) []portView                       { return v.ports }
func hcaFunctionsOf(v *view) []hcaFunction             { return v.hcaFunctions }
func hcasOf(v *view) []model.HCA                       { return v.facts.HCAs }
func vfsOf(v *view) []model.VF                         { return v.facts.VFs }
func mapsOf(v *view) []model.Map                       { return v.facts.Maps }
func childrenOf(v *view) []model.ChildProcesses        { return v.facts.Children }
func statesOf(v *view) []model.SourceState             { return v.states }
func usagesOf(v *view) []attribution.UsageShare        { return v.scope.usages }
func cpuEnergyOf(v *view) []attribution.CPUEnergyShare { return v.scope.energy }
func objectsOf(v *view) []attribution.ObjectShare      { return v.shares.Objects }
func verbsOf(v *view) []verbShare                      { return v.shares.Verbs }
func fabricPortsOf(v *view) []fabricPort               { return v.fabric.ports }
func cpusOf(v *view) []model.CPU                       { return v.facts.Node.CPUs }
func throttlesOf(v *view) []model.Throttle             { return v.facts.Node.Throttles }
func clocksourcesOf(v *view) []model.Clocksource       { return v.facts.Node.Clocksources }
func disksOf(v *view) []model.Disk                     { return v.facts.Node.Disks }
func filesystemsOf(v *view) []model.Filesystem         { return v.facts.Node.Filesystems }
func netDevsOf(v *view) []model.NetDev                 { return v.netDevs }
func netClassesOf(v *view) []model.NetClass            { return v.netClasses }
func energyOf(v *view) []model.EnergyZone              { return v.facts.Node.Energy }
func chipsOf(v *view) []model.Chip                     { return v.facts.Node.Chips }

func fabricNodesOf(v *view) []model.FabricNode {
	if v.fabric.Fabric == nil {
		return nil
	}
	return v.fabric.Nodes
}

// single returns the row of one value without labels. If part returns nil, the part was not collected, and there is no
// series.
func single[T any](
	name string, typ dto.MetricType, help string, part func(*view) *T, of func(*T) model.Optional,
) metric {
	return metric{name: name, typ: typ, help: help, emit: func(v *view, b *exposition.Builder) {
		if p := part(v); p != nil {
			known(b, of(p), nil)
		}
	}}
}

// known adds a series if the value is known. o is nil for a metric without the labels of an owner or GPU.
func known(b *exposition.Builder, f model.Optional, o *exposition.OwnerLabels, values ...string) {
	if f.Known {
		b.Share(f.Value, o, values...)
	}
}

// valueOf returns the value of a pointer, unknown for nil.
func valueOf[T uint32 | uint64 | int64 | float64](p *T) model.Optional {
	if p == nil {
		return model.Optional{}
	}
	return model.Some(float64(*p))
}

// moment returns a time in seconds since 1970, unknown for the zero time.
func moment(t time.Time) model.Optional {
	return model.Optional{Value: float64(t.UnixMilli()) / 1e3, Known: !t.IsZero()}
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
