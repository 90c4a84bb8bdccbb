// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
)

// ListPeers lists the connected queue pairs that exist now, with their owners.
type ListPeers func() ([]attribution.PeerShare, error)

// Peer is a connected queue pair and its remote end. If the owner is unknown, its fields are empty.
type Peer struct {
	identity.Owner
	Device    string `json:"device"`
	Port      uint32 `json:"port"`
	QPN       uint32 `json:"qpn"`
	Type      string `json:"type"`
	State     string `json:"state"`
	RemoteGID string `json:"remote_gid"` // as an IP address, which a RoCE v2 GID is
	RemoteQPN uint32 `json:"remote_qpn"`
	RemoteLID uint32 `json:"remote_lid"` // 0 on RoCE
	// RemoteAddress is known of kernel users only. State, RemoteGID and RemoteQPN are not.
	RemoteAddress string `json:"remote_address,omitempty"`
	// StalledSeconds is how long the queue pair had outstanding work requests and no completion. It is absent if the
	// queue pair is not stalled or its state is unknown.
	StalledSeconds float64 `json:"stalled_seconds,omitempty"`
	// ReceiveWaitSeconds is the total of the ended waits for receives, OldestReceiveSeconds the present wait. They are
	// absent if 0 or unknown.
	ReceiveWaitSeconds   float64 `json:"receive_wait_seconds,omitempty"`
	OldestReceiveSeconds float64 `json:"oldest_receive_seconds,omitempty"`
}

// peersAnswer answers with the connected queue pairs of the node, of one workload (?workload=), on one HCA (?device=),
// the stalled ones (?stalled=true) or all: a JSON array. If queue pairs cannot be listed, the status is 503 with the
// reason in {"error": …}.
func peersAnswer(list ListPeers) answerFunc {
	return func(w http.ResponseWriter, r *http.Request, _ *Known) {
		shares, err := list()
		if err != nil {
			fail(w, err)
			return
		}
		query := r.URL.Query()
		write(w, http.StatusOK, peers(shares, query.Get("workload"), query.Get("device"), query.Get("stalled") == "true"))
	}
}

func peers(shares []attribution.PeerShare, workload, device string, stalled bool) []Peer {
	out := []Peer{}
	for _, s := range shares {
		if workload != "" && workload != s.Workload || device != "" && device != s.Device || stalled && s.StalledFor == 0 {
			continue
		}
		address := ""
		if s.Remote.IsValid() {
			address = s.Remote.String()
		}
		out = append(out, Peer{
			Owner: s.Owner, Device: s.Device, Port: s.Port, QPN: s.QPN, Type: s.Type, State: s.State,
			RemoteGID: s.RemoteGID, RemoteQPN: s.RemoteQPN, RemoteLID: s.RemoteLID, RemoteAddress: address,
			StalledSeconds:     s.StalledFor.Seconds(),
			ReceiveWaitSeconds: s.ReceiveWait.Seconds(), OldestReceiveSeconds: s.OldestReceive.Seconds(),
		})
	}
	slices.SortFunc(out, func(x, y Peer) int {
		return cmp.Or(
			strings.Compare(x.Workload, y.Workload), strings.Compare(x.ContainerID, y.ContainerID),
			strings.Compare(x.Device, y.Device), cmp.Compare(x.QPN, y.QPN),
		)
	})
	return out
}
