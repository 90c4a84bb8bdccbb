// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// hcaChanges: an HCA vanishes under traffic and comes back, has a name with all characters that the kernel accepts, and
// its interface is set down and up.
func (n node) hcaChanges(t *testing.T) {
	sh(t, "ip", "link", "add", "v8", "type", "veth", "peer", "name", "v9")
	defer sh(t, "ip", "link", "delete", "v8")
	sh(t, "ip", "address", "add", "10.73.0.1/24", "dev", "v8")
	sh(t, "ip", "link", "set", "v8", "up")
	sh(t, "ip", "link", "set", "v9", "up")
	add := func() { sh(t, "rdma", "link", "add", "rxe8", "type", "rxe", "netdev", "v8") }
	add()
	s := start(t, n.args("--state.dir="+t.TempDir(), "--no-collector.node", "--no-collector.kubelet", "--no-collector.runtime",
		"--no-collector.gpu", "--no-collector.kernellog")...)
	judged := func(name string, want bool) {
		t.Helper()
		eventually(t, time.Minute, func() error { return s.judged("rxe8", name, want) })
	}
	judged("RDMADeviceGone", false)

	enter(t, "serves the HCA that vanishes", "rping", "-s", "-a", "10.73.0.1", "-p", "7177")
	enter(t, "uses the HCA that vanishes", "sh", "-c", "sleep 2; exec rping -c -a 10.73.0.1 -p 7177 -C 100000000")
	eventually(t, time.Minute, func() error {
		if sent := s.fresh().sum("rdma_stat_sent_pkts", "device", "rxe8", "port", "1"); sent == 0 {
			return fmt.Errorf("no packets")
		}
		return nil
	})
	sh(t, "rdma", "link", "delete", "rxe8")
	judged("RDMADeviceGone", true)
	if missing := s.fresh().sum("accelscope_device_missing", "kind", "hca"); missing != 1 {
		t.Errorf("%v HCAs are missing, want 1", missing)
	}
	add()
	judged("RDMADeviceGone", false)
	if missing := s.fresh().all("accelscope_device_missing", "kind", "hca"); len(missing) > 0 {
		t.Errorf("missing after the return: %v", missing)
	}

	// The kernel takes every name without a slash.
	before := "rxe8"
	for _, name := range []string{"a@b+c#d~e,f(g)", "two words", "Gerät-0", "rxe8"} {
		sh(t, "rdma", "dev", "set", before, "name", name)
		before = name
		eventually(t, time.Minute, func() error {
			m := s.fresh()
			for _, metric := range []string{"infiniband_port_info", "infiniband_device_info", "rdma_stat_sent_pkts", "rdma_resources"} {
				if len(m.all(metric, "device", name)) == 0 {
					return fmt.Errorf("%s of %q: none", metric, name)
				}
			}
			if missing := m.all("accelscope_device_missing", "kind", "hca"); len(missing) > 0 {
				return fmt.Errorf("missing under the name %q: %v", name, missing)
			}
			return nil
		})
	}

	// An administrator sets the interface down: the port is down, and this is not a fault.
	down := func(want float64) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			m := s.fresh()
			if up, active := m.sum("rdma_port_link_admin_up", "device", "rxe8"), m.sum("infiniband_port_state", "device", "rxe8", "state", "active"); up != want || active != want {
				return fmt.Errorf("administratively up %v, active %v, want %v", up, active, want)
			}
			return nil
		})
	}
	down(1)
	sh(t, "ip", "link", "set", "v8", "down")
	down(0)
	for range 3 {
		s.fresh()
		if err := s.judged("rxe8", "RDMAPortDown", false); err != nil {
			t.Error(err)
		}
	}
	sh(t, "ip", "link", "set", "v8", "up")
	down(1)
	s.stop()
	sh(t, "rdma", "link", "delete", "rxe8")
}
