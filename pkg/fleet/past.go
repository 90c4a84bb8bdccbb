// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// The past of a job, as strip_gpus, strip_hcas and events ask for it.
const (
	// PastRange is how far a report looks back.
	PastRange = 6 * time.Hour
	stripStep = 10 * time.Minute
	eventStep = 2 * time.Minute
	// maxStrips bounds the members with strips, maxEvents the alerts of a report.
	maxStrips = 64
	maxEvents = 500
	// maxPast is the memory for the answers, a part of maxQuestion.
	maxPast = 2 << 20
)

var pastQueries = []string{"events", "strip_gpus", "strip_hcas"}

// run is equal values of a series over a time.
type run struct {
	from, to int64 // in milliseconds
	value    float64
}

// runsOf joins equal neighbors. A gap of more than a strip's step ends a run.
func runsOf(values []model.SamplePair) []run {
	var out []run
	for _, v := range values {
		at, value := int64(v.Timestamp), float64(v.Value)
		if n := len(out); n > 0 && out[n-1].value == value && at-out[n-1].to <= stripStep.Milliseconds() {
			out[n-1].to = at
		} else {
			out = append(out, run{at, at, value})
		}
	}
	return slices.Clip(out)
}

// Event is an alert that fired.
type Event struct {
	Alert
	Until time.Time `json:"until"` // when it was last seen, to two minutes
}

// anyOf returns a pattern that matches the names and nothing else.
func anyOf(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return strings.Join(quoted, "|")
}

// firstNodes are the nodes of the first members.
func (r *JobReport) firstNodes() []string {
	var out []string
	for i := range r.Members[:min(len(r.Members), maxStrips)] {
		out = append(out, r.Members[i].Node)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// addPast adds strips of the first members (before verdicts sort them), and past events.
func (r *JobReport) addPast(a *answers, now time.Time) {
	begin := now.Add(-PastRange).Truncate(stripStep).Add(stripStep) // a subquery's steps are multiples
	r.Past = Past{Begin: begin.UTC(), StepSeconds: stripStep.Seconds(), Members: min(len(r.Members), maxStrips)}
	type key struct{ instance, workload, id string }
	gpus, hcas := map[key][]run{}, map[string][]run{}
	for i, runs := range a.runs["strip_gpus"] {
		s := a.vectors["strip_gpus"][i]
		gpus[key{label(s, "instance"), label(s, "workload"), label(s, "container_id")}] = runs
	}
	for i, runs := range a.runs["strip_hcas"] {
		hcas[label(a.vectors["strip_hcas"][i], "instance")] = runs
	}
	for i := range r.Members[:r.Past.Members] {
		m := &r.Members[i]
		m.GPUUse = strip(gpus[key{m.Node, m.Workload, m.ContainerID}], begin, now)
		m.HCAUse = strip(hcas[m.Node], begin, now)
	}
	if _, ok := a.vectors["events"]; ok {
		r.addEvents(a, now)
	}
}

// strip returns the value at each step; nil where there is no number.
func strip(runs []run, begin, end time.Time) []*float64 {
	out := make([]*float64, end.Sub(begin)/stripStep+1)
	for _, one := range runs {
		for at := one.from; at <= one.to; at += stripStep.Milliseconds() {
			after := at - begin.UnixMilli()
			if i := after / stripStep.Milliseconds(); after >= 0 && i < int64(len(out)) && finite(one.value) {
				out[i] = new(one.value)
			}
		}
	}
	return out
}

// addEvents lists the alerts that fired for the job and do not fire now, the latest first.
func (r *JobReport) addEvents(a *answers, now time.Time) {
	type episode struct {
		run
		of sample
	}
	var all []episode
	for i, runs := range a.runs["events"] {
		for _, one := range runs {
			if now.Sub(time.UnixMilli(one.to)) > 2*eventStep && finite(one.value) { // others still fire, or have just ended
				all = append(all, episode{one, a.vectors["events"][i]})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b episode) int { return cmp.Compare(b.to, a.to) })
	r.Events = []Event{}
	for _, one := range all {
		e := Event{alertsOf([]sample{{one.of.labels, one.value}})[0], time.UnixMilli(one.to).UTC()}
		switch {
		case len(r.index.of(&e.Alert)) == 0:
		case len(r.Events) < maxEvents:
			r.Events = append(r.Events, e)
		default:
			r.OmittedEvents++
		}
	}
}
