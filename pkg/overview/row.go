// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Kind is the kind of a device.
type Kind string

// The kinds of devices.
const (
	HCA Kind = "hca"
	GPU Kind = "gpu"
)

// Row is what a workload uses of a device. An empty workload is the unattributed share. Null is unknown.
type Row struct {
	identity.Owner
	JobKind string `json:"job_kind"`
	Job     string `json:"job"`

	Kind   Kind   `json:"kind"`
	Device string `json:"device"` // name of the HCA, UUID of the GPU
	GPU    string `json:"gpu_id"` // as in metrics; empty for an HCA
	Vendor string `json:"vendor"` // of a GPU

	Memory      *float64 `json:"memory_used_bytes"`
	MemoryTotal *float64 `json:"memory_total_bytes"` // of the GPU
	// Utilization is the busy ratio of Engine, the GPU engine that the workload uses most.
	Utilization *float64 `json:"utilization_ratio"`
	Engine      string   `json:"engine"`
	Processes   *uint64  `json:"processes"`
	Allocated   bool     `json:"allocated"`

	QueuePairs       *uint64 `json:"queue_pairs"`
	CompletionQueues *uint64 `json:"completion_queues"`
	MemoryRegions    *uint64 `json:"memory_regions"`
	// Stalled are the queue pairs with outstanding work requests and no completion for a while; null if not traced.
	Stalled *uint64 `json:"stalled_queue_pairs"`
	// Registered is registered memory by kind: host, gpu, ….
	Registered map[model.Memory]uint64 `json:"registered_bytes"`
	// Bytes are since the sensor's start, by direction and method.
	Bytes []Bytes `json:"bytes"`
	// Gaps are why bytes are not counted, empty if all are counted, null if unknown.
	Gaps []model.Gap `json:"missing"`
	// Unattributed is the upper limit of the device's unattributed bytes that the workload may have moved since the
	// sensor's start: if nothing else is missing, its own bytes lack at most this. Null without a limit, or if unknown.
	Unattributed *uint64 `json:"unattributed_bytes_limit"`
	// Errors are failed verbs since the sensor's start, without queries, which fail for every missing entry.
	Errors *uint64 `json:"verbs_errors"`
	// CompletionErrors are completions with an error since the sensor's start; null if not counted.
	CompletionErrors *uint64 `json:"completion_errors"`

	// Values of the last interval, null without an interval.
	Transmit      *Rate     `json:"transmit"`
	Receive       *Rate     `json:"receive"`
	Verbs         *float64  `json:"verbs_per_second"`
	VerbsP99      *Quantile `json:"verbs_p99"`
	CompletionP99 *Quantile `json:"completion_p99"`

	counters *counters // of an HCA; nil if all are 0
}

// Bytes is the bytes of a direction that a method counted.
type Bytes struct {
	Direction model.Direction `json:"direction"`
	Method    model.Method    `json:"method"`
	// Estimate: not a count, but a part of the device's bytes.
	Estimate bool   `json:"estimate"`
	Bytes    uint64 `json:"bytes"`
}

// Rate is a number of bytes per second.
type Rate struct {
	PerSecond float64 `json:"bytes_per_second"`
	Estimate  bool    `json:"estimate"`
}

// Quantile is a percentile of durations.
type Quantile struct {
	Seconds float64 `json:"seconds"`
	Above   bool    `json:"above"` // the percentile is longer than Seconds, the highest bound of a bucket
}

// Key identifies a row.
type Key struct{ Workload, ContainerID, Device string }

// Key returns the key of the row.
func (r *Row) Key() Key { return Key{r.Workload, r.ContainerID, r.Device} }

// Used returns the row's memory: used on a GPU, registered on an HCA.
func (r *Row) Used() (bytes float64, known bool) {
	if r.Kind == GPU {
		if r.Memory == nil {
			return 0, false
		}
		return *r.Memory, true
	}
	for _, n := range r.Registered {
		bytes += float64(n)
	}
	return bytes, r.Registered != nil
}

// Rows returns the rows of a refresh without rates, sorted by device. Each device's unattributed share is last.
func Rows(facts *model.Snapshot, shares *attribution.Attribution) []Row {
	t := table{shares: shares, at: map[rowKey]int{}, jobs: map[int]model.Job{}}
	for i := range shares.Infos {
		t.jobs[shares.Infos[i].Owner] = shares.Infos[i].Job
	}
	for i := range facts.HCAs {
		t.hca(0, facts.HCAs[i].Name)
	}
	t.addObjects()
	t.addCounters()
	t.addGPUs()
	slices.SortFunc(t.rows, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Vendor, b.Vendor), compareNumbers(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device),
			compareOwners(a.Workload, b.Workload), cmp.Compare(a.ContainerID, b.ContainerID),
		)
	})
	return t.rows
}

// compareOwners compares names of workloads. The unattributed share is last.
func compareOwners(a, b string) int {
	if (a == "") != (b == "") {
		return cmp.Compare(b, a)
	}
	return cmp.Compare(a, b)
}

// compareNumbers compares GPU numbers: 2, 10, 10:1.
func compareNumbers(a, b string) int {
	first, _, _ := strings.Cut(a, ":")
	second, _, _ := strings.Cut(b, ":")
	return cmp.Or(cmp.Compare(len(first), len(second)), cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

type rowKey struct {
	owner  int
	device string
}

type table struct {
	shares *attribution.Attribution
	rows   []Row
	at     map[rowKey]int
	jobs   map[int]model.Job
}

func (t *table) row(owner int, kind Kind, device string) *Row {
	k := rowKey{owner, device}
	i, ok := t.at[k]
	if !ok {
		i = len(t.rows)
		t.at[k] = i
		var o identity.Owner
		if owner < len(t.shares.Owners) {
			o = t.shares.Owners[owner]
		}
		t.rows = append(t.rows, Row{
			Owner: o, JobKind: t.jobs[owner].Kind, Job: t.jobs[owner].Name, Kind: kind, Device: device,
		})
	}
	return &t.rows[i]
}

func (t *table) hca(owner int, device string) *Row { return t.row(owner, HCA, device) }

func (t *table) counters(owner int, device string) *counters {
	r := t.hca(owner, device)
	if r.counters == nil {
		r.counters = &counters{}
	}
	return r.counters
}

func (t *table) addObjects() {
	for i := range t.shares.Objects {
		s := &t.shares.Objects[i]
		var to **uint64
		r := t.hca(s.Owner, s.Device)
		switch s.Type {
		case model.QP:
			to = &r.QueuePairs
		case model.CQ:
			to = &r.CompletionQueues
		case model.MR:
			to = &r.MemoryRegions
		default:
			continue
		}
		addTo(to, s.Current)
	}
	for i := range t.shares.Outstanding {
		if s := &t.shares.Outstanding[i]; s.Known() {
			addTo(&t.hca(s.Owner, s.Device).Stalled, s.Stalled)
		}
	}
	for i := range t.shares.Registered {
		s := &t.shares.Registered[i]
		r := t.hca(s.Owner, s.Device)
		if r.Registered == nil {
			r.Registered = map[model.Memory]uint64{}
		}
		r.Registered[s.Memory] += s.Bytes
	}
	for i := range t.shares.Coverage {
		s := &t.shares.Coverage[i]
		r := t.hca(s.Owner, s.Device)
		if r.Gaps == nil {
			r.Gaps, r.Unattributed = []model.Gap{}, t.unattributed(s.Owner, s.Device)
		}
		if s.Gap != "" {
			r.Gaps = append(r.Gaps, s.Gap)
		}
	}
}

// unattributed returns the limit of the bytes that a workload with coverage misses, nil without a limit.
func (t *table) unattributed(owner int, device string) *uint64 {
	limit := new(uint64)
	for i := range t.shares.Missed {
		if s := &t.shares.Missed[i]; s.Owner == owner && s.Device == device {
			if s.Unlimited {
				return nil
			}
			*limit = s.Bytes
		}
	}
	return limit
}

func (t *table) addCounters() {
	for i := range t.shares.Traffic {
		s := &t.shares.Traffic[i]
		r := t.hca(s.Owner, s.Device)
		r.Bytes = append(r.Bytes, Bytes{s.Direction, s.Method, s.Method == model.MethodSurvey, s.Bytes})
	}
	for i := range t.shares.Verbs {
		s := &t.shares.Verbs[i]
		t.counters(s.Owner, s.Key.Device).verbs.Add(&s.Value)
	}
	for i := range t.shares.Completions {
		s := &t.shares.Completions[i]
		t.counters(s.Owner, s.Key.Device).completions.Add(&s.Value)
	}
	for i := range t.shares.VerbErrors {
		if s := &t.shares.VerbErrors[i]; !strings.HasPrefix(s.Key.Verb, "query_") {
			addTo(&t.hca(s.Owner, s.Key.Device).Errors, uint64(s.Value))
		}
	}
	for i := range t.shares.CompletionErrors {
		if s := &t.shares.CompletionErrors[i]; !s.Resting {
			addTo(&t.hca(s.Owner, s.Key.Device).CompletionErrors, uint64(s.Value))
		}
	}
	if t.shares.VerbErrors == nil {
		return
	}
	for i := range t.rows { // counted, without errors
		if t.rows[i].Errors == nil && t.rows[i].Kind == HCA {
			addTo(&t.rows[i].Errors, 0)
		}
	}
}

func (t *table) addGPUs() {
	for i := range t.shares.GPUs {
		s := &t.shares.GPUs[i]
		r := t.row(s.Owner, GPU, s.GPU.UUID)
		r.GPU, r.Vendor = s.GPU.ID, string(s.GPU.Vendor)
		r.Memory, r.MemoryTotal = known(s.Memory), known(s.GPU.Memory.Total)
		r.Allocated = s.Assigned != nil && s.Assigned.Allocated != ""
		if s.Listed {
			r.Processes = &s.Processes
		}
		for j := range s.Engines {
			if e := &s.Engines[j]; r.Utilization == nil || e.Value > *r.Utilization {
				r.Utilization, r.Engine = &e.Value, e.Name
			}
		}
	}
}

func known(v model.Optional) *float64 {
	if !v.Known {
		return nil
	}
	return &v.Value
}

func addTo(sum **uint64, n uint64) {
	if *sum == nil {
		*sum = new(uint64)
	}
	**sum += n
}
