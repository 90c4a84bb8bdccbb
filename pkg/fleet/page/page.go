// SPDX-License-Identifier: Apache-2.0

// Package page shows all nodes in a browser, as package fleet reads them from a Prometheus. It shares its frame with the pages of a node.
package page

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/verdict"
	"github.com/accelscope/accelscope/pkg/web"
)

//go:embed templates
var files embed.FS

var templates = web.Templates(files, template.FuncMap{"counts": counts})

// Limits of the first view; a link shows all, which are bounded, too.
const (
	firstRows = 25
	allRows   = 2000
	maxText   = 128 // bytes of a text to search for
)

// Reader reads all nodes from a Prometheus.
type Reader interface {
	Read() *fleet.State
	// Enter takes a place for a client that asks for a job or searches.
	Enter(ctx context.Context, client string) (leave func(), err error)
	Job(context.Context, *fleet.State, fleet.JobName) (*fleet.JobReport, []string)
	Search(ctx context.Context, text string) ([]fleet.Found, []string)
}

// MatrixReader asks the sensors of the nodes of a job how they are connected.
type MatrixReader interface {
	Job(fleet.JobName, []fleet.Member) *matrix.Matrix
}

// Options configure the pages of all nodes.
type Options struct {
	Reader  Reader
	Matrix  MatrixReader // nil: no sensor is asked
	Version string
	Rights  Rights
	Links
}

// Handlers returns the handlers of the pages of all nodes, by the patterns of http.ServeMux.
func Handlers(o Options) map[string]http.Handler {
	f := &pages{Options: o}
	facts := func() api.Known { return api.Known{At: f.state.Load().Tried} } // an attempt that fails makes other answers
	kept := api.Kept(facts, api.NewSlots(), web.Refuse)
	ofJob := func(answer answerFunc) http.Handler { return f.handler(kept, f.askJob, answer) }
	job := o.Rights.guardJob(ofJob(o.page("job.html", o.job)), ofJob(o.page("job.html", o.jobAlone)))
	data := ofJob(jobJSON)
	handlers := map[string]http.Handler{
		"GET /{$}":                    o.Rights.guard(f.handler(kept, f.askSearch, o.page("fleet.html", o.fleet))),
		"GET /job":                    job,
		"GET /job/{namespace}/{name}": job,
		"GET /node":                   o.Rights.guard(f.handler(kept, nothing, o.page("rails.html", o.node))),

		"GET " + statePath:       o.Rights.guard(f.handler(kept, nothing, stateJSON)),
		"GET " + jobPath:         o.Rights.guardJob(data, data),
		"GET " + descriptionPath: http.HandlerFunc(o.description),
	}
	if o.Matrix != nil {
		data := ofJob(matrixJSON)
		handlers["GET "+matrixPath] = o.Rights.guardJob(data, data)
	}
	web.AddAssets(handlers)
	return handlers
}

// page returns a function that makes a page. Its status is 503 if nothing that was asked for is known.
func (o Options) page(name string, view func(*http.Request, *fleet.State, *asked) (title string, shown any)) answerFunc {
	return func(w http.ResponseWriter, r *http.Request, s *fleet.State, a *asked) {
		f := web.Frame{Fleet: true, Version: o.Version, At: s.At.UTC()}
		f.Title, f.View = view(r, s, a)
		if a.unanswered() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		f.Write(w, templates, name)
	}
}

// searched returns the text that a request searches for.
func searched(r *http.Request) string {
	text := strings.TrimSpace(r.URL.Query().Get("q"))
	return strings.ToValidUTF8(text[:min(len(text), maxText)], "")
}

// nodesView is the page of all nodes.
type nodesView struct {
	Text     string
	Found    []found
	Searched bool
	Totals   []total
	Problems []string
	Alerts   []web.Verdict
	Heat     heat
	NoHCAs   string // in place of the heat map
	Jobs     []jobRow
	Nodes    []nodeRow
	// The numbers of those that there are, and the link to all of them; empty if they are shown.
	AllAlerts, AllJobs, AllNodes int
	ShowAll                      string
	Answered                     bool // the alerts
}

// total is a figure of all that the page shows.
type total struct{ Name, Value, About string }

// found is something that was searched for.
type found struct {
	fleet.Found
	Name, Node, NodeLink, Job, JobLink string
	Outside                            string // link to the page of the node
}

func (o Options) fleet(r *http.Request, s *fleet.State, a *asked) (title string, view any) {
	q, text := r.URL.Query(), searched(r)
	v := nodesView{
		Text: text, Totals: totals(s), Heat: heatOf(s, q.Get("heat")),
		NoHCAs: lacking(s.Rails != nil, "port of an HCA"), Answered: s.Alerts != nil,
	}
	if len(text) >= fleet.MinText {
		v.Found, v.Searched = o.foundRows(a.found), true
	}
	for _, p := range slices.Concat(s.Problems, a.problems) {
		v.Problems = append(v.Problems, format.Escape(p[:min(len(p), 300)]))
	}
	limit := firstRows
	if q.Get("all") != "" {
		limit = allRows
	}
	for i := range s.Alerts {
		a := &s.Alerts[i]
		if !a.Has(text) {
			continue
		}
		if v.AllAlerts++; v.AllAlerts <= limit {
			v.Alerts = append(v.Alerts, alertView(a, s.At))
		}
	}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if !j.Has(text) {
			continue
		}
		if v.AllJobs++; v.AllJobs <= limit {
			v.Jobs = append(v.Jobs, o.jobRow(j))
		}
	}
	for _, n := range fleet.WorstFirst(s.Nodes) {
		if !n.Has(text) {
			continue
		}
		if v.AllNodes++; v.AllNodes <= limit {
			v.Nodes = append(v.Nodes, o.nodeRow(n))
		}
	}
	if limit < allRows && max(v.AllAlerts, v.AllJobs, v.AllNodes) > limit {
		q.Set("all", "1")
		v.ShowAll = "/?" + q.Encode()
	}
	return "Fleet", v
}

func (o Options) foundRows(all []fleet.Found) []found {
	out := make([]found, 0, len(all))
	for _, f := range all {
		out = append(out, found{
			Found: f, Name: format.Escape(f.Name), Node: format.Escape(f.Node), NodeLink: nodeLink(f.Node),
			Job:     format.Escape(f.Job.String()),
			JobLink: jobLink(f.Job), Outside: o.foundLink(f),
		})
		out[len(out)-1].ID = format.Escape(f.ID)
	}
	return out
}

// totals returns the figures of all nodes.
func totals(s *fleet.State) []total {
	t := &s.Totals
	count := func(n *int) string {
		if n == nil {
			return format.None
		}
		return fmt.Sprint(*n)
	}
	about := func(pairs ...any) string {
		var parts []string
		for i := 0; i < len(pairs); i += 2 {
			parts = append(parts, count(pairs[i].(*int))+" "+pairs[i+1].(string))
		}
		return strings.Join(parts, ", ")
	}
	nodes, down := fmt.Sprint(t.Nodes), "all answer"
	switch {
	case s.Nodes == nil:
		nodes, down = format.None, "not known"
	case t.Down > 0:
		down = fmt.Sprintf("%d without an answer", t.Down)
	}
	return []total{
		{"Nodes", nodes, down},
		{"GPUs", count(t.GPUs.All), about(t.GPUs.Given, "given", t.GPUs.Used, "in use", t.GPUs.Idle, "idle", t.GPUs.Sick, "sick")},
		{"RDMA ports", count(t.Ports.All), about(t.Ports.Up, "up", t.Ports.Degraded, "degraded", t.Ports.Flapping, "flapping")},
		{"All ports out", web.Optional(t.Bytes.Transmit, perSecondSize), "counters of the ports"},
		{"All ports in", web.Optional(t.Bytes.Receive, perSecondSize), "counters of the ports"},
		{"Bytes attributed", web.Optional(t.Bytes.Share(), format.Percent), "out and in, to known workloads"},
	}
}

// lacking returns what a view shows in place of what Prometheus does not have, or has not said.
func lacking(known bool, what string) string {
	if known {
		return "Prometheus has no " + what + " now."
	}
	return "Prometheus does not answer."
}

func perSecondSize(v float64) string { return format.Size(v) + "/s" }

// alertView formats an alert as a verdict. Each alert has a runbook, also without a condition of its name.
func alertView(a *fleet.Alert, now time.Time) web.Verdict {
	v := verdictView(&fleet.Verdict{
		Node: a.Node, Name: a.Name, Severity: a.Severity, Subject: a.Subject(), Since: a.Since, Evidence: a.Details(),
	}, now)
	v.Runbook = verdict.Runbook(a.Name)
	return v
}

// verdictView formats a verdict, with what its condition says.
func verdictView(of *fleet.Verdict, now time.Time) web.Verdict {
	v := web.Verdict{
		Severity: severity(of.Severity), Name: format.Escape(of.Name), Subject: format.Escape(of.Subject), Since: of.Since,
		For: web.Age(now.Sub(of.Since)),
	}
	if i := slices.IndexFunc(verdict.Conditions, func(c *verdict.Condition) bool { return c.Name == of.Name }); i >= 0 {
		v.Summary, v.Runbook = verdict.Conditions[i].Summary, verdict.Conditions[i].Runbook()
	}
	if of.Node != "" {
		v.Link = nodeLink(of.Node)
	}
	for _, e := range of.Evidence {
		v.Evidence = append(v.Evidence, format.Escape(e))
	}
	return v
}

// severity returns a severity that the style sheet has.
func severity(s fleet.Severity) string { return string(s.Known()) }

func nodeLink(name string) string { return "/node?" + url.Values{"name": {name}}.Encode() }

func jobLink(j fleet.JobName) string {
	if j.Name == "" {
		return ""
	}
	namespace := cmp.Or(j.Namespace, noNamespace)
	if j.Namespace == noNamespace || isDots(namespace) || isDots(j.Name) {
		return "/job?" + jobQuery(j)
	}
	return "/job/" + url.PathEscape(namespace) + "/" + url.PathEscape(j.Name) + "?" + url.Values{"kind": {j.Kind}}.Encode()
}

// noNamespace is the namespace in the address of a job without a namespace.
const noNamespace = "-"

// isDots reports whether browsers would remove a name from a path.
func isDots(name string) bool { return name == "." || name == ".." }

func jobQuery(j fleet.JobName) string {
	return url.Values{"namespace": {j.Namespace}, "kind": {j.Kind}, "name": {j.Name}}.Encode()
}

// counted says how many of a list are shown.
type counted struct {
	Shown, All int
	Link       string // to all, if they are not shown
}

func counts(shown, all int, link string) counted {
	if shown == all {
		link = ""
	}
	return counted{shown, all, link}
}
