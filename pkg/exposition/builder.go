// SPDX-License-Identifier: Apache-2.0

// Package exposition builds metric families from rows of values and writes them in Prometheus's formats: text 0.0.4,
// OpenMetrics, and protobuf with native histograms.
//
// Labels are prepared once and kept between refreshes (LabelSet), so that a refresh does not allocate per series.
package exposition

import (
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	untyped   = dto.MetricType_UNTYPED
	histogram = dto.MetricType_HISTOGRAM
)

// Metric declares a metric family or, with a name in angle brackets, a pattern: one family for each counter of a
// driver, with the counter's name in place of the brackets.
type Metric struct {
	name, help string
	typ        dto.MetricType
	schema     *Schema
	detail     *detail // nil for a metric without detail
	omitted    []string
	collector  string
	last       span // rows in Builder.last that were not yet matched
	now        span // rows in Builder.rows
}

type span struct{ from, to int }

// Detail declares which series of an owner's or GPU's metric are folded or left out.
type Detail struct {
	// Labels become "other", in this order, when an owner has too many series.
	Labels []string
	// Sum, if not empty, is the label that always becomes "all".
	Sum string
	// Omit are values of labels. Series with such a value are left out.
	Omit []string
	// Collector selects the metric in Page.Of.
	Collector string
}

// IsPattern reports whether a name stands for one family per counter.
func IsPattern(name string) bool { return strings.ContainsRune(name, '<') }

// NameOf puts a driver's counter into a pattern. Characters that are invalid in metric names become underscores.
func NameOf(pattern, counter string) string {
	before, rest, _ := strings.Cut(pattern, "<")
	_, after, _ := strings.Cut(rest, ">")
	return before + strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_':
			return r
		}
		return '_'
	}, counter) + after
}

// Builder builds the metric families of a refresh. Names, help and labels are prepared once. A refresh adds rows, which
// its scrapes share and which never change. A Builder must be used by one goroutine at a time.
type Builder struct {
	schemas map[string]*Schema
	labels  *labels
	names   map[nameKey]*string // of families of patterns
	// The names of labels.detailed.
	detailedNames []string
	excludes      func(name string) bool

	// The refresh in progress.
	out    []Family
	opened map[string]uint64 // value of labels.round when the family was last opened, by name
	metric *Metric
	name   *string // of the open family; nil if no family is open
	opens  uint64  // families opened since the start
	start  int     // index in rows of the open family's first row
	rows   []row
	last   []row // of the last refresh
	// The rows of histogram families have histograms; the open family's begin at firstHistogram.
	histograms     []durations
	firstHistogram int
}

// Family is a metric family, from which every format is written.
type Family struct {
	name, help *string
	typ        dto.MetricType
	rows       []row
	histograms []durations // one for each row, in a family of histograms
	collector  string
}

// Len returns the number of series.
func (f *Family) Len() int { return len(f.rows) }

// row is a series. Most series have a value: histograms are kept apart.
type row struct {
	labels *LabelSet
	value  float64
	// since is a time at which a counter or histogram was 0, in milliseconds since 1970; 0 if unknown.
	since int64
}

type nameKey struct {
	metric  *Metric
	counter string
}

// NewBuilder returns a Builder without metrics. excludes, if not nil, reports the names of families to leave out.
func NewBuilder(excludes func(name string) bool) *Builder {
	if excludes == nil {
		excludes = func(string) bool { return false }
	}
	return &Builder{
		excludes: excludes,
		schemas:  map[string]*Schema{},
		labels:   newLabels(),
		names:    map[nameKey]*string{},
		opened:   map[string]uint64{},
	}
}

// Declare adds a metric. labels are all label names, the owner's first.
func (b *Builder) Declare(name, help string, typ dto.MetricType, labels []string, d Detail) *Metric {
	m := &Metric{name: name, help: help, typ: typ, schema: b.Schema(labels), omitted: d.Omit, collector: d.Collector}
	folded, into, always := d.Labels, other, false
	if d.Sum != "" {
		folded, into, always = []string{d.Sum}, all, true
	}
	if len(folded) > 0 {
		index := len(b.labels.detailed)
		m.detail = &detail{index: index, bit: 1 << index, into: into, always: always}
		for _, label := range folded {
			m.detail.at = append(m.detail.at, len(labels)-slices.Index(labels, label))
		}
		b.labels.detailed = append(b.labels.detailed, m.detail)
		b.detailedNames = append(b.detailedNames, name)
	}
	return m
}

// Schema returns the prepared label names, which metrics share.
func (b *Builder) Schema(names []string) *Schema {
	key := strings.Join(names, ",")
	s := b.schemas[key]
	if s == nil {
		s = newSchema(names)
		b.schemas[key] = s
	}
	return s
}

// Begin begins a refresh.
func (b *Builder) Begin() {
	b.labels.begin()
	b.out = make([]Family, 0, len(b.out)+8)
	b.last = b.rows
	b.rows = make([]row, 0, len(b.rows)+64)
	b.histograms = make([]durations, 0, len(b.histograms))
}

// Metric begins the family of a metric. Families of a pattern begin with OpenPart.
func (b *Builder) Metric(m *Metric) {
	b.close()
	b.metric = m
	m.last, m.now = m.now, span{len(b.rows), len(b.rows)}
	if !IsPattern(m.name) {
		b.open(&m.name)
	}
}

// End returns the families of the refresh, sorted by name.
func (b *Builder) End() []Family {
	b.close()
	b.labels.end()
	b.last = nil
	if len(b.names) > 2*len(b.out) { // names of removed counters
		clear(b.names)
		clear(b.opened)
	}
	slices.SortFunc(b.out, func(x, y Family) int { return strings.Compare(*x.name, *y.name) })
	return b.out
}

// Kept is the size of the state that a Builder keeps between refreshes.
type Kept struct {
	Sets, Owners int // label sets, and labels of owners and GPUs
	Used         int // label sets of the last refresh
	Names        int // of families of patterns
}

// Kept returns the size of the kept state.
func (b *Builder) Kept() Kept {
	l := b.labels
	return Kept{Sets: len(l.sets), Owners: len(l.owners), Used: l.used, Names: len(b.names)}
}

// open begins a family of the current metric. It refuses a second family of the same name: two counters of a driver may
// get equal names.
func (b *Builder) open(name *string) bool {
	b.close()
	if b.opened[*name] == b.labels.round {
		return false
	}
	b.opened[*name] = b.labels.round
	b.opens++
	b.name, b.start, b.firstHistogram = name, len(b.rows), len(b.histograms)
	return true
}

// OpenPart begins a pattern's family for a counter. It returns false if the family exists already or is excluded.
func (b *Builder) OpenPart(counter string) bool {
	k := nameKey{b.metric, counter}
	name, ok := b.names[k]
	if !ok {
		name = new(string)
		*name = NameOf(b.metric.name, counter)
		if b.excludes(*name) {
			name = nil
		}
		b.names[k] = name
	}
	return name != nil && b.open(name)
}

// close ends the open family. A family without series is not exported.
func (b *Builder) close() {
	if b.name != nil && len(b.rows) > b.start {
		rows, histograms := slices.Clip(b.rows[b.start:]), slices.Clip(b.histograms[b.firstHistogram:])
		b.out = append(b.out, Family{b.name, &b.metric.help, b.metric.typ, rows, histograms, b.metric.collector})
	}
	b.name = nil
}

// Owner returns the labels of an owner.
func (b *Builder) Owner(o identity.Owner) *OwnerLabels { return b.labels.owner(o) }

// GPU returns the labels of a GPU, after the labels of an owner if o is not nil.
func (b *Builder) GPU(o *OwnerLabels, id, uuid string) *OwnerLabels { return b.labels.gpu(o, id, uuid) }

// Labels returns the label set of these label names and values.
func (b *Builder) Labels(s *Schema, o *OwnerLabels, values ...string) *LabelSet {
	return b.labels.get(s, o, values...)
}

// Add adds a series. The family keeps the first of two series with equal labels.
func (b *Builder) Add(set *LabelSet, value float64) {
	b.addRow(set, value, nil, 0)
}

func (b *Builder) addRow(set *LabelSet, value float64, h durations, since int64) {
	if set.family == b.opens {
		return
	}
	set.family = b.opens
	b.rows = append(b.rows, row{set, value, since})
	b.metric.now.to = len(b.rows)
	if h != nil {
		b.histograms = append(b.histograms, h)
	}
}

// Value adds a series without an owner.
func (b *Builder) Value(v float64, values ...string) {
	b.Add(b.set(nil, values), v)
}

// set returns the label set of a series. The row is usually next to the row of the last refresh, so no hash lookup is
// needed.
func (b *Builder) set(o *OwnerLabels, values []string) *LabelSet {
	m := b.metric
	for i := m.last.from; i < min(m.last.from+2, m.last.to, len(b.last)); i++ {
		if set := b.last[i].labels; set.schema == m.schema && set.owner == o && !set.replaced && set.has(values) {
			m.last.from = i + 1
			return b.labels.use(set)
		}
	}
	return b.labels.get(m.schema, o, values...)
}

// Share adds a series with the labels of an owner.
func (b *Builder) Share(v float64, o *OwnerLabels, values ...string) {
	b.owned(v, nil, o, values, 0)
}

// Histogram adds a histogram with the labels of an owner.
func (b *Builder) Histogram(h *model.Histogram, o *OwnerLabels, values ...string) {
	b.owned(0, (*coarse)(h), o, values, 0)
}

// Started adds counters and histograms of owners with their start time. Folded series and gauges have no start time.
type Started struct {
	b     *Builder
	since int64
}

// Since sets the time at which the following counters and histograms were 0. The zero time is unknown.
func (b *Builder) Since(at time.Time) Started {
	if at.IsZero() {
		return Started{b, 0}
	}
	return Started{b, at.UnixMilli()}
}

// Share adds a counter with the labels of an owner.
func (s Started) Share(v float64, o *OwnerLabels, values ...string) {
	s.b.owned(v, nil, o, values, s.since)
}

// Histogram adds a histogram with the labels of an owner.
func (s Started) Histogram(h *model.Histogram, o *OwnerLabels, values ...string) {
	s.b.owned(0, (*coarse)(h), o, values, s.since)
}

// FineHistogram adds a histogram of four buckets per power of two.
func (s Started) FineHistogram(h *model.FineHistogram, o *OwnerLabels, values ...string) {
	s.b.owned(0, (*fine)(h), o, values, s.since)
}

// StateSet adds a series for each state: 1 for the current state, otherwise 0. A current state that is not in states
// gets a series, too. o is nil for a metric without an owner.
func (b *Builder) StateSet(o *OwnerLabels, current string, states []string, values ...string) {
	var buf [4]string
	all := append(append(buf[:0], values...), "")
	last := len(all) - 1
	for _, s := range states {
		all[last] = s
		v := 0.0
		if s == current {
			v = 1
		}
		b.Share(v, o, all...)
	}
	if !slices.Contains(states, current) {
		all[last] = current
		b.Share(1, o, all...)
	}
}
