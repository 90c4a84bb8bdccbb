// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// memberColumns are the columns of the members of a job. BEHIND is the launches that the others wait for.
var memberColumns = []column{
	{name: "MEMBER", key: defaultSort, text: true},
	{name: "NODE", key: "node", text: true},
	{name: "STATE", key: "state", text: true},
	{name: "BEHIND", key: "behind"},
	{name: "LAST LAUNCH", key: "launch"},
	{name: "P99", key: "p99"},
	{name: "OF MEDIAN", key: "slowest"},
	{name: "GPUS", key: "gpus"},
	{name: "USED", key: "used"},
	{name: "TX/S", key: "tx"},
	{name: "RX/S", key: "rx"},
}

// readJob reads a job. It does not wait for Prometheus after the end of ctx.
func (o *Options) readJob(ctx context.Context) (*fleet.JobReport, error) {
	s, err := o.readFleet(ctx)
	if err != nil {
		return nil, err
	}
	name, err := jobNamed(s, o.Job)
	if err != nil {
		return nil, err
	}
	report, problems := o.Fleet.Job(ctx, s, name)
	if report == nil {
		return nil, fmt.Errorf("job %s: %s", name, strings.Join(problems, "; "))
	}
	return report, nil
}

// jobNamed returns the job that a text names: NAME, NAMESPACE/NAME, or NAMESPACE/KIND/NAME as the table of jobs has it.
func jobNamed(s *fleet.State, text string) (fleet.JobName, error) {
	var found []fleet.JobName
	var names []string
	for i := range s.Jobs {
		j := s.Jobs[i].JobName
		if slices.Contains([]string{j.String(), strings.TrimPrefix(j.Namespace+"/"+j.Name, "/"), j.Name}, text) {
			found, names = append(found, j), append(names, j.String())
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return fleet.JobName{}, fmt.Errorf("--job: %q names %s", text, strings.Join(names, ", "))
	}
	return fleet.JobName{}, fmt.Errorf("--job: prometheus has no job %q now", text)
}

// showJob draws or prints a job.
func (o *Options) showJob(screen *screen, r *fleet.JobReport) error {
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(r)
	}
	lines := []line{{format.Escape(r.Job.String() + ": " + r.Summary), colors[verdict.Severity(r.Severity)]}}
	if unsaid := r.Unsaid(); len(unsaid) > 0 {
		lines = append(lines, line{text: "not known: " + format.Escape(strings.Join(unsaid, ", "))})
	}
	for _, p := range r.Problems {
		lines = append(lines, line{"not answered: " + format.Escape(p), colors[verdict.Warning]})
	}
	var figures []string
	for _, f := range r.Figures {
		if name, last, ok := strings.Cut(f.Name, ", "); ok && f.Value != nil {
			figures = append(figures, fmt.Sprintf("%s %s (%s)", name, format.Figure(*f.Value, f.Unit), last))
		}
	}
	if len(figures) > 0 {
		lines = append(lines, line{text: strings.Join(figures, "   ")})
	}
	lines = append(lines, alertLines(r.At, r.Alerts, r.OmittedAlerts)...)
	members := memberSheet(r.Members, o.Filter)
	members.sortBy(o.Sort)
	return screen.draw(lines, members.grid())
}

// memberSheet has a row for each member with a text in its name or its node's.
func memberSheet(members []fleet.Member, text string) *sheet {
	out := &sheet{columns: memberColumns}
	for i := range members {
		m := &members[i]
		if !strings.Contains(strings.ToLower(m.Workload+" "+m.Node), strings.ToLower(text)) {
			continue
		}
		state := ""
		switch {
		case m.Lost:
			state = "no answer"
		case m.Alerts > 0:
			state = fmt.Sprint(m.Alerts, " firing")
		}
		launch := known(m.LastLaunch, format.Duration)
		if m.LastLaunch != nil && *m.LastLaunch < 0 { // the node's clock is ahead of Prometheus's clock
			launch = cell{}
		}
		out.rows = append(out.rows, row{cells: map[string]cell{
			defaultSort: words(format.Owner(m.Workload)),
			"node":      words(format.Escape(m.Node)),
			"state":     words(state),
			"behind":    known(m.Behind, format.Count),
			"launch":    launch,
			"p99":       known(m.P99, format.Duration),
			"slowest":   known(m.Slower, func(v float64) string { return fmt.Sprintf("%.1fx", v) }),
			"gpus":      known(m.GPUs, format.Count),
			"used":      known(m.Used, format.Count),
			"tx":        rateOf((*overview.Rate)(m.Transmit)),
			"rx":        rateOf((*overview.Rate)(m.Receive)),
		}})
	}
	return out
}
