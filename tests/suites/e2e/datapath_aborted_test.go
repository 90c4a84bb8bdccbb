// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// next lets a program that waits for a line continue.
func (c *container) next(t *testing.T) {
	t.Helper()
	if _, err := fmt.Fprintln(c.stdin); err != nil {
		t.Fatal(err)
	}
}

func (s *sensor) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// abortedConnection: the first queue pair of a verbs context is destroyed before it is connected, as with a refused
// connection. The writes of the next queue pairs are counted, whether the provider is probed already or not.
func (n node) abortedConnection(t *testing.T) {
	const writes, bytes = 100, 64
	s := start(t, n.args("--rdma.datapath=always")...)
	argv := []string{"posts", "-d", "rxe0", "-s", fmt.Sprint(bytes), "-n", fmt.Sprint(writes), "-a", "-w", "-k"}
	want := moved{"transmit": writes * bytes, "rdma_write": writes}

	// The sensor is stopped meanwhile, so that its search always comes too late.
	abort := func(name string) *container {
		t.Helper()
		s.signal(syscall.SIGSTOP)
		c := enter(t, name, argv...)
		c.line(t, "aborted")
		s.signal(syscall.SIGCONT)
		return c
	}
	first := abort("first user of the provider")
	s.covered(map[*container]map[string]float64{first: gap("late")})
	first.next(t)
	first.line(t, "waiting")
	eventually(t, 30*time.Second, func() error {
		if probes := s.fresh().sum("accelscope_datapath_probes"); probes < 3 {
			return fmt.Errorf("%v probes", probes)
		}
		return nil
	})
	first.next(t)
	first.line(t, "done")
	s.equal(map[*container]moved{first: want})
	s.covered(map[*container]map[string]float64{first: gap("late")})

	second := abort("later user of the provider")
	s.covered(map[*container]map[string]float64{second: gap("late")})
	second.next(t)
	second.line(t, "waiting")
	second.next(t)
	second.line(t, "done")
	s.equal(map[*container]moved{first: want, second: want})
	s.covered(map[*container]map[string]float64{second: complete})
	first.rest(t)
	second.rest(t)
	s.stop()
}
