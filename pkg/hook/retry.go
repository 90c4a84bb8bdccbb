// SPDX-License-Identifier: Apache-2.0

package hook

import "time"

// Retry decides when hooks that could not be attached are tried again: after half a minute, then after twice the time,
// up to ten minutes. An attempt parses BTF and /proc/kallsyms, which takes a tenth of a second of CPU time and 20 MB of
// memory. Assign the zero Retry when something has changed, such as the devices or the modules.
type Retry struct {
	pause time.Duration
	at    time.Time
}

const (
	firstPause   = 30 * time.Second
	longestPause = 10 * time.Minute
)

// Failed records a failure.
func (r *Retry) Failed(now time.Time) {
	r.pause = min(max(2*r.pause, firstPause), longestPause)
	r.at = now.Add(r.pause)
}

// Waiting reports whether the pause lasts at now.
func (r *Retry) Waiting(now time.Time) bool { return now.Before(r.at) }

// Pending reports whether there was a failure.
func (r *Retry) Pending() bool { return r.pause > 0 }
