// SPDX-License-Identifier: Apache-2.0

package link

import "time"

// budget bounds the time of readings: a tenth of the time, at most 6 s in one piece. A longer reading costs a pause of
// a minute, not more.
type budget struct {
	left time.Duration // negative after a reading that overran the budget
	at   time.Time
}

const (
	budgetPart = 10 // the part of the time: 1/10
	budgetMost = 6 * time.Second
)

func newBudget(now time.Time) budget { return budget{budgetMost, now} }

func (b *budget) open(now time.Time) bool {
	b.left = min(b.left+now.Sub(b.at)/budgetPart, budgetMost)
	b.at = now
	return b.left > 0
}

func (b *budget) spend(took time.Duration) { b.left = max(b.left-took, -budgetMost) }
