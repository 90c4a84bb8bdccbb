// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// slow keeps the counters of a port for a while when it took long to read them.
// To each of them the kernel adds that of every counter that queue pairs are
// bound to, and asks the firmware each time: 40 counters of a port, with 64
// threads that have queue pairs, are thousands of queries.
type slow struct {
	counters []model.Counter
	until    time.Time
}

const (
	slowRead = 50 * time.Millisecond
	slowPart = 20 // of the time is between two reads that are slow
)

func (s *slow) took(took time.Duration, now time.Time, counters []model.Counter) {
	if *s = (slow{}); took >= slowRead {
		*s = slow{counters, now.Add(slowPart * took)}
	}
}
