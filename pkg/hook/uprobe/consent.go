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

// longestWait is how long a file waits for the consent of a process. A runtime lists a container before its first process runs; a container
// that is not listed for so long belongs to no runtime that the sensor knows.
const longestWait = 5 * time.Second

// Waits reports whether a file that a process maps must not be probed yet. since is when the process was seen first.
func (c Consent) Waits(since, now time.Time) bool {
	return c == Awaited && now.Sub(since) < longestWait
}
