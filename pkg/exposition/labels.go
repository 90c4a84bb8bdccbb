// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/identity"
)

// Identity lists the labels of metrics of owners.
var Identity = []string{"workload", "namespace", "pod", "container", "container_id"}

// GPULabels lists the labels of metrics of GPUs.
var GPULabels = []string{"gpu_id", "uuid"}

// Schema is the label names of a metric. Metrics with the same names share the Schema and its label sets.
type Schema struct {
	names []string // as declared, the identity first
	place []int    // the index of each name in sorted order
}

func newSchema(names []string) *Schema {
	s := &Schema{names: names, place: make([]int, len(names))}
	for place, name := range slices.Sorted(slices.Values(names)) {
		s.place[slices.Index(names, name)] = place
	}
	return s
}

// LabelSet is the prepared labels of a series.
type LabelSet struct {
	schema *Schema
	owner  *OwnerLabels
	pairs  []*dto.LabelPair // sorted by name, shared with other sets
	text   string           // name="value",...
	round  uint64           // of the last refresh that used it
	family uint64           // to which it was last added
	shown  uint32           // metrics with detail that show the series, see detail.bit
	// replaced reports that another set has the key.
	replaced bool
}

// Value returns the value of a label of the metric.
func (s *LabelSet) Value(name string) string {
	return s.at(slices.Index(s.schema.names, name)).GetValue()
}

// at returns a label by its index in the declaration.
func (s *LabelSet) at(i int) *dto.LabelPair { return s.pairs[s.schema.place[i]] }

func (s *LabelSet) has(values []string) bool {
	for i, v := range values {
		if s.at(len(s.pairs)-len(values)+i).GetValue() != v {
			return false
		}
	}
	return true
}

// labelKey identifies a label set by its first four values after the identity and GPU labels, which distinguish the
// series of every metric.
type labelKey struct {
	schema *Schema
	owner  *OwnerLabels
	values [4]string
}

// OwnerLabels is the labels of an owner, of a GPU, or of both. It lives as long as the label sets that contain it.
type OwnerLabels struct {
	pairs  []*dto.LabelPair // in the order of Identity and GPULabels
	round  uint64
	detail *[maxDetailed]*ownerDetail // nil without series of a metric with detail
	nobody bool                       // the unattributed share, whose gauges are never folded
}

// gpuKey is a GPU with its owner, or nil.
type gpuKey struct {
	owner    *OwnerLabels
	id, uuid string
}

type pairKey struct{ name, value string }

// labels keeps the label sets between refreshes, so that a series is prepared once. Sets that a refresh did not use are
// dropped.
type labels struct {
	round  uint64
	sets   map[labelKey]*LabelSet
	owners map[identity.Owner]*OwnerLabels
	gpus   map[gpuKey]*OwnerLabels
	pairs  map[pairKey]*dto.LabelPair
	used   int // sets in this round
	// detailed are the metrics with detail, shown the number of their series that count for the bounds.
	detailed []*detail
	shown    int
	// replaced reports that a set replaced another set in this round.
	replaced bool
}

func newLabels() *labels {
	return &labels{
		sets:   map[labelKey]*LabelSet{},
		owners: map[identity.Owner]*OwnerLabels{},
		gpus:   map[gpuKey]*OwnerLabels{},
		pairs:  map[pairKey]*dto.LabelPair{},
	}
}

func (l *labels) owner(id identity.Owner) *OwnerLabels {
	o := l.owners[id]
	if o == nil {
		o = &OwnerLabels{nobody: id == identity.Owner{}}
		for i, v := range []string{id.Workload, id.Namespace, id.Pod, id.Container, id.ContainerID} {
			o.pairs = append(o.pairs, &dto.LabelPair{Name: &Identity[i], Value: &v})
		}
		l.owners[id] = o
	}
	o.round = l.round
	return o
}

// gpu returns the labels of a GPU, after the labels of an owner if o is not nil. The driver's names may be invalid
// UTF-8.
func (l *labels) gpu(o *OwnerLabels, id, uuid string) *OwnerLabels {
	k := gpuKey{o, id, uuid}
	g := l.gpus[k]
	if g == nil {
		id, uuid = strings.ToValidUTF8(id, "\uFFFD"), strings.ToValidUTF8(uuid, "\uFFFD")
		if valid := (gpuKey{o, id, uuid}); valid != k {
			g = l.gpu(o, id, uuid)
		} else {
			g = &OwnerLabels{}
			if o != nil {
				g.pairs = slices.Clone(o.pairs)
			}
			g.pairs = append(g.pairs, &dto.LabelPair{Name: &GPULabels[0], Value: &id}, &dto.LabelPair{Name: &GPULabels[1], Value: &uuid})
		}
		l.gpus[k] = g
	}
	g.round = l.round
	return g
}

// get returns the label set of the values, in the order of s.
func (l *labels) get(s *Schema, o *OwnerLabels, values ...string) *LabelSet {
	k := labelKey{schema: s, owner: o}
	copy(k.values[:], values)
	set := l.sets[k]
	if set == nil || len(values) > len(k.values) && !set.has(values) {
		// Making values valid may make two values equal.
		if valid, changed := validValues(values); changed {
			set = l.get(s, o, valid...)
		} else {
			if set != nil {
				l.replaced, set.replaced = true, true
				l.release(o, set)
			}
			set = l.prepare(s, o, values)
		}
		l.sets[k] = set
	}
	return l.use(set)
}

func (l *labels) use(set *LabelSet) *LabelSet {
	if set.round != l.round {
		set.round = l.round
		l.used++
	}
	return set
}

// validValues makes all values valid UTF-8, and reports whether it changed a value.
func validValues(values []string) (valid []string, changed bool) {
	for i, v := range values {
		if utf8.ValidString(v) {
			continue
		}
		if !changed {
			valid, changed = slices.Clone(values), true
		}
		valid[i] = strings.ToValidUTF8(v, "\uFFFD")
	}
	return valid, changed
}

func (l *labels) prepare(s *Schema, o *OwnerLabels, values []string) *LabelSet {
	set := &LabelSet{schema: s, owner: o, pairs: make([]*dto.LabelPair, len(s.names))}
	if o != nil {
		for i, p := range o.pairs {
			set.pairs[s.place[i]] = p
		}
	}
	own := len(s.names) - len(values)
	for i, v := range values {
		set.pairs[s.place[own+i]] = l.pair(s.names[own+i], v)
	}
	set.text = string(appendLabels(nil, set.pairs))
	return set
}

func (l *labels) pair(name, value string) *dto.LabelPair {
	k := pairKey{name, value}
	p := l.pairs[k]
	if p == nil {
		p = &dto.LabelPair{Name: &name, Value: &value}
		l.pairs[k] = p
	}
	return p
}

func (l *labels) begin() {
	l.round++
	l.used, l.replaced = 0, false
}

func (l *labels) end() {
	if l.used == len(l.sets) && !l.replaced {
		return
	}
	clear(l.pairs)
	maps.DeleteFunc(l.sets, func(k labelKey, set *LabelSet) bool {
		if set.round == l.round {
			return false
		}
		l.release(k.owner, set)
		return true
	})
	unused := func(o *OwnerLabels) bool {
		if o.round == l.round || l.keeps(o) {
			return false
		}
		l.releaseOwner(o)
		return true
	}
	maps.DeleteFunc(l.owners, func(_ identity.Owner, o *OwnerLabels) bool { return unused(o) })
	maps.DeleteFunc(l.gpus, func(_ gpuKey, o *OwnerLabels) bool { return unused(o) })
}
