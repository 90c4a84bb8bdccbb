// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestBondRates: the rate of a port on a bond is the sum of its active legs.
func TestBondRates(t *testing.T) {
	up, down := &Carrier{Up: true, Admin: true}, &Carrier{Admin: true}
	leg := func(device string, bits float64, c *Carrier, backup bool) Link {
		return Link{Device: device, Port: 1, Bond: "bond0", SpeedBits: bits, Carrier: c, Backup: backup}
	}
	got := BondRates([]Link{
		{Device: "single", Port: 1, SpeedBits: 100, Carrier: up},
		leg("both", 200, up, false), leg("both", 200, up, false),
		leg("unequal", 200, up, false), leg("unequal", 100, up, false),
		leg("one", 200, up, false), leg("one", 200, down, false),
		leg("none", 200, down, false), leg("none", 200, down, false),
		leg("backup", 200, up, false), leg("backup", 200, up, true),
		leg("unknown", 200, up, false), leg("unknown", 0, up, false),
		leg("idle", 200, up, false), leg("idle", 0, down, false),
		leg("unread", 200, up, false), leg("unread", 200, nil, false),
		leg("", 200, up, false),
	})
	want := map[PortID]float64{
		{"both", 1}: 400, {"unequal", 1}: 300, {"one", 1}: 200, {"none", 1}: 0, {"backup", 1}: 200, {"idle", 1}: 200,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
