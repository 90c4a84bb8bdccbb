// SPDX-License-Identifier: Apache-2.0

package drm

import "testing"

// TestCounters: what a reading grew by, and how far its clock went, since the last listing.
func TestCounters(t *testing.T) {
	var c Counters
	client := Key{GPU: "0", ID: 7}
	engine := Key{GPU: "0", ID: 7, Engine: "gfx"}
	later := Key{GPU: "0", ID: 7, Engine: "dec"}
	for i, step := range []struct {
		value, clock, grown, elapsed uint64
		ok                           bool
	}{
		{value: 100, clock: 10},
		{value: 150, clock: 30, grown: 50, elapsed: 20, ok: true},
		{value: 150, clock: 30}, // the clock stands
		{value: 20, clock: 5},   // it started again
		{value: 30, clock: 6, grown: 10, elapsed: 1, ok: true},
	} {
		c.Begin()
		if c.Has(client) {
			t.Fatal("the client is recorded before it is read")
		}
		if seen := c.Record(client, step.clock); seen != (i > 0) || !c.Has(client) {
			t.Errorf("%d: seen %v", i, seen)
		}
		if grown, elapsed, ok := c.Grow(engine, step.value, step.clock); grown != step.grown && ok || elapsed != step.elapsed && ok || ok != step.ok {
			t.Errorf("%d: %d in %d, %v; want %+v", i, grown, elapsed, ok, step)
		}
	}
	c.Begin()
	c.Record(client, 16)
	if _, _, ok := c.Grow(engine, 40, 16); !ok {
		t.Error("a counter that goes on has no growth")
	}
	if grown, elapsed, ok := c.GrowUnlisted(later, 3, 16); grown != 3 || elapsed != 10 || !ok {
		t.Errorf("an engine that the driver lists for the first time: %d in %d, %v", grown, elapsed, ok)
	}
	other := Key{GPU: "0", ID: 8, Engine: "dec"}
	if _, _, ok := c.GrowUnlisted(other, 3, 16); ok {
		t.Error("a client at its first reading has a rate")
	}
}
