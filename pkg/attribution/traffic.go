// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TrafficShare is the bytes that an owner moved over a device in a direction, by method. No byte is in two methods'
// shares: they can be added. Package traffic computes them.
type TrafficShare struct {
	Owner     int
	Device    string
	Method    model.Method
	Direction model.Direction
	Bytes     uint64
	Since     time.Time // see Share
}

// PeerShare is a connected queue pair with its owner.
type PeerShare struct {
	identity.Owner
	model.Peer
	// StalledFor is how long the queue pair has had outstanding work requests and no completion, 0 if it is not
	// stalled, or if unknown.
	StalledFor time.Duration
	// ReceiveWait is how long the queue pair has waited for receives, without its present wait. OldestReceive is the present
	// wait. Both are 0 if unknown.
	ReceiveWait, OldestReceive time.Duration
}

// Peers adds owners, stalls and waits to queue pairs.
func Peers(
	peers []model.Peer, stalled []model.StalledQueuePair, waits []model.QueuePairWait, owners *identity.Table,
) []PeerShare {
	type number struct {
		device string
		qpn    uint32
	}
	stalledFor := make(map[number]time.Duration, len(stalled))
	for _, q := range stalled {
		stalledFor[number{q.Device, q.QPN}] = q.For
	}
	waited := make(map[number]model.QueuePairWait, len(waits))
	for _, w := range waits {
		waited[number{w.Device, w.QPN}] = w
	}
	shares := make([]PeerShare, len(peers))
	for i, p := range peers {
		at := number{p.Device, p.QPN}
		shares[i] = PeerShare{owners.OwnerOf(p.Cgroup), p, stalledFor[at], waited[at].Waited, waited[at].Waiting}
	}
	return shares
}
