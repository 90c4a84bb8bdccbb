// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// The values of folded labels: other when a bound is reached, all always.
const (
	other = "other"
	all   = "all"
)

const (
	// ownerSeries is the number of series with detail in a family for one owner (of histograms: 12 verbs on each of 8
	// HCAs), nodeSeries the number in all families together. Each bucket of a histogram is a series.
	ownerSeries = 768
	nodeSeries  = 16384
	// maxDetailed bounds the number of metrics with detail.
	maxDetailed = 32
	// keptRounds is for how many refreshes the folded series of an owner without series are kept.
	keptRounds = 60
)

// detail is the labels of a metric that become one value, always or when a bound is reached. An owner's totals stay and
// add up.
type detail struct {
	at      []int // the labels in the order of folding, counted from the last label, which is 1
	into    string
	always  bool
	index   int // of the metric in labels.detailed
	bit     uint32
	series  int    // series of a row; 0 before the first row
	round   uint64 // of the last refresh with a series
	dropped uint64 // distinct folded series
}

// seriesKey identifies a series of an owner in a family, see labelKey.
type seriesKey [4]string

type ownerDetail struct {
	shown  int // series that count for the bounds
	folded map[seriesKey]*folded
	totals map[seriesKey]*total
}

// folded is a series that is part of a total. It stays folded even if there is room later: otherwise the total would
// fall.
type folded struct {
	into   *total
	last   value
	opened uint64 // family to which it was last added, see Builder.opens
}

// total is the sum of the folded series that differ only in folded labels. A counter keeps the last value of an absent
// series.
type total struct {
	values []string
	sum    value
	opened uint64 // family to which it was last added, see Builder.opens
	row    int
	shown  durations // of the row, in a family of histograms
}

type value struct {
	number float64
	coarse *model.Histogram
	fine   *model.FineHistogram
}

// grow replaces last by now in a sum of cumulative values. If the value fell, its counter was reset: the earlier count
// stays in sum.
func grow[V any, P model.Cumulative[V]](sum, last **V, now *V) {
	if *last == nil {
		*last = new(V)
	}
	if *sum == nil {
		*sum = new(V)
	}
	if !P(now).Fell(*last) {
		P(*sum).Subtract(*last)
	}
	P(*sum).Add(now)
	**last = *now
}

// owned adds an owner's row, or adds its value or histogram to the total of its series.
func (b *Builder) owned(v float64, h durations, o *OwnerLabels, values []string, since int64) {
	for _, omitted := range b.metric.omitted {
		if slices.Contains(values, omitted) {
			return
		}
	}
	d := b.metric.detail
	if d == nil || o.nobody && b.metric.typ == gauge {
		b.addRow(b.set(o, values), v, h, since)
		return
	}
	if d.series == 0 {
		d.series = 1
		if h != nil {
			shape, _, _ := h.in()
			d.series = len(shape.bounds) + 3 // infinity, sum, count
		}
	}
	set, f := b.place(d, o, values)
	if f == nil {
		b.addRow(set, v, h, since)
		return
	}
	b.fold(v, h, f, o)
}

// fold adds a value or a histogram to a total. Histograms are copied: rows of a refresh must not change later.
func (b *Builder) fold(v float64, h durations, f *folded, o *OwnerLabels) {
	if f.opened == b.opens {
		return // addRow, too, keeps the first of two series
	}
	f.opened = b.opens
	t := f.into
	first := t.opened != b.opens
	switch h := h.(type) {
	case *coarse:
		grow(&t.sum.coarse, &f.last.coarse, (*model.Histogram)(h))
	case *fine:
		grow(&t.sum.fine, &f.last.fine, (*model.FineHistogram)(h))
	default:
		switch {
		case b.metric.typ == gauge && first:
			t.sum.number = v
		case b.metric.typ == gauge || v < f.last.number:
			t.sum.number += v
		default:
			t.sum.number += v - f.last.number
		}
		f.last.number = v
	}
	if first {
		switch h.(type) {
		case *coarse:
			t.shown = new(coarse)
		case *fine:
			t.shown = new(fine)
		}
		t.opened, t.row = b.opens, len(b.rows)
		b.addRow(b.set(o, t.values), 0, t.shown, 0)
	}
	switch to := t.shown.(type) {
	case *coarse:
		*to = coarse(*t.sum.coarse)
	case *fine:
		*to = fine(*t.sum.fine)
	default:
		b.rows[t.row].value = t.sum.number
	}
}

// place returns the label set of a series, or the folded series.
func (b *Builder) place(d *detail, o *OwnerLabels, values []string) (*LabelSet, *folded) {
	if o.detail == nil {
		o.detail = new([maxDetailed]*ownerDetail)
	}
	state := o.detail[d.index]
	if state == nil {
		state = &ownerDetail{}
		o.detail[d.index] = state
	}
	d.round = b.labels.round
	key := keyOf(values)
	if f := state.folded[key]; f != nil {
		return nil, f
	}
	if values[len(values)-d.at[0]] != d.into && !d.always {
		set := b.set(o, values)
		if set.shown&d.bit != 0 {
			return set, nil
		}
		if b.labels.admit(state, d) {
			set.shown |= d.bit
			return set, nil
		}
		d.dropped++
	}
	if state.folded == nil {
		state.folded, state.totals = map[seriesKey]*folded{}, map[seriesKey]*total{}
	}
	f := &folded{into: b.labels.total(state, d, values)}
	state.folded[key] = f
	return nil, f
}

func keyOf(values []string) (key seriesKey) {
	copy(key[:], values)
	return key
}

// admit counts a series of a metric and owner if there is room.
func (l *labels) admit(state *ownerDetail, d *detail) bool {
	if state.shown+d.series > ownerSeries || l.shown+d.series > nodeSeries {
		return false
	}
	state.shown += d.series
	l.shown += d.series
	return true
}

// total returns the total of a series: the first total with room, in the order of folding. The last total always has
// room.
func (l *labels) total(state *ownerDetail, d *detail, values []string) *total {
	folded := append([]string(nil), values...) // slices.Clone would move the values of all series to the heap
	for i, at := range d.at {
		folded[len(folded)-at] = d.into
		key := keyOf(folded)
		t := state.totals[key]
		if t == nil && (i == len(d.at)-1 || l.admit(state, d)) {
			t = &total{values: folded}
			state.totals[key] = t
		}
		if t != nil {
			return t
		}
	}
	return nil // there is at least one label
}

// release returns the room of a dropped label set.
func (l *labels) release(o *OwnerLabels, set *LabelSet) {
	if set.shown == 0 {
		return
	}
	for _, d := range l.detailed {
		if set.shown&d.bit != 0 {
			o.detail[d.index].shown -= d.series
			l.shown -= d.series
		}
	}
	set.shown = 0
}

// releaseOwner returns the room of the totals of a dropped owner.
func (l *labels) releaseOwner(o *OwnerLabels) {
	if o.detail == nil {
		return
	}
	for _, state := range o.detail {
		if state != nil {
			l.shown -= state.shown
		}
	}
	o.detail = nil
}

// keeps reports whether the folded series of an owner without series are kept. A GPU's series that are always folded
// are not kept: the GPU's counters begin at 0 when its driver is reloaded.
func (l *labels) keeps(o *OwnerLabels) bool {
	return o.detail != nil && l.round-o.round < keptRounds && slices.ContainsFunc(l.detailed, func(d *detail) bool {
		state := o.detail[d.index]
		return !d.always && state != nil && state.folded != nil
	})
}

// EachDropped calls f with the number of distinct folded series, for each metric with detail that has series now or had
// too many.
func (b *Builder) EachDropped(f func(family string, series uint64)) {
	for i, d := range b.labels.detailed {
		if !d.always && (d.round == b.labels.round || d.dropped > 0) {
			f(b.detailedNames[i], d.dropped)
		}
	}
}
