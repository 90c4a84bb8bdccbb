// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Outstanding are the signaled work requests of a cgroup on an HCA that were posted and whose completion the process
// has not polled. Only queue pairs that are traced without gaps are included.
type Outstanding struct {
	Cgroup CgroupID
	Device string
	// Oldest is the age of the oldest work request, or 0.
	Oldest time.Duration
	// Stalled is the number of queue pairs with outstanding work requests and no completion for a while.
	Stalled uint64
	// Gaps are why queue pairs of the cgroup are not included, sorted. With gaps, Oldest and Stalled are lower bounds.
	Gaps []Gap
	// OldestReceive is the longest time for which a posted receive has been the oldest incomplete work request of a queue
	// pair, or 0.
	OldestReceive time.Duration
	// ReceiveGaps are why OldestReceive lacks queue pairs, sorted.
	ReceiveGaps []Gap
}

// Gaps of outstanding work requests only, in addition to GapLate and GapSurvey.
const (
	GapQueuesFull Gap = "queues_full" // no room for the queue pair's work requests
	GapUnmatched  Gap = "unmatched"   // completions do not match the observed work requests
	// GapUnpolled: no completion was polled through a probed function, and the next completion may not be either.
	GapUnpolled Gap = "unpolled"
)

// GapPreposted is a gap of receives only: the receives of a queue pair are posted ahead of their use.
const GapPreposted Gap = "preposted"

// StalledQueuePair is a queue pair with outstanding work requests and no completion for a while.
type StalledQueuePair struct {
	Cgroup CgroupID
	Device string
	QPN    uint32
	// For is the time since the last completion, or since the oldest work request was posted if that is later.
	For time.Duration
}

// QueuePairWait is how long a queue pair has waited for receives.
type QueuePairWait struct {
	Cgroup CgroupID
	Device string
	QPN    uint32
	// Waited is the total of the waits that ended. Waiting is the present wait, or 0.
	Waited, Waiting time.Duration
}
