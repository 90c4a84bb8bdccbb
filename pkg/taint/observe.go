// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
)

// faults are the alerts that count: critical, on a device or its node, and not caused by a workload or by other nodes.
var faults = map[string]Kind{
	"GPUGone": GPU, "GPULost": GPU, "GPUFabricNotReady": GPU, "GPUFabricManagerLost": GPU, "GPURecoveryAction": GPU, "GPUXidCritical": GPU,
	"GPUFault": GPU, "GPUMemoryFailing": GPU,
	"RDMADeviceGone": RDMA, "RDMAPortDown": RDMA,
}

// blind are the alerts on a sensor that may not see the faults of its node.
var blind = []string{"AccelscopeDown", "AccelscopeSourceLost", "AccelscopeSourceStuck", "AccelscopeDeviceUnreadable"}

// fresh is how old the answer of a sensor and the evaluation of a rule may be. Both are due each minute or earlier.
const fresh = 3 * time.Minute

// Prometheus is what an observation is made of.
type Prometheus interface {
	Rules(ctx context.Context, names ...string) ([]fleet.Rule, error)
	Heard(ctx context.Context) (fleet.Heard, error)
}

// observe asks Prometheus. It returns an error, and no observation, without all answers; problems are reasons why nodes are not judged.
func observe(ctx context.Context, p Prometheus, at time.Time) (o *Observation, problems []string, err error) {
	rules, err := p.Rules(ctx, append(slices.Sorted(maps.Keys(faults)), blind...)...)
	if err != nil {
		return nil, nil, err
	}
	heard, err := p.Heard(ctx)
	if err != nil {
		return nil, nil, err
	}
	o = &Observation{At: at, Faulty: map[Subject][]string{}, Pending: map[Subject]bool{}, Judged: map[Subject]bool{}}
	unseen := map[string]bool{} // nodes
	for i := range rules {
		for _, a := range rules[i].Alerts {
			kind, fault := faults[rules[i].Name]
			switch node := a.Labels["instance"]; {
			case a.State == "inactive":
			case !fault:
				unseen[node] = true
			default:
				certain := a.State == fleet.Firing && evaluated(&rules[i], at) && recent(heard.Any[node], at)
				o.add(kind, node, a.Labels["uuid"], rules[i].Name, certain)
			}
		}
	}
	known, problems := judging(rules, at)
	for kind, nodes := range map[Kind]map[string]time.Time{GPU: heard.GPUs, RDMA: heard.HCAs} {
		for node, when := range nodes {
			if known[kind] && recent(when, at) && !unseen[node] {
				o.Judged[Subject{Node: node, Kind: kind}] = true
			}
		}
	}
	return o, problems, nil
}

// add adds a verdict on the devices of a kind, and on the device if it has a UUID.
func (o *Observation) add(kind Kind, node, uuid, verdict string, certain bool) {
	subjects := []Subject{{Node: node, Kind: kind}}
	if uuid != "" {
		subjects = append(subjects, Subject{Node: node, Kind: kind, UUID: uuid})
	}
	for _, s := range subjects {
		switch {
		case !certain:
			o.Pending[s] = true
		case !slices.Contains(o.Faulty[s], verdict):
			o.Faulty[s] = append(o.Faulty[s], verdict)
			slices.Sort(o.Faulty[s])
		}
	}
}

// judging returns the kinds for which all rules are evaluated, and which rules are not. Without a rule, a fault has no alert.
func judging(rules []fleet.Rule, at time.Time) (known map[Kind]bool, problems []string) {
	missing := map[string]bool{}
	for name := range faults {
		missing[name] = true
	}
	for _, name := range blind {
		missing[name] = true
	}
	for i := range rules {
		delete(missing, rules[i].Name)
	}
	for i := range rules {
		if !evaluated(&rules[i], at) {
			missing[rules[i].Name] = true
		}
	}
	known = map[Kind]bool{GPU: true, RDMA: true}
	for name := range missing {
		if kind, fault := faults[name]; fault {
			known[kind] = false
		} else {
			clear(known)
		}
	}
	if len(missing) > 0 {
		problems = []string{"rules that Prometheus does not evaluate: " + strings.Join(slices.Sorted(maps.Keys(missing)), ", ")}
	}
	return known, problems
}

func evaluated(r *fleet.Rule, at time.Time) bool { return r.Health == "ok" && recent(r.Evaluated, at) }

func recent(when, at time.Time) bool { return at.Sub(when) <= fresh && when.Sub(at) <= fresh }
