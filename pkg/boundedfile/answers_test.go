// SPDX-License-Identifier: Apache-2.0

package boundedfile

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAnswers: what the reads of a round mean for the device, the first time and after an answered round.
func TestAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		reads             []error
		lost, first, then bool // lost; silent in the first round, and later
	}{
		"answered":            {[]error{nil, unix.EIO, unix.ENODEV}, false, false, false},
		"removed":             {[]error{unix.ENODEV, unix.ENXIO, unix.ENOENT, unix.EPERM}, true, false, false},
		"input/output errors": {[]error{unix.EIO, unix.ENOENT}, false, true, true},
		"timeouts":            {[]error{unix.ETIMEDOUT, unix.EPERM}, false, true, true},
		"not permitted":       {[]error{unix.EPERM, unix.EBUSY}, false, false, true},
		"nothing to read":     {[]error{unix.ENOENT, unix.EOPNOTSUPP}, false, false, false},
		"not read":            {nil, false, false, false},
	} {
		var a Answers
		for round, want := range []bool{c.first, c.then} {
			a.Begin()
			for _, err := range c.reads {
				if err != nil {
					err = &os.PathError{Err: err}
				}
				a.Add(err)
			}
			if lost, why := a.End(); (why != nil) != want || lost != c.lost || why != nil && !errors.Is(why, c.reads[0]) {
				t.Errorf("%s, round %d: lost %v, not answered: %v", name, round, lost, why)
			}
			var part Answers
			part.Add(nil)
			a.Begin()
			a.Move(&part)
			a.End()
		}
	}
}
