// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// slowCounters caches the counters of a port after a slow read. The kernel adds the value of every counter bound to
// queue pairs, with one firmware query per addition: 40 counters of a port and 64 threads with queue pairs cause
// thousands of queries.
type slowCounters struct {
	counters []model.Counter
	until    time.Time
}

const (
	slowRead  = 50 * time.Millisecond
	slowPause = 20 // pause after a slow read, in multiples of its duration
)

// took keeps the counters if reading them took at least slowRead.
func (s *slowCounters) took(took time.Duration, now time.Time, counters []model.Counter) {
	if *s = (slowCounters{}); took >= slowRead {
		*s = slowCounters{counters, now.Add(slowPause * took)}
	}
}
