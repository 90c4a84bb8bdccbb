// SPDX-License-Identifier: Apache-2.0

package uprobe

import "time"

// Consent is whether the processes of a cgroup may have probes. All processes that map a file hit its probe, so a file
// is not probed while a process without consent maps it.
type Consent uint8

// The answers of a container or pod.
const (
	Given   Consent = iota
	Awaited         // the container's labels, which may refuse, are not known yet
	Refused
)

// longestWait is how long a file waits for consent. A runtime lists a container before its first process runs, and all
// containers some seconds after the start of the sensor. Other processes belong to no runtime that the sensor knows.
const longestWait = 10 * time.Second

// wait is how long an unprobed file has waited for the consent of the processes that map it. The wait ends even if new
// processes keep coming. The zero wait has not begun.
type wait struct{ since time.Time }

// lasts reports whether the file must wait, because a process that maps it has not consented yet.
func (w *wait) lasts(awaited bool, now time.Time) bool {
	switch {
	case !awaited:
		w.since = time.Time{}
		return false
	case w.since.IsZero():
		w.since = now
	}
	return now.Sub(w.since) < longestWait
}
