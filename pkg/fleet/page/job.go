// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/web"
)

// jobView is the page of a job.
type jobView struct {
	Name, About       string
	State             web.Verdict // what is wrong, in one sentence
	Unknown, Problems []string
	Totals            []total
	Job               []jobRow // the job, or the jobs with the name
	Members           []memberRow
	AllMembers        int
	AllAlerts         int
	AllEvents         int
	ShowAll, JSON     string
	Alone             bool    // it is shown by a signed link, which shows no other page
	Signed            *signed // nil: no link to others
	Strips            []level // the legend
	Begin             time.Time
	Verdicts          []web.Verdict // of the sensors
	Late, Faults      []string
	Alerts, Events    []web.Verdict
	Answered, Past    bool // the alerts, and alerts of the past
	Figures           []figureRow
	Matrix            *matrixView // nil if no sensor is asked
}

// memberRow is a workload of a job.
type memberRow struct {
	Name, Node, NodeLink, Outside string
	Severity, State               string
	GPUs, Used, Out, In, P99      string
	Slower, Launched              string
	Slow, Behind, HasIdle         bool
	Strips                        []stripView
}

// stripView is a figure over the last hours.
type stripView struct {
	Name, About string
	Steps       int
	Levels      []level
}

// figureRow is a figure with the queries whose sum it is.
type figureRow struct {
	Name, Value string
	PromQL      []string
}

// jobsOf returns the jobs that a request names. A path has the namespace and the name, and the kind may be left out; otherwise they are
// ?namespace=, ?kind= and ?name=.
func jobsOf(r *http.Request, s *fleet.State) []fleet.Job {
	name, anyKind := nameOf(r)
	var out []fleet.Job
	for i := range s.Jobs {
		j := s.Jobs[i]
		if anyKind {
			j.Kind = ""
		}
		if j.JobName == name {
			out = append(out, s.Jobs[i])
		}
	}
	return out
}

func nameOf(r *http.Request) (name fleet.JobName, anyKind bool) {
	q := r.URL.Query()
	name = fleet.JobName{Namespace: q.Get("namespace"), Kind: q.Get("kind"), Name: q.Get("name")}
	if inPath := r.PathValue("name"); inPath != "" {
		name.Name, name.Namespace = inPath, r.PathValue("namespace")
		if name.Namespace == noNamespace {
			name.Namespace = ""
		}
	}
	return name, r.PathValue("name") != "" && name.Kind == ""
}

// job shows a job, or the jobs among which a name does not choose, or, without a name, the jobs of namespaces.
func (o Options) job(r *http.Request, s *fleet.State, a *asked) (title string, view any) {
	name, _ := nameOf(r)
	if name.Name == "" {
		return o.jobs(r, s)
	}
	v := jobView{Name: format.Escape(name.String()), About: "job"}
	jobs := jobsOf(r, s)
	for i := range jobs {
		v.Job = append(v.Job, o.jobRow(&jobs[i]))
	}
	if len(jobs) == 1 {
		name = jobs[0].JobName
		v.Name, v.JSON = format.Escape(name.String()), jobPath+"?"+o.Rights.query(r, name)
		v.Alone, v.Signed = o.Rights.byLink(r), o.Rights.signedLink(r, name)
	}
	if len(jobs) > 1 {
		v.About = "jobs of different kinds have this name"
		return v.Name, v
	}
	if len(jobs) == 0 || !a.job {
		v.About, v.Job = lacking(s.Jobs != nil, "such job"), nil
		return cmp.Or(v.Name, "Job"), v
	}
	for _, p := range a.problems {
		v.Problems = append(v.Problems, format.Escape(p[:min(len(p), 300)]))
	}
	if a.report != nil {
		o.report(&v, r, a.report)
	}
	if a.matrix != nil && len(a.report.Members) > 0 {
		v.Matrix = matrixOf(o.Rights.query(r, name), a.matrix)
	}
	return v.Name, v
}

// jobAlone is job for people who may see no page of a node.
func (o Options) jobAlone(r *http.Request, s *fleet.State, a *asked) (title string, view any) {
	title, view = o.job(r, s, a)
	if v, ok := view.(jobView); ok && a.job {
		v.removeLinks()
	}
	return title, view
}

// removeLinks removes the links to nodes, and the link to the job that the page shows.
func (v *jobView) removeLinks() {
	for i := range v.Job {
		v.Job[i].Link = ""
	}
	for i := range v.Members {
		v.Members[i].NodeLink = ""
	}
	for _, list := range [][]web.Verdict{v.Verdicts, v.Alerts, v.Events} {
		for i := range list {
			list[i].Link = ""
		}
	}
	if m := v.Matrix; m != nil {
		for i := range m.Rows {
			m.Rows[i].Link = ""
		}
		for i := range m.Pairs {
			m.Pairs[i].Link = ""
		}
	}
}

// jobs lists the jobs of the namespaces ?namespace=.
func (o Options) jobs(r *http.Request, s *fleet.State) (title string, view any) {
	namespaces := r.URL.Query()["namespace"]
	v := jobView{Name: "Jobs", About: lacking(s.Jobs != nil, "job in these namespaces")}
	all := 0
	for i := range s.Jobs {
		if !slices.Contains(namespaces, s.Jobs[i].Namespace) {
			continue
		}
		if all++; all <= allRows {
			v.Job = append(v.Job, o.jobRow(&s.Jobs[i]))
		}
	}
	if all > 0 {
		for i, n := range namespaces {
			namespaces[i] = cmp.Or(n, noNamespace)
		}
		v.About = format.Escape(fmt.Sprintf("%d of %d in %s", len(v.Job), all, strings.Join(namespaces, ", ")))
	}
	return v.Name, v
}

// maxRows are the members that are shown at first, as many as have strips.
const maxRows = 64

func (o Options) report(v *jobView, r *http.Request, report *fleet.JobReport) {
	v.State = web.Verdict{Severity: severity(report.Severity), Summary: format.Escape(report.Summary)}
	if report.Severity == "" {
		v.State.Severity = "info"
	}
	for _, u := range report.Unsaid() {
		v.Unknown = append(v.Unknown, format.Escape(u))
	}
	for _, f := range report.Figures {
		row := figureRow{Name: f.Name, Value: figureOf(f)}
		for _, q := range f.PromQL {
			row.PromQL = append(row.PromQL, format.Escape(q))
		}
		v.Figures = append(v.Figures, row)
		if name, last, ok := strings.Cut(f.Name, ", "); ok && !f.Each && (f.Value != nil || f.Unit == "J") {
			v.Totals = append(v.Totals, total{name, row.Value, last})
		}
	}
	v.AllMembers, v.Begin = len(report.Members)+report.OmittedMembers, report.Past.Begin
	v.AllAlerts, v.AllEvents = len(report.Alerts)+report.OmittedAlerts, len(report.Events)+report.OmittedEvents
	limit, q := maxRows, r.URL.Query()
	if q.Get("all") != "" {
		limit = allRows
	} else if max(v.AllMembers, v.AllAlerts, v.AllEvents, len(report.Faults)) > limit {
		q.Set("all", "1")
		v.ShowAll = r.URL.EscapedPath() + "?" + q.Encode()
	}
	for i := range report.Members[:min(len(report.Members), limit)] {
		v.Members = append(v.Members, o.memberRow(&report.Members[i]))
	}
	use := &heatMetrics[0]
	for i, name := range use.names {
		v.Strips = append(v.Strips, level{Class: fmt.Sprint(use.class, i), Name: name})
	}
	for i := range report.Verdicts {
		v.Verdicts = append(v.Verdicts, verdictView(&report.Verdicts[i], report.At))
	}
	for i := range report.Late {
		v.Late = append(v.Late, format.Escape(report.Late[i].String()))
	}
	for i := range report.Faults[:min(len(report.Faults), limit)] {
		v.Faults = append(v.Faults, format.Escape(report.Faults[i].String()))
	}
	v.Answered, v.Past = report.Alerts != nil, report.Events != nil
	for i := range report.Alerts[:min(len(report.Alerts), limit)] {
		v.Alerts = append(v.Alerts, alertView(&report.Alerts[i], report.At))
	}
	for i := range report.Events[:min(len(report.Events), limit)] {
		e := alertView(&report.Events[i].Alert, report.At)
		e.For = "until " + web.UTC(report.Events[i].Until)
		v.Events = append(v.Events, e)
	}
}

// figureOf formats the value of a figure by its unit.
func figureOf(f fleet.Figure) string {
	if f.Each {
		return "each"
	}
	return web.Optional(f.Value, func(v float64) string { return format.Figure(v, f.Unit) })
}

func (o Options) memberRow(m *fleet.Member) memberRow {
	r := memberRow{
		Name: format.Owner(m.Workload), Node: format.Escape(m.Node), NodeLink: nodeLink(m.Node),
		GPUs: web.Optional(m.GPUs, format.Count), Used: web.Optional(m.Used, format.Count),
		Out: rate(m.Transmit), In: rate(m.Receive), P99: web.Optional(m.P99, format.Duration), Slower: web.Optional(m.Slower, slower),
		Outside: o.foundLink(fleet.Found{Kind: "workload", Name: m.Workload, Node: m.Node}),
	}
	switch {
	case m.Alerts > 0:
		r.Severity, r.State = severity(m.Worst), fmt.Sprint(m.Alerts, " firing")
	case m.Lost:
		r.Severity, r.State = "warning", "no answer"
	}
	r.Slow = m.Slower != nil && *m.Slower >= slow
	r.HasIdle = m.GPUs != nil && m.Used != nil && *m.Used < *m.GPUs
	r.Launched = web.Optional(m.LastLaunch, func(seconds float64) string {
		if seconds < 0 { // the node's clock is ahead of Prometheus's clock
			return format.None
		}
		return format.Duration(seconds) + " ago"
	})
	if r.Behind = m.Behind != nil; r.Behind {
		if m.LastLaunch == nil {
			r.Launched = "no launch"
		}
		r.Launched = fmt.Sprintf("%s, %s behind", r.Launched, format.Count(*m.Behind))
	}
	if m.GPUUse != nil {
		r.Strips = []stripView{stripOf("GPUs", m.GPUUse), stripOf("HCA", m.HCAUse)}
	}
	return r
}

// stripOf draws values over the last hours: neighbors of one level are one line. A step without a value is empty.
func stripOf(name string, values []*float64) stripView {
	use := &heatMetrics[0]
	v := stripView{Name: name, Steps: len(values)}
	paths := make([]strings.Builder, len(use.names))
	known, sum := 0, 0.
	begin, current := 0, -1
	for i := range len(values) + 1 {
		l := -1
		if i < len(values) && values[i] != nil {
			l = use.level(*values[i])
			known, sum = known+1, sum+*values[i]
		}
		if l == current && i < len(values) {
			continue
		}
		if current >= 0 {
			fmt.Fprintf(&paths[current], "M%d 0h%d", begin, i-begin)
		}
		begin, current = i, l
	}
	for l := range paths {
		if paths[l].Len() > 0 {
			v.Levels = append(v.Levels, level{Class: fmt.Sprint(use.class, l), Path: paths[l].String()})
		}
	}
	v.About = name + ": not known"
	if known > 0 {
		v.About = fmt.Sprintf("%s: %s on average, known for %d of %d steps", name, format.Percent(sum/float64(known)), known, len(values))
	}
	return v
}
