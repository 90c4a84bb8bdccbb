// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// split: the bytes of a port that two sampled containers share are split by their estimates. One writes three times as many
// bytes as the other. Every scrape checks that the shares add up to the counters.
func (n node) split(t *testing.T) {
	const (
		budget, length = "0.005", time.Minute
		misplaced      = 0.1 // part of the bytes that is credited to the wrong container
	)
	s := start(t, n.args("--rdma.datapath=budget", "--rdma.datapath-budget="+budget)...)
	one := enter(t, "writes", "posts", "-d", "rxe1", "-n", "1000000", "-u", "5000", "-s", "4096")
	three := enter(t, "writes three times as much", "posts", "-d", "rxe1", "-n", "1000000", "-u", "5000", "-s", "12288")
	sampled := func(m metrics, c *container) float64 {
		return m.sum("container_rdma_transmit_bytes_total", "method", "sampled", "container_id", c.id, "device", "rxe1")
	}
	eventually(t, 3*time.Minute, func() error {
		m := s.fresh()
		if sampled(m, one) == 0 || sampled(m, three) == 0 {
			return fmt.Errorf("not split: %v", m.by("container_rdma_datapath_coverage", "reason", "device", "rxe1"))
		}
		return nil
	})
	// On a busy machine the estimates may vary too much for a while. Then nothing is split: a later minute has to be.
	for minutes := 1; ; minutes++ {
		before, sent := s.fresh(), words(t, "rxe1", "port_xmit_data")
		time.Sleep(length)
		m := s.fresh()
		sent = words(t, "rxe1", "port_xmit_data") - sent
		a, b := sampled(m, one)-sampled(before, one), sampled(m, three)-sampled(before, three)
		t.Logf("the port sent %.0f bytes; credited %.0f and %.0f, in all methods %v, reasons %v", sent, a, b,
			m.by("container_rdma_transmit_bytes_total", "method", "device", "rxe1"),
			m.by("container_rdma_datapath_coverage", "reason", "device", "rxe1"))
		if a+b < sent/2 && minutes < 5 {
			continue
		}
		if part := b / (a + b); math.Abs(part-0.75) > misplaced {
			t.Errorf("%.1f %% of the bytes are credited to the container that writes 75 %%", 100*part)
		}
		if a+b < sent/2 || a+b > 1.1*sent {
			t.Errorf("%.0f bytes of %.0f are split", a+b, sent)
		}
		break
	}
	one.signal(t)
	three.signal(t)
	s.stop()
}
