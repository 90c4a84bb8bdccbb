// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"time"
)

const (
	firstWait = time.Second
	lastWait  = time.Minute
)

// turn is when the next Operation on a file is due: one at a time, and later after a deferred operation. Attempts never
// end: a look costs little, and a user must not be able to defer a file for good.
type turn struct {
	taken    bool
	deferred int // consecutive deferrals
	at       time.Time
}

// take begins an operation. It reports false if the operation is not due.
func (t *turn) take(now time.Time) bool {
	if t.taken || now.Before(t.at) {
		return false
	}
	t.taken = true
	return true
}

// ended ends an operation with its error. After a failed operation, the next is due after retry.
func (t *turn) ended(err error, now time.Time, retry time.Duration) {
	t.taken = false
	switch {
	case errors.Is(err, ErrDeferred):
		t.deferred++
		t.at = now.Add(min(firstWait<<min(t.deferred-1, 10), lastWait))
	case err != nil:
		t.deferred, t.at = 0, now.Add(retry)
	default:
		t.deferred, t.at = 0, time.Time{}
	}
}
