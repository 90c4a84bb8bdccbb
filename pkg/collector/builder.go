// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"runtime"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/model"
)

// builder makes the metric families of a refresh. Names, help and labels are
// prepared once; what a refresh allocates is a few slabs of values, which its
// scrapes share and nobody changes.
type builder struct {
	metrics []metric
	build   []string // values of accelscope_build_info
	schemas map[string]*schema
	labels  *labels
	names   map[nameKey]*string // of the families that patterns made
	view    view

	// The refresh in progress.
	out    []*dto.MetricFamily
	opened map[string]bool
	metric *metric
	schema *schema
	family *dto.MetricFamily
	opens  uint64 // families opened since the start
	start  int    // of the open family in series
	series []*dto.Metric
	slabs  slabs
}

// nameKey is a pattern and what its varying part stands for.
type nameKey struct {
	metric *metric
	part   string
}

func newBuilder(compat []string, version, revision string) *builder {
	b := &builder{
		build:   []string{version, revision, runtime.Version()},
		schemas: map[string]*schema{},
		labels:  newLabels(),
		names:   map[nameKey]*string{},
		opened:  map[string]bool{},
	}
	for _, m := range metrics() {
		if m.compat == "" || slices.Contains(compat, m.compat) {
			m.schema = b.schemaFor(m.labelNames())
			b.metrics = append(b.metrics, m)
		}
	}
	return b
}

// families builds the families of r, sorted by name.
func (b *builder) families(r *refresh) []*dto.MetricFamily {
	b.labels.begin()
	clear(b.opened)
	b.out = make([]*dto.MetricFamily, 0, len(b.out)+8)
	b.series = make([]*dto.Metric, 0, len(b.series)+64)
	b.slabs.begin()
	b.view.fill(r, b)
	for i := range b.metrics {
		b.metric = &b.metrics[i]
		b.schema = b.metric.schema
		if !b.metric.pattern() {
			b.open(&b.metric.name)
		}
		b.metric.emit(&b.view, b)
		b.close()
	}
	b.labels.end()
	if len(b.names) > 2*len(b.out) { // of drivers that are gone
		clear(b.names)
	}
	slices.SortFunc(b.out, func(x, y *dto.MetricFamily) int { return strings.Compare(*x.Name, *y.Name) })
	return b.out
}

func (b *builder) schemaFor(names []string) *schema {
	key := strings.Join(names, ",")
	s := b.schemas[key]
	if s == nil {
		s = newSchema(names)
		b.schemas[key] = s
	}
	return s
}

// open begins a family of the current metric. A name that was there before
// (two counters of a driver that become the same when made valid) is refused.
func (b *builder) open(name *string) bool {
	b.close()
	if b.opened[*name] {
		return false
	}
	b.opened[*name] = true
	b.opens++
	b.family = b.slabs.families.next()
	b.family.Name, b.family.Help, b.family.Type = name, &b.metric.help, &b.metric.typ
	b.start = len(b.series)
	return true
}

// openPart is open for a pattern and its varying part.
func (b *builder) openPart(part string) bool {
	k := nameKey{b.metric, part}
	name, ok := b.names[k]
	if !ok {
		name = new(string)
		*name = b.metric.nameOf(part)
		b.names[k] = name
	}
	return b.open(name)
}

// close ends the open family; one without series is not exported.
func (b *builder) close() {
	if b.family != nil && len(b.series) > b.start {
		b.family.Metric = b.series[b.start:len(b.series):len(b.series)]
		b.out = append(b.out, b.family)
	}
	b.family = nil
}

// add adds a series.
func (b *builder) add(set *labelSet, value float64) {
	if !b.first(set) {
		return
	}
	switch b.metric.typ {
	case dto.MetricType_COUNTER:
		b.append(set, b.slabs.counter(value))
	case dto.MetricType_GAUGE:
		b.append(set, b.slabs.gauge(value))
	default:
		b.append(set, b.slabs.untypedValue(value))
	}
}

// first says whether the family has no series with these labels yet: of two
// the first is believed.
func (b *builder) first(set *labelSet) bool {
	if set.family == b.opens {
		return false
	}
	set.family = b.opens
	return true
}

func (b *builder) append(set *labelSet, m *dto.Metric) {
	m.Label = set.pairs
	b.series = append(b.series, m)
}

// value adds a series that nobody owns, with the values of its labels.
func (b *builder) value(v float64, values ...string) {
	b.add(b.labels.get(b.schema, nil, values...), v)
}

// share adds a series that carries the identity of an owner.
func (b *builder) share(v float64, o *owner, values ...string) {
	b.add(b.labels.get(b.schema, o, values...), v)
}

// histogram is share for durations.
func (b *builder) histogram(h *model.Histogram, o *owner, values ...string) {
	if set := b.labels.get(b.schema, o, values...); b.first(set) {
		b.append(set, b.slabs.histogram(h))
	}
}

// stateSet adds a series for each of the states: 1 for the current one, 0 for
// the rest. A state that nobody expected is told all the same.
func (b *builder) stateSet(current string, states []string, values ...string) {
	var buf [4]string
	all := append(append(buf[:0], values...), "")
	last := len(all) - 1
	for _, s := range states {
		all[last] = s
		v := 0.0
		if s == current {
			v = 1
		}
		b.value(v, all...)
	}
	if !slices.Contains(states, current) {
		all[last] = current
		b.value(1, all...)
	}
}
