// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// EventStats counts sent and dropped events. It is nil if the event exporter is disabled.
type EventStats struct {
	// Recent are the last events, oldest first, without faults: see FaultHistory.
	Recent []RecentEvent

	// Sent are the records that the receiver accepted, including snapshots. Resent is the part of Sent that the
	// receiver may have received twice.
	Sent   uint64
	Resent uint64
	// Dropped are the undelivered events, by reason. Reasons that did not occur are listed with 0.
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
	Workload    string // of the container; without a container, empty like ContainerID
	ContainerID string
	Device      string // the HCA or network interface; may be empty
	// Reconciled reports that the event was found later in a list of the runtime: it happened before Time.
	Reconciled bool
}
