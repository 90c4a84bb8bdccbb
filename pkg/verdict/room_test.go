// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/identity"
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
