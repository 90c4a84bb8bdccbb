// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"net/netip"
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
	// Remote is the address of the remote end. It is known of kernel users, whose GIDs and states are not read: the kernel
	// would query the firmware.
	Remote netip.Addr
}

// Peers adds owners, stalls and waits to queue pairs of processes, and the connected queue pairs of kernel users.
func Peers(peers []model.Peer, s *model.Snapshot, owners *identity.Table) []PeerShare {
	type number struct {
		device string
		qpn    uint32
	}
	stalledFor := make(map[number]time.Duration, len(s.Stalled))
	for _, q := range s.Stalled {
		stalledFor[number{q.Device, q.QPN}] = q.For
	}
	waited := make(map[number]model.QueuePairWait, len(s.QueuePairWaits))
	for _, w := range s.QueuePairWaits {
		waited[number{w.Device, w.QPN}] = w
	}
	shares := make([]PeerShare, len(peers))
	for i, p := range peers {
		at := number{p.Device, p.QPN}
		shares[i] = PeerShare{
			Owner: owners.OwnerOf(p.Cgroup), Peer: p,
			StalledFor: stalledFor[at], ReceiveWait: waited[at].Waited, OldestReceive: waited[at].Waiting,
		}
	}
	for _, id := range s.KernelIDs {
		if id.QPN != 0 {
			shares = append(shares, PeerShare{
				Owner:  identity.KernelOwner(id.Module),
				Peer:   model.Peer{Device: id.Device, Port: id.Port, QPN: id.QPN, Type: model.QPTypeName(uint32(id.QPType))},
				Remote: id.Remote,
			})
		}
	}
	return shares
}
