// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"net/http"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/web"
)

// jobRow is a row of the table of jobs.
type jobRow struct {
	Name, Link, Grafana      string
	Members, GPUs, Idle      string
	Wasted                   string
	Out, In, Errors          string
	Verbs, Completion        string
	Outlier, OutlierAbout    string
	Slow, HasErrors, HasIdle bool
}

// slow is the ratio to the median of the members from which a member is marked.
const slow = 2

func (o Options) jobRow(j *fleet.Job) jobRow {
	r := jobRow{
		Name: format.Escape(j.String()), Link: jobLink(j.JobName),
		Members: fmt.Sprint(j.Members, " on ", fleet.Counted(j.Nodes, "node")),
		GPUs:    web.Optional(j.GPUs, format.Count), Idle: web.Optional(j.Idle, format.Count), Wasted: web.Optional(j.IdleHours, hours),
		Out: rate(j.Transmit), In: rate(j.Receive), Errors: web.Optional(j.Errors, format.PerSecond),
		Verbs: web.Optional(j.VerbsP99, format.Duration), Completion: web.Optional(j.CompletionP99, format.Duration),
		Grafana: o.dashboard("accelscope-jobs", "namespace", j.Namespace, "job_name", j.Name), Outlier: format.None,
	}
	if j.Slower != nil {
		r.Outlier, r.OutlierAbout = slower(*j.Slower), format.Escape(j.Outlier+" on "+j.OutlierNode)
		r.Slow = *j.Slower >= slow
	}
	r.HasErrors, r.HasIdle = j.Errors != nil && *j.Errors > 0, j.Idle != nil && *j.Idle > 0
	return r
}

func slower(ratio float64) string { return fmt.Sprintf("%.1f× median", ratio) }

func hours(h float64) string { return format.Figure(h, "h") }

func rate(r *fleet.Rate) string {
	switch {
	case r == nil:
		return format.None
	case r.Estimate:
		return format.Estimate + perSecondSize(r.PerSecond)
	}
	return perSecondSize(r.PerSecond)
}

// nodeRow is a row of the table of nodes.
type nodeRow struct {
	Name, Link, Outside, Grafana string
	Severity, State              string
	GPUs, GPUsAbout              string
	Ports                        string
	Out, In, Attributed          string
	Busiest, BusiestAbout        string
	BusiestBar                   int
	Errors, Pause                string
	HasErrors                    bool
}

func (o Options) nodeRow(n *fleet.Node) nodeRow {
	r := nodeRow{
		Name: format.Escape(n.Name), Link: nodeLink(n.Name), Outside: o.Links.node(n.Name),
		Grafana: o.dashboard("accelscope-node", "node", n.Name),
		State:   "nothing fires", Severity: "ok", GPUs: format.None, Ports: format.None, Busiest: format.None,
		Attributed: web.Optional(n.Bytes.Share(), format.Percent),
		Out:        web.Optional(n.Bytes.Transmit, perSecondSize), In: web.Optional(n.Bytes.Receive, perSecondSize),
	}
	if n.Alerts > 0 {
		r.Severity, r.State = severity(n.Worst), fmt.Sprintf("%d firing", n.Alerts)
	}
	if n.Down {
		r.State = "does not answer"
	}
	if g := n.GPUs; g.All != nil {
		r.GPUs = fmt.Sprint(*g.All)
		var about []string
		for _, c := range []struct {
			n    *int
			name string
		}{{g.Given, "given"}, {g.Used, "in use"}, {g.Idle, "idle"}, {g.Sick, "sick"}} {
			if c.n != nil && *c.n > 0 {
				about = append(about, fmt.Sprint(*c.n, " ", c.name))
			}
		}
		r.GPUsAbout = strings.Join(about, ", ")
	}
	if n.Ports.All != nil {
		r.Ports = fmt.Sprintf("%d of %d up", *n.Ports.Up, *n.Ports.All)
	}
	name, busiest, errors, pause := n.Summary()
	if busiest != nil {
		r.Busiest, r.BusiestAbout, r.BusiestBar = format.Percent(*busiest), format.Escape(name), web.Width(*busiest, 1)
	}
	r.Errors, r.Pause = web.Optional(errors, format.PerSecond), web.Optional(pause, format.Percent)
	r.HasErrors = errors != nil && *errors > 0
	return r
}

// railsView is the page of a node: its HCAs and alerts.
type railsView struct {
	Name, About string
	Node        []nodeRow
	Rails       []railRow
	Alerts      []web.Verdict
	AllAlerts   int
	Answered    bool
}

type railRow struct {
	Name, State, Use, Errors, Pause string
	UseBar                          int
	HasErrors                       bool
}

// node shows a node, ?name=.
func (o Options) node(r *http.Request, s *fleet.State, _ *asked) (title string, view any) {
	name := r.URL.Query().Get("name")
	v := railsView{Name: format.Escape(name), About: lacking(s.Nodes != nil, "such node"), Answered: s.Alerts != nil}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Name != name {
			continue
		}
		v.About = "node, by the label instance of its sensor"
		v.Node = append(v.Node, o.nodeRow(n))
		for _, rail := range s.Rails {
			h, ok := n.Rails[rail]
			if !ok {
				continue
			}
			row := railRow{
				Name: format.Escape(rail), State: "up",
				Use: web.Optional(h.Use, format.Percent), Errors: web.Optional(h.Errors, format.PerSecond),
				Pause:     web.Optional(h.Pause, format.Percent),
				HasErrors: h.Errors != nil && *h.Errors > 0 || !h.Up,
			}
			if !h.Up {
				row.State = "not up"
			}
			if h.Use != nil {
				row.UseBar = web.Width(*h.Use, 1)
			}
			v.Rails = append(v.Rails, row)
		}
	}
	for i := range s.Alerts {
		a := &s.Alerts[i]
		if a.Node != name || name == "" {
			continue
		}
		if v.AllAlerts++; v.AllAlerts <= allRows {
			v.Alerts = append(v.Alerts, alertView(a, s.At))
		}
	}
	return cmp.Or(v.Name, "Node"), v
}
