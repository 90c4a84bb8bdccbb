// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// TrafficShare is what one owner moved over one device in one direction, in
// bytes, as one method tells it. The shares of all methods together are what
// the owner moved: no byte is in two of them.
type TrafficShare struct {
	Owner     int
	Device    string
	Method    model.Method
	Direction model.Direction
	Bytes     uint64
	Sampled   bool // see model.Seen; these are in no sum
}

// WorkRequestShare is the work requests of one opcode that one owner posted.
type WorkRequestShare struct {
	Owner  int
	Device string
	Opcode string
	Count  uint64
	Bytes  uint64
	model.Seen
}

// CompletionErrorShare is the completions of one status that one owner polled.
type CompletionErrorShare struct {
	Owner  int
	Device string
	Status string
	Count  uint64
	model.Seen
}

// CompletionShare is how long the work requests of one owner took.
type CompletionShare struct {
	Owner    int
	Device   string
	Opcode   string
	Duration model.FineHistogram
	model.Seen
}

// SamplingShare is which part of the time an owner's calls are watched: the least
// of its cgroups.
type SamplingShare struct {
	Owner  int
	Device string
	Calls  model.Calls
	Ratio  float64
}

// BudgetShare is what probes cost an owner: ratios are the highest of its cgroups.
type BudgetShare struct {
	Owner                  int
	LimitRatio, SpentRatio float64
	SpentSeconds           float64
}

// PeerShare is a connected queue pair with its owner.
type PeerShare struct {
	Owner
	model.Peer
}

// Peers gives queue pairs their owners: entities have their names already.
func Peers(peers []model.Peer, entities map[uint64]model.Entity) []PeerShare {
	shares := make([]PeerShare, len(peers))
	for i, p := range peers {
		shares[i] = PeerShare{OwnerOf(entities[p.Cgroup]), p}
	}
	return shares
}
