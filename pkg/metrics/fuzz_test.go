// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	facts "github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// FuzzExposition checks that a registry accepts the metrics and that the text parses, for any names from drivers,
// firmware, cgroup paths and runtimes.
func FuzzExposition(f *testing.F) {
	f.Add("mlx5_0", "out_of_buffer", "ml/train-0/main", "slurm:42", "reg_mr", "ACTIVE")
	f.Add("", "", "", "", "", "")
	f.Add("a\nb", "x y", "a\xff", "a\xfe", "\"", "\\")
	f.Add("d", "stat_a", "名", "\x00", "a,b=c", "4: ACTIVE")
	f.Fuzz(func(t *testing.T, device, counter, workload, other, verb, state string) {
		s := facts.Snapshot{
			HCAs: []facts.HCA{{
				Name: device, NodeDesc: other, HWCounters: []facts.Counter{{Name: counter, Value: 1}},
				Ports: []facts.Port{{
					Number: 1, State: state, PhysState: state,
					Counters:   []facts.Counter{{Name: counter, Value: 1}, {Name: counter + "_total", Value: 2}},
					HWCounters: []facts.Counter{{Name: counter, Value: 3}, {Name: "stat_" + counter, Value: 4}},
				}},
			}},
			Resources: []facts.Resource{{Device: device, Type: facts.ObjectType(verb), Count: 1}},
			Objects:   []facts.Objects{{Cgroup: 1, Device: device, Type: facts.ObjectType(verb), Current: 1}},
			Verbs: []facts.Series[facts.VerbKey, facts.Histogram]{
				verbs(1, device, verb, facts.Histogram{}), verbs(2, device, verb, facts.Histogram{}),
			},
			VerbErrors: []facts.Series[facts.VerbErrorKey, facts.Count]{
				verbErrors(1, device, verb, other, 0), verbErrors(2, device, verb, other, 0),
			},
			Hooks:        []facts.Hook{{Name: verb, Tier: other, State: facts.State(state)}},
			DeviceStates: []facts.DeviceState{{Source: "rdma", Device: device, State: facts.State(state)}},
		}
		named := names(map[facts.CgroupID]identitytest.Entity{
			1: {Workload: workload, Pod: other, Cgroup: other}, 2: {Workload: other, Cgroup: workload},
		})
		sources := []engine.Registration{{Source: &fake{name: "rdma", facts: s}}, {Source: named}}
		c := newCollector(setup{Sources: sources, Compat: CompatSets()})
		defer c.Close() //nolint:errcheck // nothing to lose
		r := prometheus.NewPedanticRegistry()
		if err := r.Register(c); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Gather(); err != nil {
			t.Fatal(err)
		}
		families, err := c.Gather()
		if err != nil {
			t.Fatal(err)
		}
		text := library.Encode(t, families, expfmt.TypeTextPlain)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		if _, err := parser.TextToMetricFamilies(strings.NewReader(text)); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
	})
}
