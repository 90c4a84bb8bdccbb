// SPDX-License-Identifier: Apache-2.0

package top

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/overview"
)

// TestStalledTable: the table names the remote ends of stalled queue pairs. Of a sensor that does not list peers, it has their
// number, and the reason. Without a stalled queue pair it does not ask for peers.
func TestStalledTable(t *testing.T) {
	row := func(workload, id, device string, stalled uint64) overview.Row {
		return overview.Row{
			Owner: identity.Owner{Workload: workload, ContainerID: id}, Kind: overview.HCA, Device: device, Stalled: &stalled,
		}
	}
	b := row("ml/b/x", "c2", "mlx5_0", 0)
	stalled := rated(row("ml/a/x", "c1", "mlx5_0", 3), b, row("ml/c/x", "c3", "mlx5_1", 2), overview.Row{Kind: overview.HCA, Device: "mlx5_1"})
	const peers = `[
{"workload":"ml/a/x","container_id":"c1","device":"mlx5_0","qpn":17,"remote_gid":"::ffff:10.0.0.1","remote_qpn":90,"stalled_seconds":12.4},
{"workload":"ml/a/x","container_id":"c1","device":"mlx5_0","qpn":18,"remote_gid":"x\u001b[2J","remote_qpn":91,"stalled_seconds":100},
{"workload":"ml/c/x","container_id":"c3","device":"mlx5_1","qpn":5,"remote_lid":7,"remote_qpn":6,"stalled_seconds":11},
{"workload":"ml/c/x","container_id":"c3","device":"mlx5_1","qpn":6,"remote_qpn":8,"stalled_seconds":10}]`
	const named = `WORKLOAD  DEVICE       QPN  STALLED     CONNECTED TO  REMOTE QPN
ml/a/x    mlx5_0        18     100s         x\x1b[2J          91
ml/a/x    mlx5_0        17      12s  ::ffff:10.0.0.1          90
ml/a/x    mlx5_0  1 others        -                -           -
ml/c/x    mlx5_1         5      11s            LID 7           6
ml/c/x    mlx5_1         6      10s      (not known)           8
`
	const numbers = `WORKLOAD  DEVICE       QPN  STALLED  CONNECTED TO  REMOTE QPN
ml/a/x    mlx5_0  3 others        -             -           -
ml/c/x    mlx5_1  2 others        -             -           -
`
	for name, c := range map[string]struct {
		workloads   overview.Table
		peers       string
		lines, want string
	}{
		"named":     {stalled, peers, "", named},
		"not named": {stalled, `503 {"error":"no list"}`, "incomplete: no list\n", numbers},
		"none":      {rated(b), "503 nobody may ask", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := once(t, Options{URL: serve(t, map[string]string{
				api.WorkloadsPath: enveloped(t, c.workloads, "success"), api.DevicesPath: enveloped(t, []overview.Device{}, "success"),
				api.VerdictsPath: okVerdicts, api.PeersPath + "?stalled=true": c.peers,
			})})
			lines, rest, _ := strings.Cut(got, "WORKLOAD")
			_, table, _ := strings.Cut(rest, "\n\n")
			if d := cmp.Diff(c.want, table); d != "" || strings.TrimSuffix(lines, "\n") != c.lines {
				t.Errorf("%q (-want +got):\n%s", lines, d)
			}
		})
	}
}
