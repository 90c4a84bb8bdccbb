// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/hang"
)

// Attempt is the last attempt to read a file or to send a netlink request, and the pause after failures.
type Attempt struct {
	Name  string
	pause hang.Backoff
	Err   error
}

// Waiting reports whether the pause after a failure lasts.
func (a *Attempt) Waiting(now time.Time) bool { return a.pause.Waiting(now) }

// Done keeps the result of an attempt.
func (a *Attempt) Done(now time.Time, err error) {
	if a.Err = err; err == nil {
		a.pause = hang.Backoff{}
	} else {
		a.pause.Failed(now)
	}
}

// Tally counts the files and netlink requests that succeeded or failed. Paused counts failures that back off. Silent
// counts the files of directories whose counters never had a value.
type Tally struct {
	Good, Bad, Paused int
	Silent            int
	SilentIn          string // the first silent directory
	where             string
	First             error
}

// Count counts the last attempt, which may have been before a pause. dir is the directory of a file.
func (t *Tally) Count(dir string, a *Attempt, now time.Time) {
	if a.Err == nil {
		t.Good++
		return
	}
	if t.Bad++; t.Bad == 1 {
		t.where, t.First = filepath.Join(dir, a.Name), a.Err
	}
	if a.Waiting(now) {
		t.Paused++
	}
}

// Err describes the failures. what names the things that were read.
func (t *Tally) Err(what string) error {
	return fmt.Errorf("%d of %d %s unreadable, the first is %s: %w", t.Bad, t.Good+t.Bad, what, t.where, t.First)
}
