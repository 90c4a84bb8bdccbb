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
// prepared once; what a refresh adds are rows of values, which its scrapes share
// and nobody changes.
type builder struct {
	metrics []metric
	build   []string // values of accelscope_build_info
	node    string   // name of the node
	schemas map[string]*schema
	labels  *labels
	names   map[nameKey]*string // of the families that patterns made
	view    view

	// The refresh in progress.
	out    []family
	opened map[string]bool
	metric *metric
	schema *schema
	name   *string // of the open family, nil when none is
	opens  uint64  // families opened since the start
	start  int     // of the open family in rows
	rows   []row
}

// family is a metric family: what every format of the exposition is made of.
type family struct {
	name, help *string
	typ        dto.MetricType
	rows       []row
}

// row is a series. A histogram is one of the attribution, in place of a value.
type row struct {
	labels    *labelSet
	value     float64
	histogram durations
}

// nameKey is a pattern and what its varying part stands for.
type nameKey struct {
	metric *metric
	part   string
}

func newBuilder(o Options) *builder {
	b := &builder{
		build:   []string{o.Version, o.Revision, runtime.Version()},
		node:    o.Node,
		schemas: map[string]*schema{},
		labels:  newLabels(),
		names:   map[nameKey]*string{},
		opened:  map[string]bool{},
	}
	for _, m := range metrics(o.Labels) {
		if m.compat == "" || slices.Contains(o.Compat, m.compat) {
			m.schema = b.schemaFor(m.labelNames())
			b.metrics = append(b.metrics, m)
		}
	}
	return b
}

// families builds the families of r, sorted by name.
func (b *builder) families(r *refresh) []family {
	b.labels.begin()
	clear(b.opened)
	b.out = make([]family, 0, len(b.out)+8)
	b.rows = make([]row, 0, len(b.rows)+64)
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
	slices.SortFunc(b.out, func(x, y family) int { return strings.Compare(*x.name, *y.name) })
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
	b.name, b.start = name, len(b.rows)
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
	if b.name != nil && len(b.rows) > b.start {
		rows := b.rows[b.start:len(b.rows):len(b.rows)]
		b.out = append(b.out, family{b.name, &b.metric.help, b.metric.typ, rows})
	}
	b.name = nil
}

// add adds a series, unless the family has one with these labels already: of
// two the first is believed.
func (b *builder) add(set *labelSet, value float64) {
	b.addRow(row{labels: set, value: value})
}

func (b *builder) addRow(r row) {
	if r.labels.family != b.opens {
		r.labels.family = b.opens
		b.rows = append(b.rows, r)
	}
}

// value adds a series that nobody owns, with the values of its labels.
func (b *builder) value(v float64, values ...string) {
	b.add(b.labels.get(b.schema, nil, values...), v)
}

// share adds a series that carries the identity of an owner, if there is one.
func (b *builder) share(v float64, o *owner, values ...string) {
	b.add(b.labels.get(b.schema, o, values...), v)
}

// histogram is share for durations.
func (b *builder) histogram(h *model.Histogram, o *owner, values ...string) {
	b.addRow(row{labels: b.labels.get(b.schema, o, values...), histogram: (*coarse)(h)})
}

// fine is share for durations that are told apart better.
func (b *builder) fine(h *model.FineHistogram, o *owner, values ...string) {
	b.addRow(row{labels: b.labels.get(b.schema, o, values...), histogram: (*fine)(h)})
}

// stateSet is shareStates for what nobody owns.
func (b *builder) stateSet(current string, states []string, values ...string) {
	b.shareStates(nil, current, states, values...)
}

// shareStates adds a series for each of the states: 1 for the current one, 0 for
// the rest. A state that nobody expected is told all the same.
func (b *builder) shareStates(o *owner, current string, states []string, values ...string) {
	var buf [4]string
	all := append(append(buf[:0], values...), "")
	last := len(all) - 1
	for _, s := range states {
		all[last] = s
		v := 0.0
		if s == current {
			v = 1
		}
		b.share(v, o, all...)
	}
	if !slices.Contains(states, current) {
		all[last] = current
		b.share(1, o, all...)
	}
}
