// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// alone: one workload moves bytes over an HCA, and others only open it, as health checks, librdmacm and NCCL do. All
// bytes of the port are the workload's, in each interval between two scrapes. Then another workload makes a queue pair:
// the bytes of these intervals have no owner, and the coverage of the workload keeps showing this.
func (n node) alone(t *testing.T) {
	const device, write = "rxe1", "posts -d rxe1 -o write -s 16384 -n 50"
	s := start(t, n.args()...)
	c := enter(t, "alone on rxe1", "sh")
	holder := enter(t, "alone on rxe1", "posts", "-d", device, "-n", "1", "-k") // holds a queue pair, so that the workload has a coverage
	holder.line(t, "done")
	s.fresh()
	// interval moves bytes while another workload does something. It returns the bytes of the port in both directions,
	// and of the workload.
	var last metrics
	moved := func(m metrics) float64 {
		return m.sum("container_rdma_transmit_bytes_total", "container_id", c.id, "device", device, "method", "port") +
			m.sum("container_rdma_receive_bytes_total", "container_id", c.id, "device", device, "method", "port")
	}
	counted := func() float64 { return words(t, device, "port_xmit_data") + words(t, device, "port_rcv_data") }
	interval := func(other func()) (port, own float64) {
		t.Helper()
		before := counted()
		if last == nil {
			last = s.fresh()
		}
		c.do(t, write)
		other()
		c.do(t, write)
		m := s.fresh()
		own = moved(m) - moved(last)
		last = m
		return counted() - before, own
	}
	checks := 0
	check := func() {
		checks++
		enter(t, fmt.Sprint("health check ", checks), "ibv_devinfo", "-d", device).rest(t)
	}
	nothing := func() {}
	var all float64
	for _, row := range []struct {
		name      string
		before    func() *container
		intervals []func()
	}{
		{"alone", nil, []func(){nothing}},
		{"another workload holds a context, and no other object", func() *container {
			return enter(t, "holds a context", "verbs", "-d", device, "-p", "0")
		}, []func(){nothing, nothing}},
		{"ibv_devinfo of another workload in each interval", nil, []func(){check, check}},
		{"ibv_devinfo in each fourth interval", nil, []func(){check, nothing, nothing, nothing}},
		{"alone again", nil, []func(){nothing}},
	} {
		var other *container
		if row.before != nil {
			other = row.before()
			other.line(t, "device")
		}
		var port, own float64
		for _, what := range row.intervals {
			p, o := interval(what)
			port, own = port+p, own+o
		}
		reasons := last.by("container_rdma_datapath_coverage", "reason", "container_id", c.id, "device", device)
		if diff := cmp.Diff(complete, reasons); own != port || port < 100*16384 || diff != "" {
			t.Errorf("%s: %v of %v bytes, coverage (-want +got)\n%s", row.name, own, port, diff)
		}
		t.Logf("%s: %v of %v bytes", row.name, own, port)
		all += port
		if other != nil {
			other.rest(t)
		}
	}

	// Another workload with a queue pair: in the interval in which it makes the queue pair, and in the interval after
	// its end.
	other := enter(t, "other on rxe1", "posts", "-d", device, "-n", "1", "-k")
	other.line(t, "done")
	port, own := interval(nothing)
	other.rest(t)
	if own != 0 {
		t.Errorf("shared: %v of %v bytes", own, port)
	}
	var missed float64
	for range 2 { // the other workload held its queue pair when the first of these began
		p, o := interval(nothing)
		missed += p - o
	}
	_, o := interval(nothing)
	reasons := last.by("container_rdma_datapath_coverage", "reason", "container_id", c.id, "device", device)
	if diff := cmp.Diff(gap("unattributed"), reasons); diff != "" || o == 0 {
		t.Errorf("alone after all: %v bytes, coverage (-want +got)\n%s", o, diff)
	}
	limit := last.sum("container_rdma_unattributed_bytes_limit_total", "container_id", c.id, "device", device)
	if limit < port+missed || limit > port+missed+1e6 { // the other workload sent some before the interval was measured
		t.Errorf("%v bytes may be missing at most, and %v were not attributed", limit, port+missed)
	}
	t.Logf("shared: at most %v bytes are missing, of %v; %v before", limit, port+missed, all)
	c.rest(t)
	holder.rest(t)
	s.stop()
}
