// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
)

type fakeFleet func() *fleet.State

func (f fakeFleet) Read() *fleet.State { return f() }

// Job reports a job that waits for a member with a hostile name.
func (f fakeFleet) Job(_ context.Context, s *fleet.State, name fleet.JobName) (*fleet.JobReport, []string) {
	if name.Name == "large" {
		return nil, []string{"all queries: refused"}
	}
	return &fleet.JobReport{
		At: s.At, Job: fleet.Job{JobName: name}, Summary: "The job waits for ml/slow-1/main\x1b on busy.", Severity: fleet.Warning, Unknown: []string{"joules"},
		Members: []fleet.Member{
			{Workload: "ml/slow-1/main", Node: "busy\x1b", Behind: new(3.), LastLaunch: new(601.), Alerts: 2, GPUs: new(8.), Used: new(5.)},
			{Workload: "ml/slow-0/main", Node: "down", Lost: true, LastLaunch: new(-3.), Transmit: &fleet.Rate{PerSecond: 1 << 30}},
		},
		Alerts: s.Alerts,
		Figures: []fleet.Figure{
			{Name: "GPU energy, last day", Unit: "J", Value: new(7.2e6)}, {Name: "Idle GPU hours, last day", Unit: "h", Value: new(3.)}, {Name: "CO2, last day", Unit: "kg"},
		},
		Problems: []string{"member_ratio: timeout"},
	}, nil
}

// threeNodes are a node that does not answer, a hostile one and a busy one.
func threeNodes() *fleet.State {
	at := time.Unix(1_800_000_000, 0)
	s := &fleet.State{At: at, Rails: []string{"mlx5_0"}, Problems: []string{"gpus: timeout\x1b[2J"}}
	s.Nodes = []fleet.Node{
		{
			Name: "busy", GPUs: fleet.GPUs{All: new(8), Given: new(6), Used: new(5), Idle: new(1), Sick: new(0)},
			Ports: fleet.Ports{All: new(2), Up: new(2)}, Rails: map[string]fleet.Rail{"mlx5_0": {Use: new(.93), Errors: new(float64(0)), Up: true}},
			Bytes: fleet.Bytes{Transmit: new(float64(3 << 30)), Receive: new(float64(1 << 30)), Attributed: new(float64(2 << 30))},
		},
		{Name: "down", Down: true, Alerts: 1, Worst: fleet.Warning},
		{Name: "evil\x1b[31m", Rails: map[string]fleet.Rail{"mlx5_0": {}}},
	}
	s.Totals = fleet.Totals{Nodes: 3, Down: 1, GPUs: s.Nodes[0].GPUs, Ports: s.Nodes[0].Ports, Bytes: s.Nodes[0].Bytes}
	s.Alerts = []fleet.Alert{{Name: "AccelscopeDown", Severity: fleet.Warning, Node: "down", Since: at.Add(-time.Minute), Labels: map[string]string{"x": "\x1b"}}}
	s.Jobs = []fleet.Job{
		{JobName: fleet.JobName{Namespace: "ml", Kind: "Job", Name: "slow"}, Members: 2, Nodes: 2, Slower: new(2.5), Outlier: "ml/slow-1/main", OutlierNode: "busy", IdleHours: new(7.5)},
		{JobName: fleet.JobName{Namespace: "ml", Kind: "Job", Name: "large"}, Members: 9, Nodes: 9, Transmit: &fleet.Rate{PerSecond: 5 << 30, Estimate: true}},
	}
	return s
}

func printed(t *testing.T, o Options) string {
	t.Helper()
	var out bytes.Buffer
	o.Fleet, o.Interval, o.Once, o.Out = fakeFleet(threeNodes), time.Second, true, &out
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Errorf("a control character of a name is printed: %q", out.String())
	}
	return out.String()
}

// TestFleet prints all nodes as tables.
func TestFleet(t *testing.T) {
	const want = `3 nodes (1 do not answer)   GPUs 8: 6 given, 5 in use, 1 idle, 0 sick   ports 2: 2 up, - degraded, - flapping   attributed 50%
not answered: gpus: timeout\x1b[2J
warning  AccelscopeDown  down  x \x1b  (for 1m0s)

JOB           MEMBERS  NODES  GPUS  IDLE  WASTED      TX/S  RX/S  ERRORS/S  VERBS P99  P99  SLOWEST                 OUTLIER
ml/Job/slow   2            2     -     -   7.5 h         -     -         -          -    -     2.5x  ml/slow-1/main on busy
ml/Job/large  9            9     -     -       -  ~5.0 GiB     -         -          -    -        -                       -

NODE         ALERTS  GPUS  GIVEN  USED  IDLE  SICK  PORTS  UP     TX/S     RX/S  ATTRIBUTED  BUSY  PAUSE  ERRORS/S
down         1 down     -      -     -     -     -      -   -        -        -           -     -      -         -
busy         0          8      6     5     1     0      2   2  3.0 GiB  1.0 GiB         50%   93%      -       0.0
evil\x1b[31m  0          -      -     -     -     -      -   -        -        -           -     -      -         -
`
	got := printed(t, Options{})
	if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := printed(t, Options{Sort: "members"}); strings.Index(got, "ml/Job/large") > strings.Index(got, "ml/Job/slow") {
		t.Errorf("not sorted by members:\n%s", got)
	}
	if got := printed(t, Options{Filter: "LARGE"}); strings.Contains(got, "slow") || !strings.Contains(got, "large") || strings.Contains(got, "AccelscopeDown") {
		t.Errorf("filtered:\n%s", got)
	}
	if got := printed(t, Options{Devices: true, Sort: "busy"}); !strings.Contains(got, "busy mlx5_0") || !strings.Contains(got, "not up") {
		t.Errorf("devices:\n%s", got)
	}
	var object struct {
		Nodes []struct {
			Name  string
			Rails map[string]struct{ Use *float64 }
		}
		Jobs []struct {
			Namespace, Name string
			Ratio           *float64 `json:"outlier_ratio_median"`
			GPUs            *float64
		}
	}
	if err := json.Unmarshal([]byte(printed(t, Options{JSON: true})), &object); err != nil {
		t.Fatal(err)
	}
	if *object.Nodes[0].Rails["mlx5_0"].Use != .93 || *object.Jobs[0].Ratio != 2.5 || object.Jobs[0].GPUs != nil || object.Nodes[2].Name != "evil\x1b[31m" {
		t.Errorf("%+v", object)
	}
}

// TestJob prints a job that a text names: its state, figures, alerts and members.
func TestJob(t *testing.T) {
	const want = `ml/Job/slow: The job waits for ml/slow-1/main\x1b on busy.
not known: joules
not answered: member_ratio: timeout
GPU energy 2 kWh (7.2e+06 J) (last day)   Idle GPU hours 3.0 h (last day)
warning  AccelscopeDown  down  x \x1b  (for 1m0s)

MEMBER          NODE      STATE      BEHIND  LAST LAUNCH  P99  OF MEDIAN  GPUS  USED     TX/S  RX/S
ml/slow-1/main  busy\x1b  2 firing        3        10m1s    -          -     8     5        -     -
ml/slow-0/main  down      no answer       -            -    -          -     -     -  1.0 GiB     -
`
	for _, name := range []string{"slow", "ml/slow", "ml/Job/slow"} {
		if got := printed(t, Options{Job: name}); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	if got := printed(t, Options{Job: "slow", Filter: "DOWN", Sort: "tx"}); strings.Contains(got, "busy\\x1b  2") || !strings.Contains(got, "slow-0") {
		t.Errorf("filtered:\n%s", got)
	}
	var report fleet.JobReport
	if err := json.Unmarshal([]byte(printed(t, Options{Job: "slow", JSON: true})), &report); err != nil || len(report.Members) != 2 {
		t.Errorf("%v %+v", err, report)
	}
	twice := fakeFleet(func() *fleet.State {
		s := threeNodes()
		s.Jobs = append(s.Jobs, fleet.Job{JobName: fleet.JobName{Namespace: "ml", Kind: "JobSet", Name: "slow"}})
		return s
	})
	for name, want := range map[string]string{
		"large": "job ml/Job/large: all queries: refused", "none": `has no job "none" now`, "slow": "names ml/Job/slow, ml/JobSet/slow",
	} {
		err := Run(t.Context(), Options{Job: name, Fleet: twice, Interval: time.Second, Once: true, Out: &bytes.Buffer{}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := Run(t.Context(), Options{Job: "slow", Interval: time.Second, Once: true}); err == nil || !strings.Contains(err.Error(), "needs --prometheus") {
		t.Errorf("without Prometheus: %v", err)
	}
}

// TestFleetFails: without nodes, one table is an error, and a terminal is not kept while Prometheus hangs.
func TestFleetFails(t *testing.T) {
	o := Options{Interval: time.Second, Once: true, Out: &bytes.Buffer{}}
	for problem, want := range map[string]string{"all queries: refused": "refused", "": errNoNodes.Error()} {
		o.Fleet = fakeFleet(func() *fleet.State {
			s := &fleet.State{}
			if problem != "" {
				s.Problems = []string{problem}
			}
			return s
		})
		if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if o.Sort = "nothing"; Run(t.Context(), o) == nil {
		t.Error("an unknown column is accepted")
	}
	hang := make(chan struct{})
	defer close(hang)
	o.Sort, o.Fleet = "", fakeFleet(func() *fleet.State { <-hang; return nil })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := Run(ctx, o); err != nil {
		t.Error(err)
	}
}
