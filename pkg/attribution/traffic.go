// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TrafficShare is the number of bytes that one owner moved over one device in one direction,
// as one method counted them. No byte is in the shares of two methods, so they can be added.
// Package traffic computes them.
type TrafficShare struct {
	Owner     int
	Device    string
	Method    model.Method
	Direction model.Direction
	Bytes     uint64
	Sampled   bool // see model.Seen; not part of any sum
	Uncertain bool // sampled, and too uncertain to be listed
}

// PeerShare is a connected queue pair with its owner.
type PeerShare struct {
	identity.Owner
	model.Peer
}

// Peers adds their owners to queue pairs.
func Peers(peers []model.Peer, owners *identity.Table) []PeerShare {
	shares := make([]PeerShare, len(peers))
	for i, p := range peers {
		shares[i] = PeerShare{owners.OwnerOf(p.Cgroup), p}
	}
	return shares
}
