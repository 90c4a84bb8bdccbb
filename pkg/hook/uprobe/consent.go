// SPDX-License-Identifier: Apache-2.0

package uprobe

import "time"

// Consent is whether the processes of a cgroup may have probes. A probe is hit by all processes that map the file, so a file has none while
// a process without consent maps it.
type Consent uint8

// What a container or pod may say.
const (
	Given   Consent = iota
	Awaited         // the labels of the container, which may refuse, are not known yet
	Refused
)

// longestWait is how long a file waits for consent. A runtime lists a container before its first process runs, and all containers some
// seconds after the start of the sensor. What is not listed then belongs to no runtime that the sensor knows.
const longestWait = 10 * time.Second

// Wait is how long a file without probes has waited for the consent of the processes that map it. It has an end also if such processes
// come all the time. The zero Wait has not begun.
type Wait struct{ since time.Time }

// For reports whether the file must wait: one of the processes that map it has not consented yet.
func (w *Wait) For(awaited bool, now time.Time) bool {
	switch {
	case !awaited:
		w.since = time.Time{}
		return false
	case w.since.IsZero():
		w.since = now
	}
	return now.Sub(w.since) < longestWait
}
