// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"math/rand/v2"
	"testing"
)

// TestCounter checks that the growth never exceeds the counter's rise, and that all growth counts if the counter only
// rises, apart from dips.
func TestCounter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		c := Counter{Value: r.Uint64N(1000)}
		first, last := c.Value, c.Value
		var total, rises uint64
		read := func(value uint64) {
			next, grown := c.Next(value)
			if value > last {
				rises += value - last
			} else if grown > 0 {
				t.Fatalf("%+v grew by %d when it fell to %d", c, grown, value)
			}
			c, last, total = next, value, total+grown
		}
		falls := false
		for range 20 {
			value := last + r.Uint64N(100)
			switch r.IntN(20) {
			case 0:
				value, falls = r.Uint64N(last+1), true
			case 1: // a dip of one reading
				read(last / 2)
			}
			read(value)
		}
		if total > rises {
			t.Fatalf("grew by %d, rose by %d", total, rises)
		}
		if !falls && total != last-first {
			t.Fatalf("grew by %d from %d to %d", total, first, last)
		}
	}
	if c, grown := (Counter{Value: 10, low: true}).Next(3); grown != 0 || c.Value != 3 {
		t.Errorf("reset: %+v, %d", c, grown)
	}
}
