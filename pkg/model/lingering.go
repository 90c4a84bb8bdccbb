// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Lingering is a device that stays in an intermediate state for longer than normal.
type Lingering struct {
	State string // name of a row of verdict.IntermediateStates
	Value string // the present value, in the driver's words: in_progress
	// Device (with Port) is an HCA, UUID a GPU; all are empty for the node. Netdev is the port's interface if its
	// driver reports the state, or, without Device, a physical function without an HCA.
	Device string
	Port   int
	Netdev string
	UUID   string
	Since  time.Time     // when the device was first seen in the state
	Held   time.Duration // how long it was in the state since then
	Times  int           // how often the device entered the state since then
}

// FabricManager is NVIDIA's fabric manager, the process nv-fabricmanager.
type FabricManager struct {
	Running bool
	Starts  uint64 // after the first start, or after the sensor's start
}
