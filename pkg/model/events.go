// SPDX-License-Identifier: Apache-2.0

package model

// EventStats counts sent and dropped events. It is nil if no events are sent.
type EventStats struct {
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
