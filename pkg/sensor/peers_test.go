// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"errors"
	"testing"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// A sensor without the probe returns an error with the reason, one without a device returns an empty list.
func TestPeerShares(t *testing.T) {
	s := &Sensor{engine: startEngine(t, engine.Options{}), peers: noPeers(model.ErrUnsupported)}
	if got, err := s.peerShares(); got != nil || !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("%v, %v", got, err)
	}
	s.peers = func() ([]model.Peer, error) { return []model.Peer{{Cgroup: 7, QPN: 1}}, nil }
	got, err := s.peerShares()
	if len(got) != 1 || got[0].Owner != (identity.Owner{}) || got[0].QPN != 1 || err != nil {
		t.Errorf("%+v, %v: want one that is unattributed", got, err)
	}
}
