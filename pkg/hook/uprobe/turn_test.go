// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestTurn: one operation at a time, and later after a deferred operation: each time twice as long, up to a minute.
func TestTurn(t *testing.T) {
	var turn Turn
	now := time.Unix(1000, 0)
	if !turn.Take(now) || turn.Take(now) || !turn.Taken() {
		t.Error("not one operation at a time")
	}
	deferred := fmt.Errorf("%w: held", ErrDeferred)
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8, 16, 32, time.Minute, time.Minute} {
		if want < time.Second {
			want *= time.Second
		}
		turn.Ended(deferred, now, time.Hour)
		if turn.Take(now.Add(want - 1)) {
			t.Errorf("due before %v", want)
		}
		if now = now.Add(want); !turn.Take(now) {
			t.Errorf("not due after %v", want)
		}
	}
	if turn.Ended(errors.New("failed"), now, time.Hour); turn.Take(now.Add(time.Hour-1)) || !turn.Take(now.Add(time.Hour)) {
		t.Error("after a failure, the retry interval does not count")
	}
	if turn.Ended(nil, now, time.Hour); !turn.Take(now) {
		t.Error("not due after a success")
	}
}
