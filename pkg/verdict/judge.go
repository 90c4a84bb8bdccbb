// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// Input is a refresh.
type Input struct {
	At     time.Time
	Facts  *model.Snapshot
	Shares *attribution.Attribution
	States []model.SourceState
	// Placement is that of Facts and Shares; nil: not known.
	Placement *placement.Refresh
}

// Result is the verdicts of one refresh, the worst first. It does not change.
type Result struct {
	Verdicts []Verdict // at least one, NothingWrong, if anything was judged
	// Omitted is the number of verdicts, and of counters to judge, for which there was no room.
	Omitted int
}

// Judge judges refreshes, one after the other. The zero Judge is ready to use. It is not safe for concurrent use.
type Judge struct {
	round     uint64
	last      time.Time // of the refresh before
	histories histories
	ports     map[portKey]*portState
	legs      map[legKey]*legState
	// management are the HCAs that are found to be for management.
	management map[string]bool
	uses       map[useKey]*use
	worked     map[string]time.Time // when a source or hook last worked
	since      map[foundKey]time.Time
	quiet      time.Time // since when nothing is wrong; zero: something is
}

// foundKey is a condition of a subject.
type foundKey struct {
	condition *Condition
	subject   Subject
}

// finding is a condition that holds in one refresh.
type finding struct {
	foundKey
	evidence []string
	since    time.Time // zero: since the first refresh that found it
}

// round is the judgement of one refresh.
type round struct {
	j *Judge
	Input
	found                            []finding
	deviceCounters, workloadCounters room
	usesRoom                         room
	used                             map[string]bool // HCAs on which workloads have queue pairs
	heldHCAs                         map[string]bool // HCAs that workloads have, used or not
	read                             map[string]bool // HCAs that are read
	downPorts                        map[portKey]bool
	links                            map[portKey][]*model.Link
	bonds                            map[model.PortID]float64      // rates in bits per second
	functions                        map[string]*model.PCIFunction // by address in lower case; set by judgePCI
	omitted                          int
	shared                           []model.SharedCounter // buffer of judgePorts
}

// Update judges a refresh. Its time is not before that of the one before.
func (j *Judge) Update(in Input) Result {
	if j.round++; j.round == 1 {
		j.histories, j.ports, j.uses = histories{}, map[portKey]*portState{}, map[useKey]*use{}
		j.legs = map[legKey]*legState{}
		j.worked, j.since = map[string]time.Time{}, map[foundKey]time.Time{}
	}
	r := &round{
		j: j, Input: in,
		deviceCounters:   room{all: maxCounters},
		workloadCounters: room{perOwner: 2 * maxPerOwner, perNamespace: 4 * maxPerNamespace, all: maxCounters / 4},
		bonds:            model.BondRates(in.Facts.Links),
		usesRoom:         room{perOwner: 8 * maxPerOwner, perNamespace: 8 * maxPerNamespace, all: maxCounters / 4},
	}
	r.judgeMissing()
	r.judgePorts()
	r.judgeGPUs()
	r.judgeLingering()
	r.judgePCI()
	r.judgeLineRate()
	r.judgeWorkloads()
	r.judgeIdle()
	r.judgeSensor()
	j.histories.sweep(j.round)
	j.last = in.At
	return r.result()
}

// find adds a condition of a subject.
func (r *round) find(c *Condition, s Subject, since time.Time, evidence ...string) {
	r.found = append(r.found, finding{foundKey{c, s}, evidence, since})
}

// result makes verdicts of the findings.
func (r *round) result() Result {
	for i := range r.found {
		f := &r.found[i]
		if first, known := r.j.since[f.foundKey]; f.since.IsZero() && known {
			f.since = first
		} else if f.since.IsZero() {
			f.since = r.At
		}
	}
	slices.SortFunc(r.found, worstFirst)
	workloads := room{perOwner: maxPerOwner, perNamespace: maxPerNamespace, all: maxWorkloads}
	devices := room{all: maxDevices}
	since := make(map[foundKey]time.Time, len(r.found))
	out := Result{Verdicts: []Verdict{}}
	for i := range r.found {
		f := &r.found[i]
		if f.subject.Kind == OfWorkload && !workloads.take(&f.subject.Owner) || f.subject.Kind != OfWorkload && !devices.take(nil) {
			r.omitted++
			continue
		}
		first, known := r.j.since[f.foundKey]
		if !known {
			first = r.At
		}
		since[f.foundKey] = first
		if c := f.condition; c.Severity != Info || r.At.Sub(first) >= c.For {
			out.Verdicts = append(out.Verdicts, f.verdict())
		}
	}
	r.j.since = since
	out.Omitted = r.omitted
	r.addQuiet(&out)
	return out
}

// addQuiet adds the verdict that nothing is wrong.
func (r *round) addQuiet(out *Result) {
	switch {
	case len(out.Verdicts) > 0 || out.Omitted > 0 || len(r.States) == 0:
		r.j.quiet = time.Time{}
		return
	case r.j.quiet.IsZero():
		r.j.quiet = r.At
	}
	f := finding{foundKey{nothingWrong, Subject{Kind: OfNode}}, r.judged(), r.j.quiet}
	out.Verdicts = append(out.Verdicts, f.verdict())
}

// judged lists what was judged.
func (r *round) judged() []string {
	active, ports := 0, 0
	for i := range r.Facts.HCAs {
		if r.Facts.HCAs[i].Parent != "" {
			continue
		}
		for j := range r.Facts.HCAs[i].Ports {
			if ports++; r.Facts.HCAs[i].Ports[j].State == stateActive {
				active++
			}
		}
	}
	working := 0
	for _, s := range r.States {
		if s.State == model.StateOK {
			working++
		}
	}
	return []string{
		fmt.Sprintf("%d of %d ports are active", active, ports),
		fmt.Sprintf("%d GPUs", len(r.Facts.GPUs)),
		fmt.Sprintf("%d workloads", max(0, len(r.Shares.Owners)-1)),
		fmt.Sprintf("%d of %d sources work", working, len(r.States)),
	}
}

func (f *finding) verdict() Verdict {
	c := f.condition
	for i, text := range f.evidence {
		f.evidence[i] = shorten(text)
	}
	return Verdict{
		Name: c.Name, Severity: c.Severity, Subject: f.subject, Summary: c.Summary, Evidence: f.evidence,
		Since: f.since, Runbook: c.Runbook(),
	}
}

// worstFirst compares findings: by severity, then the older one first, then by condition and subject.
func worstFirst(a, b finding) int {
	return cmp.Or(
		cmp.Compare(slices.Index(Severities, a.condition.Severity), slices.Index(Severities, b.condition.Severity)),
		a.since.Compare(b.since),
		cmp.Compare(slices.Index(Conditions, a.condition), slices.Index(Conditions, b.condition)),
		strings.Compare(a.subject.String(), b.subject.String()),
		strings.Compare(a.subject.Owner.ContainerID, b.subject.Owner.ContainerID),
		strings.Compare(a.subject.UUID, b.subject.UUID),
	)
}
