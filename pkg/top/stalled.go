// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/format"
)

// stalledHeader names the columns of the table of stalled queue pairs. STALLED is the time that a queue pair waits for a
// completion.
var stalledHeader = []string{"WORKLOAD", "DEVICE", "QPN", "STALLED", "CONNECTED TO", "REMOTE QPN"}

// A silentPeer is a stalled queue pair and its remote end, as /api/v1/peers lists it.
type silentPeer struct {
	Workload       string  `json:"workload"`
	ContainerID    string  `json:"container_id"`
	Device         string  `json:"device"`
	QPN            uint32  `json:"qpn"`
	RemoteGID      string  `json:"remote_gid"`
	RemoteLID      uint32  `json:"remote_lid"`
	RemoteQPN      uint32  `json:"remote_qpn"`
	StalledSeconds float64 `json:"stalled_seconds"`
}

// stalled is the number of stalled queue pairs by row, and those of them that have a remote end.
type stalled struct {
	pairs map[key]float64
	peers []silentPeer
}

func parseStalled(families map[string]*dto.MetricFamily) stalled {
	s := stalled{pairs: map[key]float64{}}
	each(families, "container_rdma_stalled_queue_pairs", func(k key, _ map[string]string, m *dto.Metric) {
		if n := value(m); n > 0 {
			s.pairs[k] += n
		}
	})
	return s
}

// readPeers requests the remote ends of stalled queue pairs from the sensor with these metrics. Without an answer they are
// unknown: the sensor may not list peers.
func (s *stalled) readPeers(ctx context.Context, client *http.Client, metrics string) {
	var peers []silentPeer
	if len(s.pairs) > 0 && readAPI(ctx, client, metrics, "/api/v1/peers", "stalled=true", &peers) {
		s.peers = peers
	}
}

// rows renders the table, without its header: for each workload and HCA the queue pairs, and the number of those without a
// known remote end.
func (s *stalled) rows() [][]string {
	byKey := map[key][]silentPeer{}
	for _, p := range s.peers {
		k := key{p.Workload, p.ContainerID, p.Device}
		byKey[k] = append(byKey[k], p)
	}
	out := make([][]string, 0, len(s.peers))
	for _, k := range slices.SortedFunc(maps.Keys(s.pairs), byName) {
		peers := byKey[k]
		slices.SortFunc(peers, func(a, b silentPeer) int {
			return cmp.Or(cmp.Compare(b.StalledSeconds, a.StalledSeconds), cmp.Compare(a.QPN, b.QPN))
		})
		for _, p := range peers {
			out = append(out, []string{
				format.Owner(k.workload), format.Escape(k.device), fmt.Sprint(p.QPN), fmt.Sprintf("%.0fs", p.StalledSeconds),
				p.remote(), fmt.Sprint(p.RemoteQPN),
			})
		}
		if others := int(s.pairs[k]) - len(peers); others > 0 {
			out = append(out, []string{
				format.Owner(k.workload), format.Escape(k.device), fmt.Sprintf("%d others", others), format.None, format.None, format.None,
			})
		}
	}
	return out
}

func (p *silentPeer) remote() string {
	switch {
	case p.RemoteGID != "":
		return format.Escape(p.RemoteGID)
	case p.RemoteLID != 0:
		return fmt.Sprint("LID ", p.RemoteLID)
	}
	return "(not known)"
}
