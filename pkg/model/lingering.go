// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Lingering is a device that stays in an intermediate state for longer than normal.
type Lingering struct {
	State string // which state: the name of a row of verdict.IntermediateStates
	Value string // the present value, in the words of the driver: in_progress
	// Device is an HCA, with its Port, or UUID a GPU; all are empty for the node. Netdev is the interface behind the port whose driver
	// reports the state, or alone a physical function without an HCA.
	Device string
	Port   int
	Netdev string
	UUID   string
	Since  time.Time     // when the device was first seen in the state
	Held   time.Duration // how long it was in the state since then
	Times  int           // how often it came into the state since then
}

// FabricManager is NVIDIA's fabric manager, the process nv-fabricmanager.
type FabricManager struct {
	Running bool
	Starts  uint64 // after its first one, or after the start of the sensor
}
