// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TrafficShare is what one owner moved over one device in one direction, in bytes, as one
// method counted it. The shares of all methods together are what the owner moved: no byte
// is in two of them. Package traffic computes them.
type TrafficShare struct {
	Owner     int
	Device    string
	Method    model.Method
	Direction model.Direction
	Bytes     uint64
	Sampled   bool // see model.Seen; these are in no sum
}

// PeerShare is a connected queue pair with its owner.
type PeerShare struct {
	identity.Owner
	model.Peer
}

// Peers gives queue pairs their owners.
func Peers(peers []model.Peer, owners *identity.Table) []PeerShare {
	shares := make([]PeerShare, len(peers))
	for i, p := range peers {
		shares[i] = PeerShare{owners.OwnerOf(p.Cgroup), p}
	}
	return shares
}
