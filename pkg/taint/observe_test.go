// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/pkg/fleet"
)

// notFaults are critical alerts that mark nothing, with the reason.
var notFaults = map[string]string{
	"RDMASubnetManagerLost": "of the fabric", "RDMAPauseStorm": "another node or the switch may cause it",
	"AccelscopeAbsent": "of the monitoring", "FabricSwitchLost": "of the fabric",
}

// TestFaults: each critical alert of deploy/prometheus marks a node, or has a reason not to; no other alert does.
func TestFaults(t *testing.T) {
	text, err := os.ReadFile("../../deploy/prometheus/rules/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert  string
				Labels map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	critical, all := map[string]bool{}, map[string]bool{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			all[r.Alert] = true
			if r.Labels["severity"] == "critical" {
				critical[r.Alert] = true
				if (faults[r.Alert] == "") == (notFaults[r.Alert] == "") {
					t.Errorf("%s: kind %q, reason %q", r.Alert, faults[r.Alert], notFaults[r.Alert])
				}
			}
		}
	}
	for name, kind := range faults {
		if !critical[name] || !strings.HasPrefix(name, string(kind)) {
			t.Errorf("%s is not critical, or not of kind %s", name, kind)
		}
	}
	for _, name := range blind {
		if !all[name] {
			t.Errorf("no alert %s", name)
		}
	}
}

// fake is a Prometheus that has evaluated all rules, with these alerts.
type fake struct {
	at     time.Time
	heard  fleet.Heard
	alerts map[string][]fleet.RuleAlert
	change func([]fleet.Rule) []fleet.Rule // nil: no change
	err    error
}

func (f *fake) Rules(_ context.Context, names ...string) (all []fleet.Rule, err error) {
	for _, name := range names {
		all = append(all, fleet.Rule{Name: name, Health: "ok", Evaluated: f.at.Add(-time.Minute), Alerts: f.alerts[name]})
	}
	if f.change != nil {
		all = f.change(all)
	}
	return all, f.err
}

func (f *fake) Heard(context.Context) (fleet.Heard, error) { return f.heard, f.err }

func alert(state, labels string) fleet.RuleAlert {
	a := fleet.RuleAlert{Labels: map[string]string{}, State: state}
	for pair := range strings.FieldsSeq(labels) {
		name, value, _ := strings.Cut(pair, "=")
		a.Labels[name] = value
	}
	return a
}

// heard has nodes with GPUs and HCAs, whose sensors answered 30 seconds ago.
func heard(at time.Time, nodes ...string) fleet.Heard {
	times := map[string]time.Time{}
	for _, n := range nodes {
		times[n] = at.Add(-30 * time.Second)
	}
	return fleet.Heard{Any: times, GPUs: times, HCAs: times}
}

func TestObserve(t *testing.T) {
	at := time.Unix(1e9, 0)
	gpu := Subject{Node: "n1", Kind: GPU}
	device := Subject{Node: "n1", Kind: GPU, UUID: "GPU-1"}
	lost := map[string][]fleet.RuleAlert{"GPULost": {alert("firing", "instance=n1 uuid=GPU-1")}}
	judged := map[Subject]bool{gpu: true, {Node: "n1", Kind: RDMA}: true}
	for _, tt := range []struct {
		name    string
		f       fake
		faulty  map[Subject][]string
		pending map[Subject]bool
		judged  map[Subject]bool
	}{
		{"healthy", fake{heard: heard(at, "n1")}, nil, nil, judged},
		{"a device", fake{heard: heard(at, "n1"), alerts: lost}, map[Subject][]string{gpu: {"GPULost"}, device: {"GPULost"}}, nil, judged},
		{"two verdicts", fake{heard: heard(at, "n1"), alerts: map[string][]fleet.RuleAlert{
			"GPULost": {alert("firing", "instance=n1"), alert("firing", "instance=n1 x=y")}, "GPUGone": {alert("firing", "instance=n1")},
		}}, map[Subject][]string{gpu: {"GPUGone", "GPULost"}}, nil, judged},
		{
			"pending",
			fake{heard: heard(at, "n1"), alerts: map[string][]fleet.RuleAlert{"RDMAPortDown": {alert("pending", "instance=n1 device=mlx5_0")}}},
			nil,
			map[Subject]bool{{Node: "n1", Kind: RDMA}: true},
			judged,
		},
		{"an older alert of a sensor that is down", fake{alerts: lost}, nil, map[Subject]bool{gpu: true, device: true}, nil},
		{"an answer of 5 minutes ago", fake{heard: heard(at.Add(-5*time.Minute), "n1")}, nil, nil, nil},
		{"a clock that is ahead", fake{heard: heard(at.Add(time.Hour), "n1")}, nil, nil, nil},
		{"no HCA", fake{heard: fleet.Heard{Any: heard(at, "n1").Any, GPUs: heard(at, "n1").Any}}, nil, nil, map[Subject]bool{gpu: true}},
		{"a source that is lost", fake{heard: heard(at, "n1", "n2"), alerts: map[string][]fleet.RuleAlert{
			"AccelscopeSourceLost": {alert("pending", "instance=n2 source=gpu")},
		}}, nil, nil, judged},
		{"a rule is missing", fake{heard: heard(at, "n1"), change: func(r []fleet.Rule) []fleet.Rule {
			return r[1:] // a GPU's
		}}, nil, nil, map[Subject]bool{{Node: "n1", Kind: RDMA}: true}},
		{"no rules", fake{heard: heard(at, "n1"), change: func([]fleet.Rule) []fleet.Rule { return nil }}, nil, nil, nil},
		{"a rule fails in one of two groups", fake{heard: heard(at, "n1"), alerts: lost, change: func(r []fleet.Rule) []fleet.Rule {
			bad := fleet.Rule{Name: "GPUGone", Health: "err", Evaluated: at, Alerts: []fleet.RuleAlert{alert("firing", "instance=n1")}}
			return append(r, bad)
		}}, map[Subject][]string{gpu: {"GPULost"}, device: {"GPULost"}}, map[Subject]bool{gpu: true}, map[Subject]bool{{Node: "n1", Kind: RDMA}: true}},
		{"rules are not evaluated", fake{heard: heard(at, "n1"), alerts: lost, change: func(r []fleet.Rule) []fleet.Rule {
			for i := range r {
				r[i].Evaluated = at.Add(-time.Hour)
			}
			return r
		}}, nil, map[Subject]bool{gpu: true, device: true}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.f.at = at
			o, problems, err := observe(t.Context(), &tt.f, at)
			if err != nil {
				t.Fatal(err)
			}
			if (tt.f.change != nil) != (len(problems) > 0) {
				t.Errorf("problems %q", problems)
			}
			for name, pair := range map[string][2]any{"faulty": {nonNil(tt.faulty), o.Faulty}, "pending": {nonNil(tt.pending), o.Pending}, "judged": {nonNil(tt.judged), o.Judged}} {
				if diff := gocmp.Diff(pair[0], pair[1]); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
		})
	}
	if o, _, err := observe(t.Context(), &fake{at: at, heard: heard(at, "n1"), err: errors.New("down")}, at); o != nil || err == nil {
		t.Errorf("without Prometheus: %+v", o)
	}
}

func nonNil[T any](m map[Subject]T) map[Subject]T {
	if m == nil {
		return map[Subject]T{}
	}
	return m
}
