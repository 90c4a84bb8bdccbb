// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// covered waits until the containers have the coverage that is wanted: values by reason.
func (s *sensor) covered(want map[*container]map[string]float64) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, func() error {
		m := s.fresh()
		for c, w := range want {
			got := m.by("container_rdma_datapath_coverage", "reason", "container_id", c.id, "device", "rxe0")
			if diff := cmp.Diff(w, got); diff != "" {
				return fmt.Errorf("coverage of %v (-want +got)\n%s", c.cmd.Args[4:], diff)
			}
		}
		return nil
	})
}

// coverage: a workload whose bytes are not all counted says why.
func (n node) coverage(t *testing.T) {
	none := map[string]float64{}
	complete := map[string]float64{"complete": 1}
	gap := func(reason string) map[string]float64 { return map[string]float64{reason: 0} }
	alone := func(c *container, w map[string]float64) map[*container]map[string]float64 {
		return map[*container]map[string]float64{c: w}
	}

	// The first user of the provider, whose probes come late, a later one, and queue pairs that are not connected.
	s, keeper := n.watched(t, "--rdma.datapath=always")
	second := enter(t, "second", "posts", "-d", "rxe0", "-o", "send", "-n", "1", "-k")
	second.line(t, "done")
	unconnected := enter(t, "unconnected", "verbs", "-d", "rxe0", "-q", "2")
	nothing := enter(t, "nothing", "verbs", "-d", "rxe0", "-c", "1")
	s.covered(map[*container]map[string]float64{
		keeper: gap("late"), second: complete, unconnected: gap("not_seen"), nothing: none,
	})
	unconnected.rest(t)
	nothing.rest(t)
	s.covered(map[*container]map[string]float64{second: complete, unconnected: none, nothing: none})
	s.stop()

	// Processes from before the sensor are counted from its start on.
	s = start(t, n.args("--rdma.datapath=always")...)
	s.covered(map[*container]map[string]float64{keeper: complete, second: complete})
	s.stop()
	keeper.rest(t)

	for reason, args := range map[string][]string{
		"off":          nil,
		"not_selected": {"--rdma.datapath=always", "--rdma.datapath-select=other"},
	} {
		s = start(t, n.args(args...)...)
		s.covered(alone(second, gap(reason)))
		s.stop()
	}
	second.rest(t)

	busy := enter(t, "busy", "posts", "-d", "rxe0", "-n", "1", "-p")
	busy.line(t, "polls")
	s = start(t, n.args("--rdma.datapath=budget")...)
	s.covered(alone(busy, gap("budget")))
	s.stop()
}
