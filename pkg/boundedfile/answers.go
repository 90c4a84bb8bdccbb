// SPDX-License-Identifier: Apache-2.0

package boundedfile

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Answers counts how a driver answers reads of the attributes of a device. The zero value is ready to use.
type Answers struct {
	given  int
	gone   int   // reports of a removed device
	failed error // the first failure of the device
	other  error // the first failure that may belong to the attribute, or pass
	before bool  // the device has answered in an earlier round
}

// lacking are the errors of attributes that a chip does not have.
var lacking = []error{unix.ENOENT, unix.ENOTDIR, unix.EOPNOTSUPP}

// passing are the errors of attributes that are not available: for good, for a setting, or while the device is reset.
// EISDIR does not come from a driver.
var passing = []error{unix.EINVAL, unix.EPERM, unix.EACCES, unix.EBUSY, unix.EAGAIN, unix.ENODATA, unix.EISDIR}

// Add counts the result of a read.
func (a *Answers) Add(err error) {
	is := func(e error) bool { return errors.Is(err, e) }
	switch {
	case err == nil:
		a.given++
	case is(unix.ENODEV), is(unix.ENXIO):
		a.gone++
	case slices.ContainsFunc(lacking, is):
	case slices.ContainsFunc(passing, is):
		a.other = first(a.other, err)
	default:
		a.failed = first(a.failed, err)
	}
}

// Begin begins a round of reads.
func (a *Answers) Begin() { *a = Answers{before: a.before} }

// End ends the round. lost: every answer was that the device was removed. silent is why all reads failed. It is nil if
// a read succeeded, if the device was removed, or if it has no readable attribute now or in earlier rounds.
func (a *Answers) End() (lost bool, silent error) {
	switch {
	case a.given > 0:
		a.before = true
		return false, nil
	case a.gone > 0:
		return true, nil
	case a.failed != nil || !a.before:
		return false, a.failed
	}
	return false, a.other
}

// Move moves the reads of another part of the same device here.
func (a *Answers) Move(b *Answers) {
	a.given, a.gone = a.given+b.given, a.gone+b.gone
	a.failed, a.other = first(a.failed, b.failed), first(a.other, b.other)
	b.Begin()
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
