// SPDX-License-Identifier: Apache-2.0

// Package taint keeps the marks of a Kubernetes cluster, node conditions and DeviceTaintRules, equal to the verdicts on its nodes.
//
// machine.go decides, from observations, which marks change; pure. observe.go makes an observation of the alerts of a Prometheus. loop.go
// observes and marks until it ends.
package taint

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of devices.
type Kind string

// The kinds of devices.
const (
	GPU  Kind = "GPU"
	RDMA Kind = "RDMA"
)

// Subject is what may be marked: a device of a node or, without a UUID, the devices of a kind.
type Subject struct {
	Node string
	Kind Kind
	UUID string
}

func (s Subject) compare(o Subject) int {
	return cmp.Or(cmp.Compare(s.Node, o.Node), cmp.Compare(s.Kind, o.Kind), cmp.Compare(s.UUID, o.UUID))
}

// Observation is what is known at a time. A subject that is in no list is unknown.
type Observation struct {
	At      time.Time
	Faulty  map[Subject][]string // the verdicts that hold, sorted
	Pending map[Subject]bool     // a verdict may hold soon, or again after a restart of Prometheus
	Judged  map[Subject]bool     // without UUIDs: a fault of the node's devices of this kind would be in Faulty or Pending
}

// Limits are the limits of a Machine.
type Limits struct {
	Set      time.Duration // how long a fault holds before its subject is marked
	Clear    time.Duration // how long it is known to be gone before the mark is removed
	Gap      time.Duration // between observations, above which nothing is known of the time between them
	MaxNodes int           // marked at the same time
}

// Change is a wanted change of a mark.
type Change struct {
	Subject
	Verdicts []string // of the mark; empty: it is removed
}

// Machine remembers since when subjects differ from their marks.
type Machine struct {
	limits Limits
	last   time.Time
	since  map[Subject]time.Time
}

// NewMachine returns a machine that knows nothing yet.
func NewMachine(l Limits) *Machine { return &Machine{limits: l, since: map[Subject]time.Time{}} }

// Step returns the wanted changes of marks, which are given with their verdicts, and the subjects that are not marked because MaxNodes
// nodes are marked. A nil observation says nothing about any subject.
func (m *Machine) Step(o *Observation, marks map[Subject][]string) (changes []Change, refused []Subject) {
	if o == nil {
		clear(m.since)
		return nil, nil
	}
	if gap := o.At.Sub(m.last); gap > m.limits.Gap || gap < 0 {
		clear(m.since)
	}
	m.last = o.At
	var set []Subject
	before := m.since
	m.since = map[Subject]time.Time{}
	for _, s := range subjects(o, marks) {
		verdicts, marked := marks[s]
		faulty := len(o.Faulty[s]) > 0
		switch {
		case faulty && marked && !slices.Equal(verdicts, o.Faulty[s]):
			changes = append(changes, Change{s, o.Faulty[s]})
		case faulty && !marked && m.held(s, before, m.limits.Set):
			set = append(set, s)
		case marked && o.healthy(s) && m.held(s, before, m.limits.Clear):
			changes = append(changes, Change{Subject: s})
		}
	}
	added, refused := m.admit(set, marks, o)
	changes = append(changes, added...)
	for _, c := range changes {
		delete(m.since, c.Subject) // a change that fails is tried again after the whole time
	}
	return changes, refused
}

// held reports whether a subject differs from its mark for this time, and remembers since when.
func (m *Machine) held(s Subject, before map[Subject]time.Time, limit time.Duration) bool {
	since, ok := before[s]
	if !ok {
		since = m.last
	}
	m.since[s] = since
	return m.last.Sub(since) >= limit
}

// healthy reports whether it is known that no verdict holds.
func (o *Observation) healthy(s Subject) bool {
	return len(o.Faulty[s]) == 0 && !o.Pending[s] && o.Judged[Subject{Node: s.Node, Kind: s.Kind}]
}

// admit returns marks for the subjects that waited longest, on at most MaxNodes nodes with the nodes that have marks. The mark of a node
// that is removed in the same step counts.
func (m *Machine) admit(set []Subject, marks map[Subject][]string, o *Observation) (changes []Change, refused []Subject) {
	nodes := map[string]bool{}
	for s := range marks {
		nodes[s.Node] = true
	}
	slices.SortFunc(set, func(a, b Subject) int { return cmp.Or(m.since[a].Compare(m.since[b]), a.compare(b)) })
	for _, s := range set {
		if !nodes[s.Node] && len(nodes) >= m.limits.MaxNodes {
			refused = append(refused, s)
			continue
		}
		nodes[s.Node] = true
		changes = append(changes, Change{s, o.Faulty[s]})
	}
	return changes, refused
}

func subjects(o *Observation, marks map[Subject][]string) []Subject {
	all := map[Subject]bool{}
	for s := range o.Faulty {
		all[s] = true
	}
	for s := range marks {
		all[s] = true
	}
	return slices.SortedFunc(maps.Keys(all), Subject.compare)
}

func (s Subject) String() string {
	return strings.TrimSpace(s.Node + " " + string(s.Kind) + " " + s.UUID)
}
