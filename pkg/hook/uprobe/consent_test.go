// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"testing"
	"time"
)

// TestWait: a file waits until all answers are known, or for a limited time, even if new processes keep coming.
func TestWait(t *testing.T) {
	var w wait
	now := time.Unix(1e9, 0)
	at := func(after time.Duration, awaited bool) bool { return w.lasts(awaited, now.Add(after)) }
	if at(0, false) || !at(1, true) || !at(longestWait, true) || at(longestWait+1, true) || at(2*longestWait, true) {
		t.Error("a wait that nobody ends")
	}
	if at(2*longestWait, false) || !at(2*longestWait+1, true) {
		t.Error("a wait after another one")
	}
}
