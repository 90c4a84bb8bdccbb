// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// EventStats counts sent and dropped events. It is nil if no events are sent.
type EventStats struct {
	// Recent are the last events, oldest first, without faults, which are in FaultHistory.
	Recent []RecentEvent

	// Sent are the records that the receiver accepted, including those of snapshots; Resent
	// the part of them that it may have received twice.
	Sent   uint64
	Resent uint64
	// Dropped are the events that did not arrive, by reason; a reason that did not occur is
	// listed with zero.
	Dropped   []Loss
	Queued    uint64
	Capacity  uint64
	Connected bool
}

// RecentEvent is an event as viewers see it.
type RecentEvent struct {
	Time        time.Time
	Name        string // container.exit, device.link_flap and so on
	Text        string // one sentence
	Workload    string // of the container; empty without one, as ContainerID is
	ContainerID string
	Device      string // name of the HCA or network interface that it is about; empty without one
	// Reconciled reports that it was found later, in a list of the runtime: it happened before Time.
	Reconciled bool
}
