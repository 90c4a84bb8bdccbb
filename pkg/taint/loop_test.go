// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/pkg/fleet"
)

// stage is a cluster of four nodes, its Prometheus and the loop, with a clock that the test moves.
type stage struct {
	t    *testing.T
	api  *apiserver
	prom *fake
	loop *Loop
	logs *observer.ObservedLogs
	at   time.Time
	dry  bool

	sensors []string // nodes, as Prometheus has them
}

var nodes = []string{"n1", "n2", "n3", "n4"}

func newStage(t *testing.T, version string) *stage {
	s := &stage{t: t, at: time.Unix(1e9, 0), sensors: nodes}
	s.api = &apiserver{foreign: map[string][]object{}, own: map[string][]object{}, rules: map[string]object{}, version: version}
	for _, n := range nodes {
		s.api.foreign[n] = []object{{"type": "Ready", "status": "True"}, {"type": "GPUProblem", "status": "True", "message": "of another"}}
		s.api.slices = append(s.api.slices, object{"spec": object{
			"driver": "gpu.nvidia.com", "nodeName": n, "pool": object{"name": n},
			"devices": []object{
				{"name": "gpu-0", "attributes": object{"uuid": object{"string": "GPU-0"}, "index": object{"int": 0}}},
				{"name": "gpu-1", "attributes": object{"uuid": object{"string": "GPU-1"}}},
			},
		}})
	}
	s.api.rules["theirs"] = object{"metadata": object{"name": "theirs", "uid": "1"}}
	s.prom = &fake{alerts: map[string][]fleet.RuleAlert{}}
	s.restart()
	return s
}

func (s *stage) restart() {
	core, logs := observer.New(zapcore.DebugLevel)
	s.logs = logs
	s.loop = NewLoop(Options{
		Prometheus: s.prom, Cluster: s.api.connect(s.t), Limits: limits, Interval: 15 * time.Second,
		Effect: "NoSchedule", DryRun: s.dry, Log: zap.New(core),
	})
	s.loop.now = func() time.Time { return s.at }
}

// run lets time pass, in steps.
func (s *stage) run(d time.Duration) {
	for end := s.at.Add(d); s.at.Before(end); {
		s.at = s.at.Add(15 * time.Second)
		s.prom.at, s.prom.heard = s.at, heard(s.at, s.sensors...)
		s.loop.step(s.t.Context())
	}
}

// marks returns what the API server has.
func (s *stage) marks() (all []string) {
	for node, conditions := range s.api.own {
		for _, c := range conditions {
			all = append(all, strings.Join([]string{node, c["type"].(string), c["status"].(string), c["message"].(string)}, " "))
		}
	}
	for name, r := range s.api.rules {
		if name == "theirs" {
			continue
		}
		spec := r["spec"].(object)
		of, taint := spec["deviceSelector"].(object), spec["taint"].(object)
		all = append(all, strings.Join([]string{
			of["driver"].(string), of["pool"].(string), of["device"].(string), taint["key"].(string),
			taint["value"].(string), taint["effect"].(string),
		}, " "))
	}
	slices.Sort(all)
	return all
}

func (s *stage) want(marks ...string) {
	s.t.Helper()
	if diff := gocmp.Diff(marks, s.marks()); diff != "" {
		s.t.Errorf("%s\n%v", diff, s.logs.All())
	}
	if s.api.rules["theirs"] == nil {
		s.t.Error("the rule of another is gone")
	}
}

const (
	condition = "n2 AccelscopeGPUProblem True GPULost"
	rule      = "gpu.nvidia.com n2 gpu-1 accelscope/unhealthy GPULost NoSchedule"
)

// TestLoop: a fault is marked and unmarked in time. Neither a Prometheus without an answer, nor an API server, nor a restart changes a mark.
func TestLoop(t *testing.T) {
	for _, version := range []string{"v1", "v1alpha3", ""} {
		t.Run("DeviceTaintRules "+version, func(t *testing.T) {
			s := newStage(t, version)
			marked := []string{rule, condition}
			if version == "" {
				marked = marked[1:]
			}
			s.run(time.Minute)
			s.prom.alerts["GPULost"] = []fleet.RuleAlert{alert("firing", "instance=n2 uuid=GPU-1")}
			s.run(limits.Set - 15*time.Second)
			s.want()
			s.run(time.Minute)
			s.want(marked...)
			s.prom.alerts["RDMAPortDown"] = []fleet.RuleAlert{alert("firing", "instance=n2 device=mlx5_0 port=1")}
			s.run(2 * time.Minute)
			s.want(append(slices.Clone(marked), "n2 AccelscopeRDMAProblem True RDMAPortDown")...)
			s.prom.alerts = map[string][]fleet.RuleAlert{"GPULost": s.prom.alerts["GPULost"]}
			s.run(2 * limits.Clear)
			s.want(marked...)
			if at := s.api.own["n2"][0]["lastTransitionTime"]; at != time.Unix(1e9+135, 0).UTC().Format(time.RFC3339) {
				t.Errorf("the condition is from %v", at)
			}
			s.prom.alerts = nil
			s.prom.err = errors.New("down")
			s.run(2 * limits.Clear)
			s.want(marked...)
			s.restart()
			s.run(2 * limits.Clear)
			s.prom.err = nil
			s.run(limits.Clear - time.Minute)
			s.want(marked...)
			s.api.broken = true
			s.run(time.Hour)
			s.api.broken = false
			s.want(marked...)
			s.run(limits.Clear + readAgain)
			s.want()
		})
	}
}

// TestMaxNodes: with more sick nodes than may be marked, the others are named.
func TestMaxNodes(t *testing.T) {
	s := newStage(t, "")
	for _, n := range []string{"n4", "n1", "n3"} {
		s.prom.alerts["GPUGone"] = append(s.prom.alerts["GPUGone"], alert("firing", "instance="+n))
		s.run(5 * time.Minute)
	}
	s.want("n1 AccelscopeGPUProblem True GPUGone", "n4 AccelscopeGPUProblem True GPUGone")
	if n := s.logs.FilterMessageSnippet("not marked").FilterField(zap.String("why", "n3 GPU")).Len(); n < 1 || n > 2 { // again after readAgain
		t.Errorf("n3 is named %d times\n%v", n, s.logs.All())
	}
}

// TestNoNode: a node that the cluster does not have is reported once, and takes no place.
func TestNoNode(t *testing.T) {
	s := newStage(t, "v1")
	s.sensors = []string{"none", "../../x", "n1"}
	for _, n := range s.sensors {
		s.prom.alerts["GPUGone"] = append(s.prom.alerts["GPUGone"], alert("firing", "instance="+n+" uuid=GPU-7"))
	}
	s.run(8 * time.Minute)
	s.want("n1 AccelscopeGPUProblem True GPUGone")
	if n := s.logs.FilterMessage("a mark was not changed").Len(); n != 5 { // and three devices
		t.Errorf("%d messages\n%v", n, s.logs.All())
	}
	for _, w := range s.api.writes {
		if strings.Contains(w, "x") {
			t.Error(w)
		}
	}
}

// TestNodeLeft: the DeviceTaintRule of a node that leaves the cluster goes, also while Prometheus is down, and takes no place.
func TestNodeLeft(t *testing.T) {
	s := newStage(t, "v1")
	s.prom.alerts["GPULost"] = []fleet.RuleAlert{alert("firing", "instance=n2 uuid=GPU-1")}
	s.run(limits.Set + time.Minute)
	s.want(rule, condition)
	delete(s.api.foreign, "n2")
	delete(s.api.own, "n2")
	s.prom.alerts, s.prom.err = map[string][]fleet.RuleAlert{}, errors.New("down")
	s.run(readAgain)
	s.want()
	s.prom.err = nil
	for _, n := range nodes[2:] {
		s.prom.alerts["GPUGone"] = append(s.prom.alerts["GPUGone"], alert("firing", "instance="+n))
	}
	s.run(limits.Set + time.Minute)
	s.want("n3 AccelscopeGPUProblem True GPUGone", "n4 AccelscopeGPUProblem True GPUGone")
}

// TestDryRun writes nothing, and logs each change once.
func TestDryRun(t *testing.T) {
	s := newStage(t, "v1")
	s.dry = true
	s.restart()
	s.prom.alerts["GPULost"] = []fleet.RuleAlert{alert("firing", "instance=n2 uuid=GPU-1")}
	s.run(time.Hour)
	s.prom.alerts = nil
	s.run(time.Hour)
	s.want()
	if len(s.api.writes) > 0 {
		t.Error(s.api.writes)
	}
	for _, message := range []string{"mark set", "mark removed"} {
		if n := s.logs.FilterMessage(message).FilterField(zap.Bool("dry_run", true)).Len(); n != 2 {
			t.Errorf("%q: %d times\n%v", message, n, s.logs.All())
		}
	}
}
