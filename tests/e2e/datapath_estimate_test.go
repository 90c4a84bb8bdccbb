// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// estimate: while a program writes for a minute, the estimate of its work requests changes at least every 15 s, or is absent for the
// reason budget. At the end it is compared with the number that the program printed, loosely: an emulated CPU makes probes and their
// attachment expensive.
func (n node) estimate(t *testing.T) {
	const (
		most     = 20 * time.Second // 15 s, and a scrape takes seconds in the guest
		maxError = 0.5
	)
	s := start(t, n.args("--rdma.datapath=budget")...)
	x := trial{name: "estimated", argv: []string{"ib_write_bw", "-F", "-d", "rxe0", "-x", "1", "-s", "4096", "-D", "60", "-f", "0"}}
	server, client := x.ends(t)
	requests := func(m metrics) (exact, estimated float64) {
		return m.sum("container_rdma_work_requests_total", "container_id", client.id),
			m.sum("container_rdma_work_requests_sampled_total", "container_id", client.id)
	}
	var lines []string
	var last float64
	var unchanged time.Duration
	checks, absent := 0, 0
	changed := time.Now()
	for ended := false; !ended; {
		select {
		case line, ok := <-client.lines:
			if ended = !ok; ok {
				lines = append(lines, line)
			}
			continue
		case <-time.After(time.Second):
		}
		m := s.fresh()
		exact, estimated := requests(m)
		reasons := m.by("container_rdma_datapath_coverage", "reason", "container_id", client.id, "device", "rxe0")
		checks++
		switch _, sampled := reasons["budget"]; {
		case exact+estimated != last:
			last, changed = exact+estimated, time.Now()
		case sampled && estimated == 0:
			absent, changed = absent+1, time.Now()
		case len(reasons) == 0: // not connected
			changed = time.Now()
		}
		if unchanged = max(unchanged, time.Since(changed)); time.Since(changed) > most {
			t.Errorf("%.0f exact and %.0f estimated work requests did not change for %v: %v", exact, estimated, time.Since(changed), reasons)
			break
		}
	}
	lines = append(lines, client.rest(t)...)
	server.rest(t)
	count, _ := printed(t, lines)
	var exact, estimated float64
	eventually(t, 20*time.Second, func() error {
		m := s.fresh()
		exact, estimated = requests(m)
		if watched := m.sum("accelscope_datapath_processes"); watched > 0 {
			return fmt.Errorf("%v processes are watched", watched)
		}
		return nil
	})
	deviation := (exact+estimated)/count - 1
	t.Logf("%.0f exact and %.0f estimated of %.0f writes: %.1f %%; absent in %d of %d checks, unchanged for %v at most", exact, estimated,
		count, 100*deviation, absent, checks, unchanged.Round(time.Second))
	if absent > checks/2 {
		t.Errorf("the estimate was absent in %d of %d checks", absent, checks)
	}
	if exact == 0 || estimated > 0 && math.Abs(deviation) > maxError {
		t.Errorf("%.0f of %.0f writes are counted or estimated", exact+estimated, count)
	}
	s.stop()
}
