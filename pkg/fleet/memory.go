// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Memory for answers, in bytes. A state has twice maxState: for the shown state and the next state. Each of the
// maxVisits searches and jobs in progress or being shown has maxQuestion, and all kept answers have maxKeptBytes. This
// adds up to MaxMemory; with a limit of 512 MiB, the deployments have the rest for pages, connections and the garbage
// collector. A test compares the charges with the heap.
const (
	maxState     = 80 << 20
	maxQuestion  = 8 << 20
	maxKeptBytes = 16 << 20

	MaxMemory = 2*maxState + maxVisits*maxQuestion + maxKeptBytes
)

// The charges for parts of answers.
const (
	sampleBytes = 40  // a sample of 16 bytes, in a slice that grows by a quarter and is copied
	labelBytes  = 32  // two strings
	setBytes    = 144 // a label set with its map entry
	runBytes    = 32  // a run of 24 bytes, in a slice that grows
)

// joinedBytes are charged for each series of a query, for what read.go, job.go and search.go make of it: a node in a
// list, a map and the JSON, a GPU, an HCA.
var joinedBytes = map[string]int{
	"nodes": 900, "nodes_before": 900, "alerts": 900, "job_members": 900, "job_transmit": 32, "job_receive": 32, "job_outlier": 16,
	"transmit": 100, "receive": 100, "transmit_attributed": 100, "receive_attributed": 100,
	"gpus": 300, "ports": 350, "functions": 100,
	"rail_transmit": 16, "rail_receive": 16, "rail_errors": 16, "rail_lost": 16, "rail_pause": 16,
	"members": 900, "members_lost": 900, "events": 900, "strip_gpus": 600, "strip_hcas": 600,
	"member_transmit": 32, "member_receive": 32, "found_workloads": 400, "found_gpus": 400, "found_devices": 400,
}

// alertLabelBytes are charged for each label of an alert, which is in a map.
const alertLabelBytes = 80

type sample struct {
	labels *labelSet
	value  float64
}

// labelSet is the labels of a series. Its key holds their bytes.
type labelSet struct {
	key    string
	pairs  []pair
	series int // series with these labels
}

type pair struct{ name, value string }

func (l *labelSet) bytes() int { return setBytes + labelBytes*len(l.pairs) + len(l.key)*9/8 } // of a size class of the allocator

func label(s sample, name string) string {
	for _, l := range s.labels.pairs {
		if l.name == name {
			return l.value
		}
	}
	return ""
}

// store holds the series of some answers. Answers about the same thing share labels.
type store struct {
	most int

	mu   sync.Mutex
	used int
	sets map[string]*labelSet
}

func newStore(most int) *store { return &store{most: most, sets: map[string]*labelSet{}} }

type vector struct {
	in      *store
	name    string
	samples []sample
	runs    [][]run
	charged int      // without label sets
	names   []string // label names, and key below: reused for each series
	key     []byte
}

// add adds a series. It fails without memory for it.
func (v *vector) add(metric map[string]string, value float64) error {
	return v.addSized(metric, value, 0)
}

// addRuns adds a series over a time.
func (v *vector) addRuns(metric map[string]string, runs []run) error {
	if err := v.addSized(metric, 0, runBytes*len(runs)); err != nil {
		return err
	}
	v.runs = append(v.runs, runs)
	return nil
}

// addSized adds a series that has more bytes.
func (v *vector) addSized(metric map[string]string, value float64, more int) error {
	v.names = slices.AppendSeq(v.names[:0], maps.Keys(metric))
	slices.Sort(v.names)
	v.key = v.key[:0]
	for _, name := range v.names {
		for _, text := range []string{name, metric[name]} {
			v.key = append(binary.AppendUvarint(v.key, uint64(len(text))), text...)
		}
	}
	bytes := sampleBytes + joinedBytes[v.name] + more
	if v.name == "alerts" || v.name == "events" {
		bytes += alertLabelBytes * len(v.names)
	}
	s := v.in
	s.mu.Lock()
	defer s.mu.Unlock()
	set, needed := s.sets[string(v.key)], bytes
	if set == nil {
		set = newLabelSet(string(v.key), len(v.names))
		needed += set.bytes()
	}
	if s.used+needed > s.most {
		return fmt.Errorf("the answers need more than the %d MiB of memory that they have", s.most>>20)
	}
	s.sets[set.key] = set
	s.used += needed
	v.charged += bytes
	set.series++
	v.samples = append(v.samples, sample{set, value})
	return nil
}

// drop releases the memory of an incomplete answer.
func (v *vector) drop() {
	s := v.in
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= v.charged
	for _, one := range v.samples {
		if one.labels.series--; one.labels.series == 0 {
			delete(s.sets, one.labels.key)
			s.used -= one.labels.bytes()
		}
	}
	v.samples, v.runs, v.charged = nil, nil, 0
}

// newLabelSet returns the n labels of a key, as substrings.
func newLabelSet(key string, n int) *labelSet {
	rest := key
	next := func() string {
		size, used := binary.Uvarint([]byte(rest[:min(len(rest), binary.MaxVarintLen64)]))
		text := rest[used : used+int(size)]
		rest = rest[used+int(size):]
		return text
	}
	out := &labelSet{key: key, pairs: make([]pair, n)}
	for i := range out.pairs {
		out.pairs[i].name = next()
		out.pairs[i].value = next()
	}
	return out
}
