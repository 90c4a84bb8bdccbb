// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"testing"
	"time"
)

// TestRetry: each pause is twice the last, within bounds, and a change ends it.
func TestRetry(t *testing.T) {
	var r Retry
	now := time.Unix(1000, 0)
	if r.Pending() || r.Waiting(now) {
		t.Error("the zero value waits")
	}
	for i, want := range []time.Duration{30, 60, 120, 240, 480, 600, 600} {
		want *= time.Second
		r.Failed(now)
		if !r.Pending() || !r.Waiting(now.Add(want-1)) || r.Waiting(now.Add(want)) {
			t.Errorf("failure %d: %+v, want a pause of %v", i, r, want)
		}
		now = now.Add(want)
	}
	if r = (Retry{}); r.Pending() || r.Waiting(now) {
		t.Error("it waits after a change")
	}
}
