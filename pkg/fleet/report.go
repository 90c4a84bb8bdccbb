// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// JobReport is what is known about a job, for the person who runs it. Nil is unknown.
type JobReport struct {
	At       time.Time `json:"at"`
	Job      Job       `json:"job"`
	Summary  string    `json:"summary"`  // one sentence
	Severity Severity  `json:"severity"` // of the summary; empty: nothing is known to be wrong
	Unknown  []string  `json:"unknown"`
	Members  []Member  `json:"members"`  // named by verdicts first, then those that the job waits for
	Verdicts []Verdict `json:"verdicts"` // on members, by their sensors, the worst first; nil: no sensor was asked
	Late     []Late    `json:"late"`     // ranks, the latest first; nil: no sensor was asked
	Faults   []Fault   `json:"faults"`   // in kernel logs of the last hours, the latest first; nil: no sensor was asked
	Alerts   []Alert   `json:"alerts"`   // of members and their nodes that fire, the worst first
	Events   []Event   `json:"events"`   // alerts that fired, and do not fire now; the latest first
	Past     Past      `json:"past"`
	Figures  []Figure  `json:"figures"`
	Problems []string  `json:"problems"` // what was not answered
	// These are too many to be listed. Alerts and events of members that are not listed are not counted.
	OmittedMembers int `json:"omitted_members"`
	OmittedAlerts  int `json:"omitted_alerts"`
	OmittedEvents  int `json:"omitted_events"`

	index index
}

// index lists members by node and workload, and by node and "".
type index map[[2]string][]int

// Past is the time of the strips of the first members.
type Past struct {
	Begin       time.Time `json:"begin"`
	StepSeconds float64   `json:"step_seconds"`
	Members     int       `json:"members"`
}

// Figure is a figure of a job, and the queries whose sum it is.
type Figure struct {
	Name   string   `json:"name"`
	Unit   string   `json:"unit"`
	Value  *float64 `json:"value"` // nil, too, for a figure that each member or alert has
	Each   bool     `json:"each"`  // member or alert has one
	PromQL []string `json:"promql"`
}

// reportOf joins a job of a state with the job's own answers. It sorts the members: members that others wait for, members with
// alerts, members whose sensor does not answer, outliers, members with idle GPUs.
func reportOf(s *State, name JobName, members []Member, omitted int, a *answers, now time.Time) *JobReport {
	r := &JobReport{
		At: now.UTC(), Job: Job{JobName: name}, Members: members, OmittedMembers: omitted, Unknown: []string{}, index: index{},
	}
	for i := range members {
		for _, workload := range []string{"", members[i].Workload} {
			key := [2]string{members[i].Node, workload}
			r.index[key] = append(r.index[key], i)
		}
	}
	if i := slices.IndexFunc(s.Jobs, func(j Job) bool { return j.JobName == name }); i >= 0 {
		r.Job = s.Jobs[i]
	}
	if s.Alerts != nil {
		r.Alerts = []Alert{}
	}
	for i := range s.Alerts {
		alert := &s.Alerts[i]
		of := r.index.of(alert)
		switch {
		case len(of) == 0:
		case len(r.Alerts) < maxEvents:
			r.Alerts = append(r.Alerts, *alert)
		default:
			r.OmittedAlerts++
		}
		for _, at := range of {
			if members[at].Alerts++; members[at].Alerts == 1 {
				members[at].Worst = alert.Severity // alerts are sorted
			}
		}
	}
	slices.SortStableFunc(r.Members, func(a, b Member) int {
		return cmp.Or(descending(a.Behind, b.Behind), cmp.Compare(a.rank(), b.rank()), descending(a.Slower, b.Slower),
			descending(a.idle(), b.idle()))
	})
	r.figures(a)
	r.unknown(s, a)
	r.judge()
	return r
}

// rank sorts by alerts; a member whose sensor does not answer follows members with warnings.
func (m *Member) rank() int {
	switch {
	case m.Alerts > 0 && m.Worst.rank() <= Warning.rank():
		return m.Worst.rank()
	case m.Lost:
		return 2
	case m.Alerts > 0:
		return 3
	}
	return 4
}

// of lists the member of an alert, or all members on the node of an alert of no workload.
func (x index) of(a *Alert) []int {
	if a.Node == "" {
		return nil
	}
	return x[[2]string{a.Node, a.Labels["workload"]}]
}

// unknown lists what the summary does not judge.
func (r *JobReport) unknown(s *State, a *answers) {
	lacks := func(what string, lacking func(*Member) bool) {
		n := 0
		for i := range r.Members {
			if lacking(&r.Members[i]) {
				n++
			}
		}
		if n > 0 {
			r.Unknown = append(r.Unknown, what+" of "+Counted(n, "member"))
		}
	}
	if s.Alerts == nil {
		r.Unknown = append(r.Unknown, "alerts")
	}
	if len(s.Problems)+len(a.problems) > 0 {
		r.Unknown = append(r.Unknown, "what Prometheus did not answer")
	}
	if r.OmittedMembers > 0 {
		r.Unknown = append(r.Unknown, "everything of "+Counted(r.OmittedMembers, "more member"))
	}
	lacks("everything since their sensors do not answer", func(m *Member) bool { return m.Lost })
	lacks("launches of collectives", func(m *Member) bool { return !m.Lost && m.LastLaunch == nil && m.Behind == nil })
	lacks("some launches of collectives", func(m *Member) bool { return !m.Lost && m.LastLaunch != nil && m.Partial })
	lacks("processes on the GPUs", func(m *Member) bool { return !m.Lost && m.GPUs != nil && m.Used == nil })
	if !slices.ContainsFunc(r.Figures, func(f Figure) bool { return f.Unit == "J" && f.Value != nil }) {
		r.Unknown = append(r.Unknown, "joules")
	}
	r.Unknown = append(r.Unknown, notAsked)
}

// stands is the age of the last launch from which a job stands, as in the query member_behind.
const stands = 60

// judge says in one sentence what is wrong, the worst first.
func (r *JobReport) judge() {
	lost, last := 0, (*float64)(nil)
	for i := range r.Members {
		m := &r.Members[i]
		if m.Lost {
			lost++
		}
		if m.LastLaunch != nil && (last == nil || *m.LastLaunch < *last) {
			last = m.LastLaunch
		}
	}
	severe := r.worstAlert() <= Warning.rank()
	switch first := r.first(); {
	case len(r.Verdicts) > 0 && r.Verdicts[0].Severity.rank() <= min(Warning.rank(), r.worstAlert()):
		v := &r.Verdicts[0]
		what := cmp.Or(append(slices.Clone(v.Evidence), v.Subject)...) // the first
		r.Severity, r.Summary = v.Severity, fmt.Sprintf("%s on %s: %s.", v.Name, v.Node, what)
	case first != nil && first.Behind != nil:
		r.Severity, r.Summary = Warning, fmt.Sprintf("The job waits for %s on %s, which is %s behind", first.Workload, first.Node,
			Counted(int(*first.Behind), "launch"))
		if first.LastLaunch != nil && *first.LastLaunch >= 0 {
			r.Summary += " and launched last " + span(*first.LastLaunch) + " ago"
		}
		r.Summary += "."
	case severe:
		r.fires()
	case lost > 0:
		r.Severity, r.Summary = Warning, fmt.Sprintf("The sensors of %d of %s do not answer.", lost, Counted(len(r.Members), "member"))
	case last != nil && *last > stands:
		r.Severity, r.Summary = Info, "No member has launched a collective for "+span(*last)+"."
	case len(r.Alerts) > 0:
		r.fires()
	case len(r.Late) > 0:
		r.Severity, r.Summary = Info, r.Late[0].String()+"."
	case r.Job.Idle != nil && *r.Job.Idle > 0 && r.Job.GPUs != nil:
		r.Severity, r.Summary = Info, fmt.Sprintf("%.0f of %s held by the job did nothing in the last minutes.", *r.Job.Idle,
			Counted(int(*r.Job.GPUs), "GPU"))
	case r.Alerts == nil:
		r.Summary = "Whether something is wrong is not known: alerts are not answered."
	default:
		r.Summary = "Nothing is known to be wrong with " + Counted(len(r.Members), "member") + r.caveat()
	}
}

// caveat ends a sentence with what is unknown.
func (r *JobReport) caveat() string {
	if len(r.Unknown) == 0 {
		return "."
	}
	return "; not known: " + strings.Join(r.Unknown, ", ") + "."
}

// Unsaid returns what is unknown, if the summary does not say so.
func (r *JobReport) Unsaid() []string {
	if strings.HasSuffix(r.Summary, r.caveat()) && len(r.Unknown) > 0 {
		return nil
	}
	return r.Unknown
}

// worstAlert is the rank of the worst alert; without an alert, a high rank.
func (r *JobReport) worstAlert() int {
	if len(r.Alerts) == 0 {
		return math.MaxInt
	}
	return r.Alerts[0].Severity.rank()
}

// fires says that the worst alert fires.
func (r *JobReport) fires() {
	a := &r.Alerts[0]
	r.Severity, r.Summary = a.Severity, fmt.Sprintf("%s fires for %s", a.Name, a.Subject())
	if a.Labels["workload"] == "" {
		r.Summary += ", a node of the job"
	}
	if more := len(r.Alerts) + r.OmittedAlerts - 1; more > 0 {
		r.Summary += fmt.Sprintf(", and %s", Counted(more, "more alert"))
	}
	r.Summary += "."
}

// first is the member that holds the job, if there is a member.
func (r *JobReport) first() *Member {
	if len(r.Members) == 0 {
		return nil
	}
	return &r.Members[0]
}

// Counted names a number of things: 1 launch, 2 launches.
func Counted(n int, thing string) string {
	switch {
	case n == 1:
		return "1 " + thing
	case strings.HasSuffix(thing, "ch"):
		return fmt.Sprint(n, " ", thing, "es")
	}
	return fmt.Sprint(n, " ", thing, "s")
}

func span(seconds float64) string {
	return time.Duration(min(seconds, 1e8) * float64(time.Second)).Round(time.Second).String()
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// figures lists the figures of the job with their units.
func (r *JobReport) figures(a *answers) {
	j := &r.Job
	asked := func(name string) *float64 {
		var v *float64
		for _, one := range a.vectors[name] {
			v = sum(v, &one.value)
		}
		return v
	}
	rate := func(of *Rate) *float64 {
		if of == nil {
			return nil
		}
		return &of.PerSecond
	}
	for _, f := range []struct {
		name, unit string
		value      *float64
		queries    []string
	}{
		{"GPU energy, last day", "J", asked("energy_gpus"), []string{"energy_gpus"}},
		{"GPU energy held idle, last day", "J", asked("energy_gpus_idle"), []string{"energy_gpus_idle"}},
		{"CPU and memory energy, last day", "J", asked("energy_cpus"), []string{"energy_cpus"}},
		{"Idle GPU hours, last day", "h", j.IdleHours, []string{"job_idle_hours"}},
		{"Cost of energy, last day", "", asked("energy_cost"), []string{"energy_cost"}},
		{"CO2, last day", "kg", asked("energy_carbon"), []string{"energy_carbon"}},
		{"GPUs", "", j.GPUs, []string{"job_gpus"}},
		{"Idle GPUs", "", j.Idle, []string{"job_idle"}},
		{"Out", "B/s", rate(j.Transmit), []string{"job_transmit"}},
		{"In", "B/s", rate(j.Receive), []string{"job_receive"}},
		{"Errors", "1/s", j.Errors, []string{"job_errors", "job_completion_errors"}},
		{"Verbs p99", "s", j.VerbsP99, []string{"job_verbs_p99"}},
		{"Completion p99", "s", j.CompletionP99, []string{"job_completion_p99"}},
	} {
		r.Figures = append(r.Figures, Figure{Name: f.name, Unit: f.unit, Value: f.value, PromQL: f.queries})
	}
	for _, f := range []struct{ name, query string }{
		{"Members", "members"},
		{"Members whose sensor does not answer", "members_lost"},
		{"Launches behind", "member_behind"},
		{"Last launch", "member_last_launch"},
		{"Incomplete launches", "member_partial"},
		{"Completion p99 of a member", "member_p99"},
		{"Of the median", "member_ratio"},
		{"GPUs of a member", "member_gpus"},
		{"GPUs in use of a member", "member_gpus_used"},
		{"Out of a member", "member_transmit"},
		{"In of a member", "member_receive"},
		{"Use of GPUs, last hours", "strip_gpus"},
		{"Use of the busiest HCA, last hours", "strip_hcas"},
		{"Alerts", "alerts"},
		{"Alerts, last hours", "events"},
	} {
		r.Figures = append(r.Figures, Figure{Name: f.name, Each: true, PromQL: []string{f.query}})
	}
}

// cite replaces the names of queries by PromQL. What was asked for all jobs is narrowed to the job.
func (r *JobReport) cite(values map[string]string) {
	const of = "instance_workload:accelscope_workload_info:job{namespace=$namespace, job_kind=$kind, job_name=$name}"
	for i := range r.Figures {
		names := r.Figures[i].PromQL
		for j, name := range names {
			query := queries[name]
			switch {
			case strings.HasPrefix(name, "job_"):
				query = "(" + query + ") and on (namespace, job_kind, job_name) " + of
			case name == "alerts":
				query = "(" + query + ") and on (instance) " + of
			}
			names[j] = expand(strings.Join(strings.Fields(query), " "), values)
		}
	}
}
