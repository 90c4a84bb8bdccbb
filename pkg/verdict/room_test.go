// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestRoom takes places in turn until the owner, the namespace or the room is full.
func TestRoom(t *testing.T) {
	owner := func(namespace, container string) *identity.Owner {
		return &identity.Owner{Workload: container, Namespace: namespace, ContainerID: container}
	}
	r := room{perOwner: 2, perNamespace: 3, all: 7}
	for i, step := range []struct {
		owner *identity.Owner
		want  bool
	}{
		{owner("a", "1"), true},
		{owner("a", "1"), true},
		{owner("a", "1"), false}, // the owner is full
		{owner("a", "2"), true},
		{owner("a", "2"), false}, // the namespace is full
		{owner("", "3"), true},
		{owner("", "3"), true},
		{owner("", "3"), false},
		{owner("", "4"), true},
		{nil, true},
		{nil, false}, // the room is full
		{owner("", "5"), false},
	} {
		if got := r.take(step.owner); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// TestRemembered: what is remembered of ports, interfaces, HCAs, states and sources over refreshes has a limit.
func TestRemembered(t *testing.T) {
	n, j, roles := newNode(), &Judge{}, newRoles()
	lasting := Linger{stays: map[lingerKey]*stay{}}
	working := sensorRules{&round{Input: Input{At: start}}, map[workedKey]time.Time{}}
	for i := range max(maxPorts, maxLingering, maxWorked) + 1 {
		name := fmt.Sprint(i)
		roles.management[name] = true
		n.facts.HCAs[1].Ports = append(n.facts.HCAs[1].Ports, model.Port{Number: 2 + i})
		n.facts.Links = append(n.facts.Links, model.Link{Device: "mlx5_1", Port: 2 + i, Netdev: name, Carrier: &model.Carrier{}})
		lasting.next(lingerKey{device: name}, "training", time.Time{}, start)
		working.lastWorked(workedKey{source: name}, true)
	}
	n.judge(j, start)
	roles.update(&Input{Facts: &model.Snapshot{}, Shares: &attribution.Attribution{}})
	if len(j.ports) != maxPorts || len(j.legs) != maxPorts || len(roles.management) != maxPorts {
		t.Errorf("%d ports, %d interfaces, %d HCAs for management", len(j.ports), len(j.legs), len(roles.management))
	}
	if len(lasting.stays) != maxLingering || len(working.worked) != maxWorked {
		t.Errorf("%d states, %d sources", len(lasting.stays), len(working.worked))
	}
}
