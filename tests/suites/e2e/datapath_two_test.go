// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// twoSensors: during a rolling update two sensors run side by side. Both count exactly, and the younger continues when
// the older ends, in order or killed, while a process posts.
func (n node) twoSensors(t *testing.T) {
	const chains, bytes = 100, 64
	argv := []string{"posts", "-d", "rxe0,rxe1,rxe0,rxe1,rxe0,rxe1,rxe0", "-s", fmt.Sprint(bytes), "-n", fmt.Sprint(chains), "-t", "-T", "-w"}
	another := func() *sensor {
		t.Helper()
		return start(t, n.args("--rdma.datapath=always", "--gpu.control-socket=")...)
	}
	counted := func(s *sensor, c *container, want map[string]float64) {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			m := s.fresh()
			for device, devices := range want {
				labels := []string{"container_id", c.id, "device", device}
				writes, sent := m.sum("container_rdma_work_requests_total", labels...), m.sum("container_rdma_transmit_bytes_total", labels...)
				if writes != devices*chains || sent != devices*chains*bytes {
					return fmt.Errorf("%v: %v writes and %v bytes on %s, want %v and %v", c.cmd.Args[4:], writes, sent, device,
						devices*chains, devices*chains*bytes)
				}
			}
			return nil
		})
	}
	older, keeper := n.watched(t, "--rdma.datapath=always")
	for _, end := range []string{"SIGTERM", "SIGKILL"} {
		younger := another()
		eventually(t, 30*time.Second, func() error { // it probes the provider of the process that holds a queue pair
			if probes := younger.fresh().sum("accelscope_datapath_probes"); probes < 3 {
				return fmt.Errorf("%v probes", probes)
			}
			return nil
		})
		c := enter(t, "until "+end, append(argv, "-u", "5000")...)
		turn := func() {
			t.Helper()
			c.line(t, "open")
			c.next(t)
			c.line(t, "posted")
			c.next(t)
		}
		turn()
		turn()
		for _, s := range []*sensor{older, younger} {
			counted(s, c, map[string]float64{"rxe0": 1, "rxe1": 1})
		}
		for range 4 {
			turn()
		}
		c.line(t, "open")
		c.next(t)
		c.line(t, "waiting")
		c.next(t)
		time.Sleep(100 * time.Millisecond) // of half a second in which it posts
		if end == "SIGTERM" {
			older.stop()
		} else {
			older.kill()
		}
		c.line(t, "done")
		counted(younger, c, map[string]float64{"rxe0": 4, "rxe1": 3})
		if lost := n.avoidable(t, younger.fresh().losses()); len(lost) > 0 {
			t.Errorf("%s: lost: %v", end, lost)
		}
		c.rest(t)
		older = younger
	}
	keeper.rest(t)
	older.stop()
}
