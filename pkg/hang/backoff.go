// SPDX-License-Identifier: Apache-2.0

package hang

import "time"

// Backoff is the pause after failures: none after the first two in a row, a minute after the third, then twice as long
// each time, up to an hour. Assign the zero Backoff after a success.
type Backoff struct {
	fails int
	until time.Time
}

const (
	failsBeforePause = 3
	shortestPause    = time.Minute
	longestPause     = time.Hour
)

// Waiting reports whether the pause lasts at now.
func (b *Backoff) Waiting(now time.Time) bool { return now.Before(b.until) }

// Failed records a failure.
func (b *Backoff) Failed(now time.Time) {
	b.fails++
	if n := b.fails - failsBeforePause; n >= 0 {
		b.until = now.Add(min(shortestPause<<min(n, 6), longestPause))
	}
}

// Left returns how long the pause still lasts at now.
func (b *Backoff) Left(now time.Time) time.Duration { return b.until.Sub(now) }
