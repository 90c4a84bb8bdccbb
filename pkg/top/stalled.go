// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/overview"
)

// stalledHeader names the columns of the table of stalled queue pairs. STALLED is the time that a queue pair waits for a
// completion.
var stalledHeader = []string{"WORKLOAD", "DEVICE", "QPN", "STALLED", "CONNECTED TO", "REMOTE QPN"}

// stalls reports whether queue pairs of a row are stalled.
func stalls(u overview.Row) bool { return u.Stalled != nil && *u.Stalled > 0 }

// stalledGrid returns the table: for each workload and HCA the queue pairs, and the number of those without a known remote end.
func (r *reading) stalledGrid() grid {
	byKey := map[overview.Key][]api.Peer{}
	for _, p := range r.stalled {
		k := overview.Key{Workload: p.Workload, ContainerID: p.ContainerID, Device: p.Device}
		byKey[k] = append(byKey[k], p)
	}
	g := grid{header: stalledHeader}
	for _, u := range byName(r.workloads.Rows) {
		if !stalls(u) {
			continue
		}
		workload, device := format.Owner(u.Workload), format.Escape(u.Device)
		peers := byKey[u.Key()]
		slices.SortFunc(peers, func(a, b api.Peer) int {
			return cmp.Or(cmp.Compare(b.StalledSeconds, a.StalledSeconds), cmp.Compare(a.QPN, b.QPN))
		})
		for i := range peers {
			p := &peers[i]
			g.rows = append(g.rows, []string{
				workload, device, fmt.Sprint(p.QPN), fmt.Sprintf("%.0fs", p.StalledSeconds), remote(p), fmt.Sprint(p.RemoteQPN),
			})
		}
		if named := uint64(len(peers)); *u.Stalled > named {
			g.rows = append(g.rows, []string{
				workload, device, fmt.Sprintf("%d others", *u.Stalled-named), format.None, format.None, format.None,
			})
		}
	}
	return g
}

func remote(p *api.Peer) string {
	switch {
	case p.RemoteGID != "":
		return format.Escape(p.RemoteGID)
	case p.RemoteLID != 0:
		return fmt.Sprint("LID ", p.RemoteLID)
	}
	return "(not known)"
}
