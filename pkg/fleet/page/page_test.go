// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/web"
	"github.com/accelscope/accelscope/pkg/web/webtest"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

// fakeFleet is a FAKE reader of a state.
type fakeFleet struct {
	state  *fleet.State
	report fleet.JobReport
	jobs   int // asked for
	found  []fleet.Found
	asked  []string // what was searched for
}

func (f *fakeFleet) Read() *fleet.State { return f.state }

func (f *fakeFleet) Enter(context.Context, string) (func(), error) { return func() {}, nil }

func (f *fakeFleet) Job(context.Context, *fleet.State, fleet.JobName) (*fleet.JobReport, []string) {
	f.jobs++
	report := f.report
	report.Problems = append([]string{}, report.Problems...)
	return &report, report.Problems
}

func (f *fakeFleet) Search(_ context.Context, text string) ([]fleet.Found, []string) {
	f.asked = append(f.asked, text)
	return append([]fleet.Found{}, f.found...), []string{"found_gpus: a problem"}
}

func site(o Options) http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range Handlers(o) {
		mux.Handle(pattern, h)
	}
	return mux
}

// crowd is a state of nodes with ten HCAs each, whose use differs, and of jobs.
func crowd(nodes int) *fleet.State {
	s := &fleet.State{At: time.Unix(1_800_000_000, 0), Problems: []string{}}
	for i := range 10 {
		s.Rails = append(s.Rails, fmt.Sprint("mlx5_", i))
	}
	for i := range nodes {
		n := fleet.Node{
			Name: fmt.Sprintf("gpu%04d.cluster.example:9847", i), Rails: map[string]fleet.Rail{},
			GPUs:  fleet.GPUs{All: new(8), Given: new(8), Used: new(7), Idle: new(1), Sick: new(i % 50 / 49)},
			Ports: fleet.Ports{All: new(10), Up: new(10), Degraded: new(0), Flapping: new(0)},
			Bytes: fleet.Bytes{Transmit: new(1e11), Receive: new(1e11), Attributed: new(1.5e11)},
		}
		for j, rail := range s.Rails {
			n.Rails[rail] = fleet.Rail{Use: new(float64((i*7+j*13+i*j)%100) / 100), Errors: new(float64(i % 500 / 499)), Pause: new(0.), Up: (i*10+j)%997 > 0}
		}
		if i%100 == 21 {
			n.Alerts, n.Worst = 1, fleet.Critical
			s.Alerts = append(s.Alerts, fleet.Alert{
				Name: "RDMAPortDown", Severity: fleet.Critical, Node: n.Name, Labels: map[string]string{"device": "mlx5_3", "port": "1"}, Since: s.At.Add(-time.Hour),
			})
		}
		s.Nodes = append(s.Nodes, n)
		s.Totals.Nodes++
		s.Jobs = append(s.Jobs, fleet.Job{
			JobName: fleet.JobName{Namespace: "research", Kind: "JobSet", Name: fmt.Sprint("llama-", i)}, Members: 8, Nodes: 8, GPUs: new(64.), Idle: new(1.),
			IdleHours: new(12.5), Transmit: &fleet.Rate{PerSecond: 1e11}, Receive: &fleet.Rate{PerSecond: 1e11, Estimate: true}, Errors: new(.5),
			VerbsP99: new(1e-3), CompletionP99: new(2e-5), Outlier: "research/llama-workers-3/trainer", OutlierNode: n.Name, Slower: new(2.5),
		})
	}
	return s
}

// TestFleetBytes measures the first view of 1,000 nodes with ten HCAs each: the page and all that it loads.
func TestFleetBytes(t *testing.T) {
	h := site(Options{
		Reader: &fakeFleet{state: crowd(1000)}, Version: "v1", Links: Links{Node: "http://{instance}/", Grafana: "https://grafana.example"},
	})
	for _, view := range []string{"/", "/?heat=errors", "/?heat=pause"} {
		sum := 0
		for _, target := range []string{view, "/assets/page.css", "/assets/page.js", "/assets/icon.svg"} {
			_, body := webtest.Get(t, h, target)
			t.Logf("%s: %d bytes", target, len(body))
			sum += len(body)
		}
		if sum > webtest.MaxBytes {
			t.Errorf("the first view has %d bytes, more than %d", sum, webtest.MaxBytes)
		}
	}
	_, all := webtest.Get(t, h, "/?all=1")
	for _, want := range []string{"gpu0999", "llama-999", "1000 of 1000", "10 of 10"} {
		if !strings.Contains(all, want) {
			t.Errorf("?all=1 does not show %s", want)
		}
	}
	if _, one := webtest.Get(t, h, "/?q=gpu0777"); !strings.Contains(one, "1 of 1, the worst first") || strings.Contains(one, ">gpu0778.") {
		t.Error("a search for a node does not show it alone")
	}
}

// TestHeatBounds: too many HCAs are shown by node, and of these and of the cells that are links only the first.
func TestHeatBounds(t *testing.T) {
	h := heatOf(&fleet.State{Nodes: slices.Repeat([]fleet.Node{{Down: true}}, maxCells+1), Rails: []string{"mlx5_0", "mlx5_1"}}, "")
	if h.Rails != 1 || h.Omitted != 1 || len(h.Hot) != maxHot {
		t.Errorf("%d rows, %d nodes left out, %d links", h.Rails, h.Omitted, len(h.Hot))
	}
}

// TestFleetUnanswered: nothing is said of what is not known.
func TestFleetUnanswered(t *testing.T) {
	for _, c := range []struct {
		state         fleet.State
		shown, absent []string
	}{
		{
			fleet.State{Problems: []string{"all queries: connection refused"}},
			[]string{"<dt>Nodes</dt><dd>-<small>not known<", "Prometheus does not answer.", "Alerts are not known."},
			[]string{"all answer", "has no"},
		},
		{
			fleet.State{Alerts: []fleet.Alert{}, Nodes: []fleet.Node{}, Jobs: []fleet.Job{}, Rails: []string{}},
			[]string{"<dt>Nodes</dt><dd>0<small>all answer<", "Prometheus has no port of an HCA now.", "No alert fires."},
			[]string{"<small>not known", "does not answer"},
		},
	} {
		h := site(Options{Reader: &fakeFleet{state: &c.state}})
		_, body := webtest.Get(t, h, "/")
		_, node := webtest.Get(t, h, "/node?name=gpu0001")
		text := body + node
		for _, want := range c.shown {
			if !strings.Contains(text, want) {
				t.Errorf("%+v: no %q in %s", c.state, want, text)
			}
		}
		for _, unwanted := range c.absent {
			if strings.Contains(text, unwanted) {
				t.Errorf("%+v: %q in %s", c.state, unwanted, text)
			}
		}
	}
}

// TestFleetHeaders: the pages of all nodes have the policy of the others.
func TestFleetHeaders(t *testing.T) {
	h := site(Options{Reader: &fakeFleet{state: crowd(2)}})
	for _, target := range []string{"/", "/job", "/node", "/job?name=llama-1", "/job/research/llama-1", "/node?name=x", "/assets/page.css", "/assets/page.js"} {
		header, _ := webtest.Get(t, h, target)
		if header.Get("Content-Security-Policy") != web.Policy || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Set-Cookie") != "" {
			t.Errorf("%s: %v", target, header)
		}
	}
}

// TestFleetInert shows hostile names in all places: of nodes, HCAs, jobs, workloads, alerts, and in what Prometheus reports.
func TestFleetInert(t *testing.T) {
	s := crowd(0)
	f := &fakeFleet{state: s}
	targets := []string{"/", "/?heat=errors"}
	for i, w := range fakenode.Hostile() {
		name := w.Namespace
		j := fleet.JobName{Namespace: name, Kind: name, Name: name}
		s.Rails = append(s.Rails, name)
		s.Nodes = append(s.Nodes, fleet.Node{
			Name: name, Rails: map[string]fleet.Rail{name: {Up: i%2 == 0, Errors: new(1e6)}}, Alerts: 1, Worst: fleet.Severity(name),
			Ports: fleet.Ports{All: new(1), Up: new(0)},
		})
		s.Jobs = append(s.Jobs, fleet.Job{JobName: j, Outlier: name, OutlierNode: name, Slower: new(9.)})
		s.Alerts = append(s.Alerts, fleet.Alert{Name: name, Severity: fleet.Severity(name), Node: name, Labels: map[string]string{
			"workload": name, "device": name, "port": name, name: name,
		}})
		s.Problems = append(s.Problems, name)
		f.report.Members = append(f.report.Members, fleet.Member{
			Workload: name, Node: name, Alerts: 1, Worst: fleet.Severity(name), GPUUse: []*float64{new(.3)},
		})
		f.report.Summary, f.report.Severity, f.report.Unknown = name, fleet.Severity(name), append(f.report.Unknown, name)
		f.report.Alerts = s.Alerts
		f.report.Events = append(f.report.Events, fleet.Event{Alert: s.Alerts[i]})
		f.report.Figures = append(f.report.Figures, fleet.Figure{Name: "GPUs", Value: new(1.), PromQL: []string{name}})
		f.found = append(f.found, fleet.Found{Kind: "workload", Name: name, Node: name, ID: name, Job: j})
		targets = append(targets, jobLink(j), nodeLink(name), "/?"+url.Values{"q": {name}, "heat": {name}}.Encode())
	}
	h := site(Options{Reader: f, Links: Links{Node: "http://{instance}/", Grafana: "https://grafana.example"}})
	for _, target := range targets {
		_, body := webtest.Get(t, h, target)
		webtest.Inert(t, target, body, "https://grafana.example/d/accelscope-")
	}
}

// TestFleetSearch: short texts are not searched for in Prometheus, and long ones are cut.
func TestFleetSearch(t *testing.T) {
	f := &fakeFleet{state: crowd(3), found: []fleet.Found{{Kind: "GPU", Name: "nvidia 3", Node: "gpu0001:9847", ID: "GPU-7"}}}
	h := site(Options{Reader: f, Links: Links{Node: "http://{host}:9847/"}})
	webtest.Get(t, h, "/?q=gp")
	if len(f.asked) > 0 {
		t.Errorf("searched for %q", f.asked)
	}
	_, body := webtest.Get(t, h, "/?q=GPU-7")
	for _, want := range []string{"nvidia 3", `href="http://gpu0001:9847/device?name=GPU-7"`, "found_gpus: a problem"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	webtest.Get(t, h, "/?q="+strings.Repeat("ä", 1000))
	if got := f.asked[1]; len(got) > maxText {
		t.Errorf("searched for %d bytes", len(got))
	}
}

func TestLinks(t *testing.T) {
	for _, c := range []struct{ template, instance, want string }{
		{"http://{instance}/", "gpu1:9847", "http://gpu1:9847/"},
		{"https://{host}/node/", "gpu1:9847", "https://gpu1/node/"},
		{"https://proxy.example/{host}/", "10.0.0.1:9847", "https://proxy.example/10.0.0.1/"},
		{"http://{instance}/", "[fd00::1]:9847", "http://[fd00::1]:9847/"},
		{"http://{instance}/", "evil.example/x?", ""},
		{"http://{instance}/", "u@evil.example", ""},
		{"http://{instance}/", "a b", ""},
		{"https://proxy.example/{host}/", "..", ""},
		{"", "gpu1", ""},
	} {
		if got := (Links{Node: c.template}).node(c.instance); got != c.want {
			t.Errorf("%s %s: %q, want %q", c.template, c.instance, got, c.want)
		}
	}
	for _, bad := range []Links{{Node: "http://node/"}, {Node: "javascript:{instance}"}, {Grafana: "javascript:alert(1)"}, {Grafana: "grafana"}} {
		if bad.Check() == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	if err := (Links{Node: "https://{host}:9847/", Grafana: "https://g.example/g/"}).Check(); err != nil {
		t.Error(err)
	}
}

// TestLastLaunch: a launch in the future is unknown, not now.
func TestLastLaunch(t *testing.T) {
	for want, m := range map[string]fleet.Member{
		format.None: {}, "41s ago": {LastLaunch: new(41.)}, "10m1s ago, 1 behind": {LastLaunch: new(601.), Behind: new(1.)},
	} {
		if got := (Options{}).memberRow(&m).Launched; got != want {
			t.Errorf("%+v: %q, want %q", m, got, want)
		}
	}
	if got := (Options{}).memberRow(&fleet.Member{LastLaunch: new(-60.)}).Launched; got != format.None {
		t.Errorf("the node's clock is ahead: %q", got)
	}
}
