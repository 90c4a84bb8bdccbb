// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// Input is a refresh.
type Input struct {
	At     time.Time
	Facts  *model.Snapshot
	Shares *attribution.Attribution
	States []model.SourceState
	// Placement belongs to Facts and Shares; nil: unknown.
	Placement *placement.Refresh
}

// Result is the verdicts of one refresh, the worst first. It does not change.
type Result struct {
	Verdicts []Verdict // at least one, NothingWrong, if anything was judged
	// Omitted is the number of verdicts, and of counters to judge, without room.
	Omitted int
	Judged  Judged
}

// Judged is the number of what was judged.
type Judged struct {
	Ports     int `json:"ports"`
	Active    int `json:"active_ports"`
	GPUs      int `json:"gpus"`
	Workloads int `json:"workloads"`
	Sources   int `json:"sources"`
	Working   int `json:"working_sources"`
}

// Judge judges refreshes, one after the other. The zero Judge is ready to use. It is not safe for concurrent use.
type Judge struct {
	// StallAfter is the time without a launch after which a job stands; default 30 s.
	StallAfter time.Duration

	growth growth
	ports  map[portKey]*portState
	legs   map[legKey]*legState
	roles  *hcaRoles
	uses   map[useKey]*use
	jobs   map[string]*job
	worked map[workedKey]time.Time // when a source or hook last worked
	since  map[foundKey]first
	quiet  time.Time // since when nothing is wrong; zero: something is wrong
	found  []finding // reused buffer
}

// foundKey is a condition of a subject.
type foundKey struct {
	condition *Condition
	subject   Subject
}

// first is when a refresh first found a condition, with the number of the last refresh that found it.
type first struct {
	at    time.Time
	round uint64
}

// finding is a condition that holds in one refresh.
type finding struct {
	foundKey
	evidence Evidence
	since    time.Time // zero: since the first refresh that found it
}

// round is what the rules of all subjects share while they judge one refresh.
type round struct {
	Input
	*growth
	found   []finding
	omitted int // number of verdicts and devices without room
}

// Update judges a refresh. Its time must not be before the time of the previous refresh.
func (j *Judge) Update(in Input) Result {
	if j.since == nil {
		j.roles, j.jobs = newRoles(), map[string]*job{}
		j.ports, j.legs, j.uses = map[portKey]*portState{}, map[legKey]*legState{}, map[useKey]*use{}
		j.worked, j.since = map[workedKey]time.Time{}, map[foundKey]first{}
	}
	j.growth.begin(in.At)
	j.roles.update(&in)
	r, functions := &round{Input: in, growth: &j.growth, found: j.found}, functionsOf(in.Facts.PCI)
	missingRules{r}.judge()
	(&portRules{round: r, hcaRoles: j.roles, ports: j.ports, legs: j.legs}).judge()
	gpuRules{r}.judge()
	lingerRules{r, j.roles}.judge()
	pcieRules{r, j.roles, functions}.judge()
	lineRateRules{r, j.roles, functions, model.BondRates(in.Facts.Links)}.judge() // after the rules that find the causes
	workloadRules{r}.judge()
	if in.Shares.Communicators != nil {
		newJobRules(r, j).judge() // after the rules that find the faults of devices
	}
	newIdleRules(r, j.uses).judge()
	sensorRules{r, j.worked}.judge()
	j.growth.end()
	out := j.result(r)
	clear(r.found)
	j.found = r.found[:0]
	return out
}

// find adds a condition of a subject.
func (r *round) find(c *Condition, s Subject, since time.Time, evidence ...string) {
	r.findLater(c, s, since, func() []string { return evidence })
}

// findLater adds a condition of a subject. What evidence reads must not change.
func (r *round) findLater(c *Condition, s Subject, since time.Time, evidence Evidence) {
	r.found = append(r.found, finding{foundKey{c, s}, evidence, since})
}

// has reports whether a condition of a subject was found.
func (r *round) has(c *Condition, s Subject) bool {
	return slices.ContainsFunc(r.found, func(f finding) bool { return f.foundKey == foundKey{c, s} })
}

// within reports whether a moment is at most as long ago as the limit of a condition; false for the zero time.
func (r *round) within(t time.Time, c *Condition) bool {
	return !t.IsZero() && r.At.Sub(t).Seconds() < c.limit(0)
}

// owned returns a workload as a subject.
func (r *round) owned(owner int) (Subject, *identity.Owner) {
	o := &r.Shares.Owners[owner]
	return Subject{Kind: OfWorkload, Owner: *o}, o
}

// result makes verdicts of the findings.
func (j *Judge) result(r *round) Result {
	for i := range r.found {
		f := &r.found[i]
		if first, known := j.since[f.foundKey]; f.since.IsZero() && known {
			f.since = first.at
		} else if f.since.IsZero() {
			f.since = r.At
		}
	}
	slices.SortFunc(r.found, worstFirst)
	workloads := room{perOwner: maxPerOwner, perNamespace: maxPerNamespace, all: maxWorkloads}
	devices := room{all: maxDevices}
	out := Result{Verdicts: make([]Verdict, 0, min(len(r.found), maxWorkloads+maxDevices)), Judged: r.judged()}
	for i := range r.found {
		f := &r.found[i]
		if f.subject.Kind == OfWorkload && !workloads.take(&f.subject.Owner) || f.subject.Kind != OfWorkload && !devices.take(nil) {
			r.omitted++
			continue
		}
		first, known := j.since[f.foundKey]
		if !known {
			first.at = r.At
		}
		first.round = r.number
		j.since[f.foundKey] = first
		if c := f.condition; c.Severity != Info || r.At.Sub(first.at) >= c.For {
			out.Verdicts = append(out.Verdicts, f.verdict())
		}
	}
	maps.DeleteFunc(j.since, func(_ foundKey, f first) bool { return f.round != r.number })
	out.Omitted = r.omitted + r.growth.omitted
	j.addQuiet(r, &out)
	return out
}

func (j *Judge) addQuiet(r *round, out *Result) {
	switch {
	case len(out.Verdicts) > 0 || out.Omitted > 0 || len(r.States) == 0:
		j.quiet = time.Time{}
		return
	case j.quiet.IsZero():
		j.quiet = r.At
	}
	f := finding{foundKey{nothingWrong, Subject{Kind: OfNode}}, out.Judged.Texts, j.quiet}
	out.Verdicts = append(out.Verdicts, f.verdict())
}

// judged counts what is judged. The GPUs include the instances of split GPUs.
func (in *Input) judged() Judged {
	n := Judged{GPUs: len(in.Facts.GPUs), Workloads: max(0, len(in.Shares.Owners)-1), Sources: len(in.States)}
	for i := range in.Facts.HCAs {
		if in.Facts.HCAs[i].Parent != "" {
			continue
		}
		for j := range in.Facts.HCAs[i].Ports {
			if n.Ports++; in.Facts.HCAs[i].Ports[j].State == stateActive {
				n.Active++
			}
		}
	}
	for _, s := range in.States {
		if s.State == model.StateOK {
			n.Working++
		}
	}
	return n
}

// Texts are the numbers as evidence.
func (n Judged) Texts() []string {
	return []string{
		fmt.Sprintf("%d of %d ports are active", n.Active, n.Ports),
		fmt.Sprintf("%d GPUs", n.GPUs),
		fmt.Sprintf("%d workloads", n.Workloads),
		fmt.Sprintf("%d of %d sources work", n.Working, n.Sources),
	}
}

func (f *finding) verdict() Verdict {
	c := f.condition
	return Verdict{
		Name: c.Name, Severity: c.Severity, Subject: f.subject, Summary: c.Summary, Evidence: f.evidence,
		Since: f.since, Runbook: runbookOf[c],
	}
}

// worstFirst compares findings: by severity, age (older first), condition and subject.
func worstFirst(a, b finding) int {
	if a, b := a.condition.Severity, b.condition.Severity; a != b {
		return cmp.Compare(slices.Index(Severities, a), slices.Index(Severities, b))
	}
	if older := a.since.Compare(b.since); older != 0 {
		return older
	}
	if a.condition != b.condition {
		return cmp.Compare(slices.Index(Conditions, a.condition), slices.Index(Conditions, b.condition))
	}
	if name := compareNames(&a.subject, &b.subject); name != 0 {
		return name
	}
	return cmp.Or(
		strings.Compare(a.subject.Owner.ContainerID, b.subject.Owner.ContainerID),
		strings.Compare(a.subject.UUID, b.subject.UUID),
	)
}
