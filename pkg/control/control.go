// SPDX-License-Identifier: Apache-2.0

// Package control has both ends of the socket on which commands change what a running sensor does.
package control

import (
	"time"
)

// The requests of the control socket. GET /gpu/status, POST /gpu/release?for=10m&reason=TEXT and
// POST /gpu/resume answer with a GPUStatus.
const (
	statusPath  = "/gpu/status"
	releasePath = "/gpu/release"
	resumePath  = "/gpu/resume"
)

const (
	defaultRelease = 10 * time.Minute
	longestRelease = 24 * time.Hour
	maxReason      = 200 // bytes
)

// GPUStatus is whether NVIDIA's library is open.
type GPUStatus struct {
	State  string     `json:"state"` // ok: it is open; released, absent, failed, unsupported
	Reason string     `json:"reason,omitempty"`
	Until  *time.Time `json:"until,omitempty"` // end of the release
	Closed []string   `json:"closed"`          // device nodes that were closed by the release
	Open   []string   `json:"open"`            // device nodes that are open
}

// acceptPath is the request of the control socket, with id=… for each device. It answers with an acceptance.
const acceptPath = "/inventory/accept"

// acceptance is the answer to an acceptance of missing devices.
type acceptance struct {
	Accepted []string `json:"accepted"`
}

// Accepter is an inventory.
type Accepter interface {
	Accept(now time.Time, names []string) []string
}
