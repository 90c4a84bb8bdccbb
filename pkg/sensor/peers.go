// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// noPeers returns a function that fails with why, for a sensor that does not list peers.
func noPeers(why error) func() ([]model.Peer, error) {
	return func() ([]model.Peer, error) { return nil, why }
}

// peerShares returns the connected queue pairs with their owners. A queue pair of a cgroup
// without a name is unattributed.
func (s *Sensor) peerShares() ([]attribution.PeerShare, error) {
	found, err := s.peers()
	if err != nil {
		return nil, err
	}
	refresh := s.engine.Refresh() // updates the owners of cgroups
	return attribution.Peers(found, &refresh.Facts, s.engine.Owners()), nil
}
