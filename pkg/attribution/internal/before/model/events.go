// SPDX-License-Identifier: Apache-2.0

package model

// EventStats is what became of the events that were to be sent. It is nil when
// none are.
type EventStats struct {
	// Sent are the records that the collector took, those of snapshots
	// included; Resent those of them that it may have got before.
	Sent   uint64
	Resent uint64
	// Dropped are the events that did not arrive, by reason; a reason that did
	// not occur is there with zero.
	Dropped   []Loss
	Queued    uint64
	Capacity  uint64
	Connected bool
}
