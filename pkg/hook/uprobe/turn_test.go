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
	var next turn
	now := time.Unix(1000, 0)
	if !next.take(now) || next.take(now) || !next.taken {
		t.Error("not one operation at a time")
	}
	deferred := fmt.Errorf("%w: held", ErrDeferred)
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8, 16, 32, time.Minute, time.Minute} {
		if want < time.Second {
			want *= time.Second
		}
		next.ended(deferred, now, time.Hour)
		if next.take(now.Add(want - 1)) {
			t.Errorf("due before %v", want)
		}
		if now = now.Add(want); !next.take(now) {
			t.Errorf("not due after %v", want)
		}
	}
	if next.ended(errors.New("failed"), now, time.Hour); next.take(now.Add(time.Hour-1)) || !next.take(now.Add(time.Hour)) {
		t.Error("after a failure, the retry interval does not count")
	}
	if next.ended(nil, now, time.Hour); !next.take(now) {
		t.Error("not due after a success")
	}
}
