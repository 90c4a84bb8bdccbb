// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// The size of the memory: 1,024 rows and devices with 60 values of two figures, earlier counters and names take less
// than 2 MB (TestMemory).
const (
	Step  = 15 * time.Second
	Steps = 60 // a quarter of an hour

	maxEntries  = 1024
	minInterval = 5 * time.Second // between the two readings of a rate
	maxAge      = time.Minute     // how long rates of a row are kept
)

// Figure is a figure of a series.
type Figure string

// The figures of an HCA and of a GPU.
const (
	Transmit    Figure = "transmit_bytes_per_second"
	Receive     Figure = "receive_bytes_per_second"
	Utilization Figure = "utilization_ratio"
	Memory      Figure = "memory_used_bytes"
)

// Recorder remembers figures of earlier refreshes. It is safe for concurrent use.
type Recorder struct {
	rings bool

	mu       sync.Mutex
	at       time.Time // of the last reading
	interval time.Duration
	slot     int64 // the last step of the rings, since 1970
	entries  map[entryKey]*entry
	left     int // rows and devices of the last reading without room
}

type entryKey struct {
	Key
	whole bool // the device itself
}

type entry struct {
	seen        time.Time
	kind        Kind
	gpu, vendor string // of a GPU: number and vendor

	bytes              []Bytes
	calls, done        uint64 // verbs and completions
	verbs, completions sparse
	rates              rates
	ports              map[int]portRates  // of an HCA itself, by number
	rings              *[2][Steps]float32 // NaN: unknown
}

// portRates are the counters of a port and their growth.
type portRates struct {
	bytes             []Bytes
	transmit, receive *Rate
}

type rates struct {
	transmit, receive       *Rate
	calls                   *float64
	verbsP99, completionP99 *Quantile
}

// NewRecorder returns a Recorder. Without rings it only keeps what rates need.
func NewRecorder(rings bool) *Recorder {
	return &Recorder{rings: rings, entries: map[entryKey]*entry{}}
}

// Observe adds a refresh, unless the last refresh was added less than minInterval before.
func (r *Recorder) Observe(at time.Time, facts *model.Snapshot, shares *attribution.Attribution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.IsZero() || at.Sub(r.at) < minInterval {
		return
	}
	if r.interval = at.Sub(r.at); r.at.IsZero() {
		r.interval = 0
	}
	r.at = at
	r.advance(at.Unix() / int64(Step/time.Second))
	r.left = 0
	r.addDevices(facts, shares)
	rows := Rows(facts, shares)
	for i := range rows {
		r.add(&rows[i])
	}
	for k, e := range r.entries {
		if e.rings == nil && at.Sub(e.seen) > maxAge || at.Sub(e.seen) > Step*Steps {
			delete(r.entries, k)
		}
	}
}

// advance clears the steps between the last reading and this reading, and all steps if the clock was set back.
func (r *Recorder) advance(slot int64) {
	from := slot - Steps + 1
	if slot >= r.slot {
		from = max(from, r.slot+1)
	}
	r.slot = slot
	for _, e := range r.entries {
		if e.rings == nil {
			continue
		}
		for s := from; s <= slot; s++ {
			e.rings[0][s%Steps], e.rings[1][s%Steps] = unknown, unknown
		}
	}
}

var unknown = float32(math.NaN())

// entry returns the entry of a key, nil without room. since is the time since it was last seen, 0 if it is new.
func (r *Recorder) entry(k entryKey, kind Kind, gpu, vendor string) (e *entry, since time.Duration) {
	e = r.entries[k]
	if e == nil {
		if len(r.entries) >= maxEntries {
			r.left++
			return nil, 0
		}
		e = &entry{kind: kind, gpu: gpu, vendor: vendor}
		if r.rings {
			e.rings = &[2][Steps]float32{}
			for i := range Steps {
				e.rings[0][i], e.rings[1][i] = unknown, unknown
			}
		}
		r.entries[k] = e
	} else {
		since = r.at.Sub(e.seen)
	}
	e.seen = r.at
	return e, since
}

func (e *entry) set(slot int64, first, second *float64) {
	if e.rings == nil {
		return
	}
	for i, v := range []*float64{first, second} {
		if v != nil {
			e.rings[i][slot%Steps] = float32(*v)
		}
	}
}

func (r *Recorder) add(row *Row) {
	e, since := r.entry(entryKey{row.Key(), false}, row.Kind, row.GPU, row.Vendor)
	if e == nil {
		return
	}
	if row.Kind == GPU {
		e.set(r.slot, row.Utilization, row.Memory)
		return
	}
	c := row.counters
	if c == nil {
		c = &none
	}
	if c.verbs.Count < e.calls {
		e.calls, e.verbs = 0, sparse{} // the counter was reset
	}
	if c.completions.Count < e.done {
		e.done, e.completions = 0, sparse{}
	}
	if since > 0 {
		seconds := since.Seconds()
		calls := float64(c.verbs.Count-e.calls) / seconds
		e.rates = rates{
			transmit: bytesOf(model.Transmit, row.Bytes, e.bytes, seconds),
			receive:  bytesOf(model.Receive, row.Bytes, e.bytes, seconds),
			calls:    &calls,
		}
		if c.verbs.Count > e.calls {
			e.rates.verbsP99 = p99(growth(c.verbs.Buckets[:], e.verbs), 1, model.HistogramMinExp)
		}
		if c.completions.Count > e.done {
			e.rates.completionP99 = p99(growth(c.completions.Buckets[:], e.completions), model.FineOctave, model.FineMinExp)
		}
		e.set(r.slot, perSecond(e.rates.transmit), perSecond(e.rates.receive))
	}
	e.bytes, e.calls, e.done = slices.Clip(row.Bytes), c.verbs.Count, c.completions.Count
	e.verbs, e.completions = sparseOf(c.verbs.Buckets[:]), sparseOf(c.completions.Buckets[:])
}

func perSecond(r *Rate) *float64 {
	if r == nil {
		return nil
	}
	return &r.PerSecond
}

// addDevices adds the figures of whole devices: bytes of HCA ports, and load of GPUs.
func (r *Recorder) addDevices(facts *model.Snapshot, shares *attribution.Attribution) {
	for i := range facts.HCAs {
		h := &facts.HCAs[i]
		bytes := portBytes(h, h.Ports)
		e, since := r.entry(entryKey{Key{Device: h.Name}, true}, HCA, "", "")
		if e != nil {
			e.ports = ratesOf(h, e.ports, since)
		}
		if e == nil || bytes == nil {
			continue
		}
		if since > 0 {
			e.rates.transmit = bytesOf(model.Transmit, bytes, e.bytes, since.Seconds())
			e.rates.receive = bytesOf(model.Receive, bytes, e.bytes, since.Seconds())
			e.set(r.slot, perSecond(e.rates.transmit), perSecond(e.rates.receive))
		}
		e.bytes = bytes
	}
	for i := range shares.GPUFigures {
		f := &shares.GPUFigures[i]
		if e, _ := r.entry(entryKey{Key{Device: f.GPU.UUID}, true}, GPU, f.GPU.ID, string(f.GPU.Vendor)); e != nil {
			e.set(r.slot, known(f.GPU.Utilization), known(f.Memory))
		}
	}
}

// ratesOf returns the counters of an HCA's ports with the growth since last. A port that had no counters has no rates.
func ratesOf(h *model.HCA, last map[int]portRates, since time.Duration) map[int]portRates {
	ports := make(map[int]portRates, len(h.Ports))
	for i := range h.Ports {
		number := h.Ports[i].Number
		now, before := portRates{bytes: portBytes(h, h.Ports[i:i+1])}, last[number]
		if since > 0 && before.bytes != nil {
			now.transmit = bytesOf(model.Transmit, now.bytes, before.bytes, since.Seconds())
			now.receive = bytesOf(model.Receive, now.bytes, before.bytes, since.Seconds())
		}
		ports[number] = now
	}
	return ports
}

// addPortRates adds the rates of the last interval to the ports of HCAs.
func (r *Recorder) addPortRates(hcas []Device) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range hcas {
		e := r.entries[entryKey{Key{Device: hcas[i].Device}, true}]
		if e == nil {
			continue
		}
		for j := range hcas[i].Ports {
			p := &hcas[i].Ports[j]
			p.Transmit, p.Receive = e.ports[p.Number].transmit, e.ports[p.Number].receive
		}
	}
}

// portBytes returns the bytes that ports of an HCA counted; nil without counters.
func portBytes(h *model.HCA, ports []model.Port) []Bytes {
	var sums [2]uint64
	counted := false
	var buffer [model.SharedCounters]model.SharedCounter
	for i := range ports {
		for _, c := range h.PortCounters(buffer[:0], &ports[i]) {
			switch c.Name {
			case model.TransmitBytes:
				sums[0], counted = sums[0]+c.Value, true
			case model.ReceiveBytes:
				sums[1], counted = sums[1]+c.Value, true
			}
		}
	}
	if !counted {
		return nil
	}
	return []Bytes{
		{Direction: model.Transmit, Method: model.MethodPort, Bytes: sums[0]},
		{Direction: model.Receive, Method: model.MethodPort, Bytes: sums[1]},
	}
}
