// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// rounds is the number of measured evaluations of each rule group.
const rounds = 3

// measure prints what the nodes cost Prometheus.
func (f *fleet) measure(ctx context.Context) error {
	scraped := f.samples
	before, began, err := f.own(ctx)
	if err != nil {
		return err
	}
	groups, err := f.evaluations(ctx)
	if err != nil {
		return err
	}
	own, ended, err := f.own(ctx)
	if err != nil {
		return err
	}
	cpu := (own["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]) / ended.Sub(began).Minutes()
	const mega = 1 << 20
	perScrape, err := f.count(ctx, `count({job="accelscope",__name__!~".*:.*|ALERTS.*"})`)
	if err != nil {
		return err
	}
	made, err := f.count(ctx, `count({__name__=~".*:.*|ALERTS.*"})`)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	row := func(format string, args ...any) { fmt.Fprintf(w, strings.ReplaceAll(format, "|", "\t")+"\n", args...) } //nolint:errcheck // a terminal
	row("nodes|%d, a scrape every %v, %d minutes, on %d CPUs", len(f.nodes), interval, f.minutes, runtime.NumCPU())
	row("series of the nodes|%.0f, %.0f of a node", perScrape, perScrape/float64(len(f.nodes)))
	row("series of rules and alerts|%.0f", made)
	row("series in memory|%.0f", own["prometheus_tsdb_head_series"])
	row("samples per second|%.0f", perScrape/interval.Seconds())
	row("the past|%d samples in %.0f s: %.0f per second", scraped, f.filled.Seconds(), float64(scraped)/f.filled.Seconds())
	row("memory of Prometheus|%.0f MiB resident, of which %.0f MiB are in use on its heap", own["process_resident_memory_bytes"]/mega, own["go_memstats_heap_inuse_bytes"]/mega)
	row("CPU time of Prometheus|%.1f s per minute, for the samples and one evaluation of all rules", cpu)
	row("||\ngroup of rules|slowest of %d evaluations|slowest rule", rounds)
	for _, g := range groups {
		r := slices.MaxFunc(g.Rules, func(a, b rule) int { return cmp.Compare(a.EvaluationTime, b.EvaluationTime) })
		row("%s|%.3f s of %.0f s|%.3f s %s", g.Name, g.EvaluationTime, g.Interval, r.EvaluationTime, r.Name)
	}
	row("||\nalert|firing|pending")
	alerts := map[string][2]int{}
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				row("%s|%s|%s", r.Name, r.Health, r.LastError)
			}
			for _, a := range r.Alerts {
				n := alerts[r.Name]
				n[map[string]int{"pending": 1}[a.State]]++
				alerts[r.Name] = n
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(alerts)) {
		row("%s|%d|%d", name, alerts[name][0], alerts[name][1])
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if err := f.view(ctx); err != nil {
		return err
	}
	return f.draw(ctx)
}

// evaluations waits until each group was evaluated rounds times, and returns the groups with their longest times.
func (f *fleet) evaluations(ctx context.Context) ([]group, error) {
	longest, count := map[string]group{}, map[string]int{}
	for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); {
		groups, err := f.groups(ctx)
		if err != nil {
			return nil, err
		}
		least := rounds
		for _, g := range groups {
			was := longest[g.Name]
			if !g.LastEvaluation.IsZero() && !g.LastEvaluation.Equal(was.LastEvaluation) {
				count[g.Name]++
				g.EvaluationTime = max(g.EvaluationTime, was.EvaluationTime)
				longest[g.Name] = g
			}
			if f.minutely && g.Name == jobsGroup && count[g.Name] > 0 && time.Since(g.LastEvaluation) > 2*time.Second {
				continue // other groups are evaluated more often. Queries are for whole seconds, so the result is visible after one
			}
			least = min(least, count[g.Name])
		}
		if least == rounds {
			return slices.SortedFunc(maps.Values(longest), func(a, b group) int { return cmp.Compare(b.EvaluationTime, a.EvaluationTime) }), nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case err := <-f.live:
			return nil, fmt.Errorf("the writer of samples ended: %w", err)
		case <-time.After(time.Second):
		}
	}
	return nil, fmt.Errorf("groups of rules were not evaluated %d times in ten minutes: %v", rounds, count)
}

// own returns Prometheus's own metrics, and the time of reading.
func (f *fleet) own(ctx context.Context) (map[string]float64, time.Time, error) {
	var text []byte
	if err := f.call(ctx, http.MethodGet, "/metrics", nil, nil, &text); err != nil {
		return nil, time.Time{}, err
	}
	own := map[string]float64{}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if name, v, found := strings.Cut(s.Text(), " "); found && !strings.HasPrefix(name, "#") {
			own[name], _ = strconv.ParseFloat(v, 64)
		}
	}
	return own, time.Now(), nil
}

func (f *fleet) count(ctx context.Context, expr string) (float64, error) {
	a, err := f.query(ctx, expr, time.Now())
	if err != nil || len(a.Series) == 0 {
		return 0, err
	}
	return a.Series[0].Value.Value, nil
}

// drawing is the cost of a dashboard query.
type drawing struct {
	dashboard, panel, ref string
	all, one              string // with all nodes, and with one selected
	seconds               float64
}

// draw prints the time of each dashboard query for an hour, or for the past if shorter, slowest first.
func (f *fleet) draw(ctx context.Context) error {
	boards, err := dashboards.Load(filepath.Join(f.root, "deploy/grafana"))
	if err != nil {
		return err
	}
	before, _, err := f.own(ctx)
	if err != nil {
		return err
	}
	length := time.Duration(f.minutes) * time.Minute
	var drawings []drawing
	for _, d := range boards {
		values := func(node string) dashboards.Values {
			return dashboards.Values{
				"__rate_interval": "2m", "__interval": "30s", "__range": fmt.Sprintf("%ds", int(length.Seconds())),
				"__range_s": strconv.Itoa(int(length.Seconds())), "node": node,
			}
		}
		both := func(panel, ref string, ask func(dashboards.Values) error) {
			x := drawing{dashboard: d.Title, panel: panel, ref: ref}
			x.all, x.seconds = stopwatch(func() error { return ask(values(".+")) })
			x.one, _ = stopwatch(func() error { return ask(values(f.nodes[0].name())) })
			drawings = append(drawings, x)
		}
		for _, v := range d.Templating.List {
			selector, label, found := choice(v.Text())
			if !found {
				continue
			}
			both("$"+v.Name, "", func(values dashboards.Values) error {
				var names []string
				return f.get(ctx, "label/"+label+"/values", url.Values{
					"match[]": {d.Expand(selector, values)}, "start": {epoch(time.Now().Add(-length))}, "end": {epoch(time.Now())},
				}, &names)
			})
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				both(p.Title, q.Ref, func(values dashboards.Values) error {
					now := time.Now().Truncate(interval)
					var err error
					if expr := d.Expand(q.Expr, values); q.Instant {
						_, err = f.query(ctx, expr, now)
					} else {
						_, err = f.queryRange(ctx, expr, now.Add(-length), now, interval)
					}
					return err
				})
			}
		}
	}
	after, _, err := f.own(ctx)
	if err != nil {
		return err
	}
	slices.SortStableFunc(drawings, func(a, b drawing) int { return cmp.Compare(b.seconds, a.seconds) })
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%d queries took %.1f s of CPU time\ndashboard\tpanel\tquery\tall nodes\tone node\n", //nolint:errcheck // a terminal
		2*len(drawings), after["process_cpu_seconds_total"]-before["process_cpu_seconds_total"])
	for _, x := range drawings {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", x.dashboard, x.panel, x.ref, x.all, x.one) //nolint:errcheck // a terminal
	}
	return w.Flush()
}

// choice returns the selector and the label of a variable.
func choice(text string) (selector, label string, found bool) {
	inner, found := strings.CutPrefix(text, "label_values(")
	i := strings.LastIndex(inner, ", ")
	if !found || i < 0 {
		return "", "", false
	}
	return inner[:i], strings.TrimSuffix(inner[i+2:], ")"), true
}

func stopwatch(do func() error) (string, float64) {
	began := time.Now()
	err := do()
	seconds := time.Since(began).Seconds()
	if err != nil {
		return fmt.Sprintf("%.2f s: %.120v", seconds, err), seconds
	}
	return fmt.Sprintf("%.2f s", seconds), seconds
}
