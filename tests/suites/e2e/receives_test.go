// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"
)

// connect starts two programs "receives" in containers of their own, and connects them. The first has the options of a, the second
// sends n messages and sleeps before each.
func connect(t *testing.T, name string, n int, pause time.Duration, a ...string) (receiver, sender *container) {
	t.Helper()
	count := fmt.Sprint(n)
	receiver = enter(t, name+": receiver", append([]string{"receives", "-d", "rxe0", "-n", count}, a...)...)
	sender = enter(t, name+": sender", "receives", "-d", "rxe0", "-n", count, "-u", fmt.Sprint(pause.Microseconds()))
	ends := [2]*container{receiver, sender}
	var numbers [2]string
	for i, c := range ends {
		numbers[i] = strings.TrimPrefix(c.line(t, "qpn "), "qpn ")
	}
	for i, c := range ends { // the receiver first
		fmt.Fprintln(c.stdin, numbers[1-i])
		c.line(t, "connected")
	}
	return receiver, sender
}

// peerOf returns the only queue pair of a container.
func (s *sensor) peerOf(t *testing.T, c *container) (found peer) {
	t.Helper()
	list, err := s.listPeers(t, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.ContainerID == c.id {
			found = p
		}
	}
	return found
}

// receiving returns what the metrics say of the waits of a container, NaN for an absent value, and why waits are not known.
func (m metrics) receiving(c *container) (waited, oldest float64, reasons string) {
	waited, oldest = math.NaN(), math.NaN()
	for _, x := range m.all("container_rdma_receive_wait_seconds_total", "container_id", c.id) {
		waited = x.GetCounter().GetValue()
	}
	for _, x := range m.all("container_rdma_oldest_receive_seconds", "container_id", c.id) {
		oldest = x.GetGauge().GetValue()
	}
	for _, x := range m.all("container_rdma_receive_coverage", "container_id", c.id) {
		for _, l := range x.Label {
			if l.GetName() == "reason" {
				reasons += " " + l.GetValue()
			}
		}
	}
	return waited, oldest, strings.TrimSpace(reasons)
}

// receiveWaits: how long a program waits for another one that sleeps before it sends equals the program's own measurement within 5 %,
// and receives that are posted ahead are no waits.
func (n node) receiveWaits(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	const messages, pause = 10, 500 * time.Millisecond
	receiver, sender := connect(t, "slow sender", messages, pause)
	var want float64
	if _, err := fmt.Sscanf(receiver.line(t, "waited "), "waited %f", &want); err != nil || want < 0.9*messages*pause.Seconds() {
		t.Fatalf("the receiver waited %v s, %v", want, err)
	}
	sender.line(t, "waited ")
	near := func(got float64) bool { return math.Abs(got/want-1) <= 0.05 }
	eventually(t, 30*time.Second, func() error {
		m := s.fresh()
		waited, oldest, reasons := m.receiving(receiver)
		if !near(waited) || oldest != 0 || reasons != "complete" {
			return fmt.Errorf("the receiver waited %v s, its program says %v s; oldest %v s, %s", waited, want, oldest, reasons)
		}
		if waited, oldest, reasons := m.receiving(sender); waited != 0 || oldest != 0 || reasons != "complete" {
			return fmt.Errorf("the sender waited %v s, oldest %v s, %s", waited, oldest, reasons)
		}
		t.Logf("the receiver waited %.4f s, its program says %.4f s (%+.2f %%)", waited, want, 100*(waited/want-1))
		return nil
	})
	if p := s.peerOf(t, receiver); !near(p.ReceiveWaitSeconds) || p.OldestReceiveSeconds != 0 {
		t.Errorf("peers: %+v, want %v s", p, want)
	}
	receiver.signal(t)
	sender.signal(t)

	// The sender stops: the receiver waits for it.
	receiver, sender = connect(t, "stopped sender", 1_000_000, 50*time.Millisecond)
	eventually(t, 30*time.Second, func() error {
		if waited, _, reasons := s.fresh().receiving(receiver); waited == 0 || reasons != "complete" {
			return fmt.Errorf("it waited %v s, %s", waited, reasons)
		}
		return nil
	})
	if err := sender.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	var oldest float64
	eventually(t, 30*time.Second, func() error {
		if _, oldest, _ = s.fresh().receiving(receiver); !(oldest > 3) {
			return fmt.Errorf("the oldest receive is %v s old", oldest)
		}
		return nil
	})
	if long := time.Since(stopped).Seconds(); oldest > long+1 {
		t.Errorf("the oldest receive is %v s old, its sender is stopped for %v s", oldest, long)
	}
	if waited, oldest, _ := s.fresh().receiving(sender); waited != 0 || oldest != 0 {
		t.Errorf("the stopped sender waited %v s, oldest %v s", waited, oldest)
	}
	if p := s.peerOf(t, receiver); p.OldestReceiveSeconds < 3 || p.RemoteQPN == 0 {
		t.Errorf("peers: %+v", p)
	}
	kill(receiver, sender)

	for name, ends := range map[string]func() []*container{
		"posted ahead": func() []*container {
			receiver, sender := connect(t, "posted ahead", 1_000_000, 50*time.Millisecond, "-a", "16")
			return []*container{receiver, sender}
		},
		"shared": func() []*container {
			return []*container{enter(t, "shared", "posts", "-d", "rxe0", "-o", "send", "-S", "-n", "20", "-k")}
		},
	} {
		ends := ends()
		eventually(t, 30*time.Second, func() error {
			m := s.fresh()
			waited, oldest, reasons := m.receiving(ends[0])
			if waited != 0 || !math.IsNaN(oldest) || reasons != "preposted" || m.sum("container_rdma_receive_bytes_total", "container_id", ends[0].id) == 0 {
				return fmt.Errorf("%s: waited %v s, oldest %v s, %s", name, waited, oldest, reasons)
			}
			return nil
		})
		kill(ends...)
	}
	keeper.rest(t)
	s.stop()
}
