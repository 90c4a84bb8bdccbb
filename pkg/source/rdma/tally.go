// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/hang"
)

// attempt is the last try to read something, a file or a netlink request, and the pause after failures.
type attempt struct {
	name  string
	pause hang.Backoff
	err   error
}

// waiting reports whether the pause after a failure lasts.
func (a *attempt) waiting(now time.Time) bool { return a.pause.Waiting(now) }

// done keeps the result of a try.
func (a *attempt) done(now time.Time, err error) {
	if a.err = err; err == nil {
		a.pause = hang.Backoff{}
	} else {
		a.pause.Failed(now)
	}
}

// tally counts the files and netlink requests that succeeded and those that failed. paused counts failures that back off. silent counts the files of directories none of whose counters ever had a value.
type tally struct {
	good, bad, paused int
	silent            int
	silentIn          string // the first such directory
	where             string
	first             error
}

// count counts the last try, which may have been before a pause. dir is the directory of a file.
func (t *tally) count(dir string, a *attempt, now time.Time) {
	if a.err == nil {
		t.good++
		return
	}
	if t.bad++; t.bad == 1 {
		t.where, t.first = filepath.Join(dir, a.name), a.err
	}
	if a.waiting(now) {
		t.paused++
	}
}

func (t *tally) err(what string) error {
	return fmt.Errorf("%d of %d %s unreadable, the first is %s: %w", t.bad, t.good+t.bad, what, t.where, t.first)
}
