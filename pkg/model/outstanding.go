// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Outstanding describes the signaled work requests of one cgroup on one HCA that were posted and that the process has not
// polled a completion of. Only queue pairs that are traced without gaps are included.
type Outstanding struct {
	Cgroup CgroupID
	Device string
	// Oldest is the age of the oldest work request, 0 if there is none.
	Oldest time.Duration
	// Stalled is the number of queue pairs that have outstanding work requests and had no completion for a while.
	Stalled uint64
	// Gaps are the reasons why queue pairs of the cgroup are not included, sorted. Oldest and Stalled are lower bounds then.
	Gaps []Gap
}

// The gaps that only the outstanding work requests of a queue pair have, beside GapLate and GapSurvey.
const (
	GapQueuesFull Gap = "queues_full" // there was no room for the work requests of the queue pair
	GapUnmatched  Gap = "unmatched"   // completions do not match the work requests that were seen
	// GapUnpolled: no completion was polled through a probed function, and it is not known that the next one will be.
	GapUnpolled Gap = "unpolled"
)

// StalledQueuePair is a queue pair with outstanding work requests that had no completion for a while.
type StalledQueuePair struct {
	Cgroup CgroupID
	Device string
	QPN    uint32
	// For is the time since its last completion, or since the oldest work request was posted if that is later.
	For time.Duration
}
