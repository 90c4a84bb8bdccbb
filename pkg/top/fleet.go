// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// FleetReader reads all nodes from a Prometheus.
type FleetReader interface {
	Read() *fleet.State
	Job(context.Context, *fleet.State, fleet.JobName) (*fleet.JobReport, []string)
}

// jobColumns are the columns of jobs. WASTED is the hours of their GPUs without use, of the last day. SLOWEST is the p99 of completions of
// the member in OUTLIER, relative to the median of the members.
var jobColumns = []column{
	{name: "JOB", key: defaultSort, text: true},
	{name: "MEMBERS", key: "members"},
	{name: "NODES", key: "nodes"},
	{name: "GPUS", key: "gpus"},
	{name: "IDLE", key: "idle"},
	{name: "WASTED", key: "wasted"},
	{name: "TX/S", key: "tx"},
	{name: "RX/S", key: "rx"},
	{name: "ERRORS/S", key: "errors"},
	{name: "VERBS P99", key: "verbs"},
	{name: "P99", key: "p99"},
	{name: "SLOWEST", key: "slowest"},
	{name: "OUTLIER", key: "outlier", text: true},
}

// nodeColumns are the columns of nodes. BUSY is the busiest direction of an HCA, PAUSE the longest pause of an HCA.
var nodeColumns = []column{
	{name: "NODE", key: defaultSort, text: true},
	{name: "ALERTS", key: "alerts"},
	{name: "GPUS", key: "gpus"},
	{name: "GIVEN", key: "given"},
	{name: "USED", key: "used"},
	{name: "IDLE", key: "idle"},
	{name: "SICK", key: "sick"},
	{name: "PORTS", key: "ports"},
	{name: "UP", key: "up"},
	{name: "TX/S", key: "tx"},
	{name: "RX/S", key: "rx"},
	{name: "ATTRIBUTED", key: "attributed"},
	{name: "BUSY", key: "busy"},
	{name: "PAUSE", key: "pause"},
	{name: "ERRORS/S", key: "errors"},
}

// railColumns are the columns of the view of devices: HCAs by node.
var railColumns = []column{
	{name: "HCA", key: defaultSort, text: true},
	{name: "STATE", key: "state", text: true},
	{name: "BUSY", key: "busy"},
	{name: "PAUSE", key: "pause"},
	{name: "ERRORS/S", key: "errors"},
}

// errNoNodes reports that Prometheus does not scrape accelscope.
var errNoNodes = errors.New("prometheus has no series of accelscope")

// runFleet shows all nodes until ctx is done.
func (o *Options) runFleet(ctx context.Context) error {
	columns := slices.Concat(jobColumns, nodeColumns)
	title := "all nodes"
	switch {
	case o.Job != "":
		columns, title = memberColumns, format.Escape("job "+o.Job)
	case o.Devices:
		columns = railColumns
	}
	if err := checkSort(columns, o.Sort); err != nil {
		return err
	}
	screen := newScreen(o.Out, o.Plain, !o.NoColor, fmt.Sprintf("accelscope top  %s  every %v", title, o.Interval))
	if o.Job != "" {
		var r *fleet.JobReport
		return o.repeat(ctx, screen, func() (err error) {
			r, err = o.readJob(ctx)
			return err
		}, func() (bool, error) { return true, o.showJob(screen, r) })
	}
	var s *fleet.State
	return o.repeat(ctx, screen, func() (err error) {
		s, err = o.readFleet(ctx)
		return err
	}, func() (bool, error) { return true, o.showFleet(screen, s) })
}

// readFleet reads the nodes. It does not wait for Prometheus after the end of ctx.
func (o *Options) readFleet(ctx context.Context) (*fleet.State, error) {
	read := make(chan *fleet.State, 1)
	go func() { read <- o.Fleet.Read() }()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case s := <-read:
		if len(s.Nodes) > 0 {
			return s, nil
		}
		if len(s.Problems) > 0 {
			return nil, errors.New(s.Problems[0])
		}
		return nil, errNoNodes
	}
}

// showFleet draws or prints all nodes.
func (o *Options) showFleet(screen *screen, s *fleet.State) error {
	s = filtered(s, o.Filter)
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(s)
	}
	lines := fleetLines(s)
	if o.Devices {
		rails := railSheet(s)
		rails.sortBy(o.Sort)
		return screen.draw(lines, rails.grid())
	}
	jobs, nodes := jobSheet(s), nodeSheet(s)
	jobs.sortBy(o.Sort)
	nodes.sortBy(o.Sort)
	return screen.draw(lines, jobs.grid(), nodes.grid())
}

// filtered returns the nodes, jobs and alerts with a text in a name; the totals are of all nodes.
func filtered(s *fleet.State, text string) *fleet.State {
	if text == "" {
		return s
	}
	out := *s
	out.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n fleet.Node) bool { return !n.Has(text) })
	out.Jobs = slices.DeleteFunc(slices.Clone(s.Jobs), func(j fleet.Job) bool { return !j.Has(text) })
	out.Alerts = slices.DeleteFunc(slices.Clone(s.Alerts), func(a fleet.Alert) bool { return !a.Has(text) })
	return &out
}

// fleetLines renders what is above the tables: totals, problems, and alerts as a node shows its verdicts.
func fleetLines(s *fleet.State) []line {
	number := func(n *int) string {
		if n == nil {
			return format.None
		}
		return fmt.Sprint(*n)
	}
	t := &s.Totals
	totals := fmt.Sprintf("%d nodes (%d do not answer)   GPUs %s: %s given, %s in use, %s idle, %s sick", t.Nodes, t.Down,
		number(t.GPUs.All), number(t.GPUs.Given), number(t.GPUs.Used), number(t.GPUs.Idle), number(t.GPUs.Sick))
	totals += fmt.Sprintf("   ports %s: %s up, %s degraded, %s flapping   attributed %s", number(t.Ports.All), number(t.Ports.Up),
		number(t.Ports.Degraded), number(t.Ports.Flapping), cmp.Or(known(t.Bytes.Share(), format.Percent).text, format.None))
	out := []line{{text: totals}}
	for _, p := range s.Problems {
		out = append(out, line{"not answered: " + format.Escape(p), colors[verdict.Warning]})
	}
	return append(out, alertLines(s.At, s.Alerts, 0)...)
}

// alertLines renders alerts as a node shows its verdicts.
func alertLines(at time.Time, alerts []fleet.Alert, omitted int) []line {
	v := api.VerdictList{At: at, Omitted: omitted}
	for i := range alerts {
		a := &alerts[i]
		v.Verdicts = append(v.Verdicts, api.Verdict{
			Name: a.Name, Severity: verdict.Severity(a.Severity), Subject: api.VerdictSubject{Name: a.Subject()}, Since: a.Since,
			Evidence: a.Details(),
		})
	}
	return verdictLines(&v, "--json has all")
}

func jobSheet(s *fleet.State) *sheet {
	out := &sheet{columns: jobColumns}
	for i := range s.Jobs {
		j := &s.Jobs[i]
		name := format.Escape(j.String())
		var outlier cell
		if j.Outlier != "" {
			outlier = words(format.Escape(j.Outlier + " on " + j.OutlierNode))
		}
		out.rows = append(out.rows, row{cells: map[string]cell{
			defaultSort: words(name),
			"members":   figure(float64(j.Members), format.Count),
			"nodes":     figure(float64(j.Nodes), format.Count),
			"gpus":      known(j.GPUs, format.Count),
			"idle":      known(j.Idle, format.Count),
			"wasted":    known(j.IdleHours, func(h float64) string { return format.Figure(h, "h") }),
			"tx":        rateOf((*overview.Rate)(j.Transmit)),
			"rx":        rateOf((*overview.Rate)(j.Receive)),
			"errors":    known(j.Errors, format.PerSecond),
			"verbs":     known(j.VerbsP99, format.Duration),
			"p99":       known(j.CompletionP99, format.Duration),
			"slowest":   known(j.Slower, func(v float64) string { return fmt.Sprintf("%.1fx", v) }),
			"outlier":   outlier,
		}})
	}
	return out
}

func nodeSheet(s *fleet.State) *sheet {
	out := &sheet{columns: nodeColumns}
	for _, n := range fleet.WorstFirst(s.Nodes) {
		_, use, errors, pause := n.Summary()
		alerts := figure(float64(n.Alerts), format.Count)
		if n.Down {
			alerts.text = strings.TrimSpace(alerts.text + " down")
		}
		out.rows = append(out.rows, row{cells: map[string]cell{
			defaultSort:  words(format.Escape(n.Name)),
			"alerts":     alerts,
			"gpus":       known(n.GPUs.All, format.Count),
			"given":      known(n.GPUs.Given, format.Count),
			"used":       known(n.GPUs.Used, format.Count),
			"idle":       known(n.GPUs.Idle, format.Count),
			"sick":       known(n.GPUs.Sick, format.Count),
			"ports":      known(n.Ports.All, format.Count),
			"up":         known(n.Ports.Up, format.Count),
			"tx":         known(n.Bytes.Transmit, format.Size),
			"rx":         known(n.Bytes.Receive, format.Size),
			"attributed": known(n.Bytes.Share(), format.Percent),
			"busy":       known(use, format.Percent),
			"pause":      known(pause, format.Percent),
			"errors":     known(errors, format.PerSecond),
		}})
	}
	return out
}

func railSheet(s *fleet.State) *sheet {
	out := &sheet{columns: railColumns}
	for _, n := range fleet.WorstFirst(s.Nodes) {
		for _, name := range s.Rails {
			r, ok := n.Rails[name]
			if !ok {
				continue
			}
			state := "up"
			if !r.Up {
				state = "not up"
			}
			out.rows = append(out.rows, row{cells: map[string]cell{
				defaultSort: words(format.Escape(n.Name + " " + name)),
				"state":     words(state),
				"busy":      known(r.Use, format.Percent),
				"pause":     known(r.Pause, format.Percent),
				"errors":    known(r.Errors, format.PerSecond),
			}})
		}
	}
	return out
}
