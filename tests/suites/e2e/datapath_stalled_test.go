// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stallAfter is the time after which queue pairs are stalled in the test. An emulated CPU may not complete anything for
// a second.
const stallAfter = 5 * time.Second

// waiting returns the number of stalled queue pairs of a container and the age of its oldest work request, or -1 if
// they are absent.
func (m metrics) waiting(c *container) (stalled, oldest float64) {
	stalled, oldest = -1, -1
	for _, x := range m.all("container_rdma_stalled_queue_pairs", "container_id", c.id) {
		stalled = x.GetGauge().GetValue()
	}
	for _, x := range m.all("container_rdma_oldest_outstanding_seconds", "container_id", c.id) {
		oldest = x.GetGauge().GetValue()
	}
	return stalled, oldest
}

// silent waits until a container has a stalled queue pair, and checks that its remote end is named.
func (s *sensor) silent(t *testing.T, what string, c *container, remoteGID string, remoteQPN uint32) {
	t.Helper()
	eventually(t, 60*time.Second, func() error {
		if stalled, oldest := s.fresh().waiting(c); stalled != 1 || oldest < stallAfter.Seconds() {
			return fmt.Errorf("%s: %v stalled queue pairs, the oldest work request is %v s old", what, stalled, oldest)
		}
		return nil
	})
	peers, err := s.peers(t, "?stalled=true")
	p := peers[c.id]
	if err != nil || p.StalledSeconds < stallAfter.Seconds() || p.RemoteGID != remoteGID || p.RemoteQPN != remoteQPN {
		t.Errorf("%s: %+v, %v, want %s and %d", what, peers, err, remoteGID, remoteQPN)
	}
	table := sh(t, os.Getenv(binaryVar), "top", "--once", "--url="+s.url+"/metrics")
	if !strings.Contains(table, " "+remoteGID+" ") || !strings.Contains(table, fmt.Sprintf(" %d\n", remoteQPN)) {
		t.Errorf("%s: top does not name %s and %d:\n%s", what, remoteGID, remoteQPN, table)
	}
	t.Logf("%s: %+v\n%s", what, p, table)
}

// moves waits until a container's data path is watched, and checks for a while that a container has no stalled queue pair. It returns the highest age that it saw.
func (s *sensor) moves(t *testing.T, what string, c *container) (oldest float64) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		if stalled, _ := s.fresh().waiting(c); stalled < 0 {
			return fmt.Errorf("%s: the container has no series", what)
		}
		return nil
	})
	for end := time.Now().Add(stallAfter + 3*time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		stalled, age := s.fresh().waiting(c)
		if stalled != 0 {
			t.Errorf("%s: %v stalled queue pairs, the oldest work request is %v s old", what, stalled, age)
			return age
		}
		oldest = max(oldest, age)
	}
	return oldest
}

// remote returns the remote end of the only queue pair of a container.
func (s *sensor) remote(t *testing.T, c *container) (gid string, qpn uint32) {
	t.Helper()
	eventually(t, 30*time.Second, func() error {
		peers, err := s.listPeers(t, "")
		for _, p := range peers {
			if p.ContainerID == c.id {
				gid, qpn = p.RemoteGID, p.RemoteQPN
			}
		}
		if err == nil && qpn == 0 {
			err = fmt.Errorf("%v is not connected", c.cmd.Args[4:])
		}
		return err
	})
	return gid, qpn
}

// overLink makes rxe0 and rxe1 exchange their packets over their pair of interfaces: by default the kernel delivers
// packets to its own addresses itself. It returns how to undo this.
func overLink(t *testing.T) (undo func()) {
	t.Helper()
	for i := range 2 {
		far := 1 - i
		sh(t, "sh", "-c", fmt.Sprintf(`set -e
			echo 1 >/proc/sys/net/ipv4/conf/v%[1]d/accept_local
			echo 0 >/proc/sys/net/ipv4/conf/v%[1]d/rp_filter
			echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
			ip rule add pref 1 iif v%[1]d lookup local
			ip rule add pref 2 oif v%[1]d lookup 10%[1]d
			ip route add 10.7%[2]d.0.1 dev v%[1]d src 10.7%[1]d.0.1 table 10%[1]d
			ip neigh replace 10.7%[2]d.0.1 lladdr "$(cat /sys/class/net/v%[2]d/address)" dev v%[1]d nud permanent`, i, far))
	}
	sh(t, "sh", "-c", "ip rule add pref 10 lookup local && ip rule del pref 0 lookup local")
	// While a queueing discipline is replaced, the interface refuses packets, and rxe sets the queue pair to the error state.
	sh(t, "sh", "-c", "modprobe sch_netem && tc qdisc add dev v0 root netem limit 100000")
	return func() {
		sh(t, "sh", "-c", `set -e
			tc qdisc del dev v0 root
			ip rule add pref 0 lookup local
			for pref in 1 1 2 2 10; do ip rule del pref $pref; done
			for i in 0 1; do ip route flush table 10$i; ip neigh flush dev v$i nud permanent; done`)
	}
}

// lose makes the link from rxe0 to rxe1 lose all packets, or none.
func lose(t *testing.T, percent int) {
	t.Helper()
	sh(t, "tc", "qdisc", "change", "dev", "v0", "root", "netem", "limit", "100000", "loss", fmt.Sprintf("%d%%", percent))
}

// stalled: a queue pair is stalled while its peer is stopped, while the link is cut, and while the receiver posts no
// buffers. It is not stalled during a long transfer, or if it is idle with posted receives.
func (n node) stalled(t *testing.T) {
	defer overLink(t)() // not a cleanup: the context of a test is canceled before cleanups run
	s, keeper := n.watched(t, "--rdma.datapath=always", "--rdma.stall-after="+stallAfter.String())

	// The receiver posts its buffers again and again, and never sends.
	many := []string{"-F", "-x", "1", "-n", "5000000", "-N", "-s", "4096"}
	x := trial{name: "stopped", argv: append([]string{"ib_send_bw", "-d", "rxe0"}, many...)}
	receiver, sender := x.ends(t)
	gid, qpn := s.remote(t, sender)
	t.Logf("a long transfer: the oldest work request was up to %.3f s old", s.moves(t, "a long transfer", sender))
	if err := receiver.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	s.silent(t, "a peer that is stopped", sender, gid, qpn)
	if stalled, oldest := s.fresh().waiting(receiver); stalled != 0 || oldest != 0 {
		t.Errorf("an idle queue pair with posted receives: %v stalled, the oldest work request is %v s old", stalled, oldest)
	}
	if err := receiver.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() error {
		if stalled, oldest := s.fresh().waiting(sender); stalled != 0 {
			return fmt.Errorf("its peer continues: %v stalled, %v s", stalled, oldest)
		}
		return nil
	})
	kill(sender, receiver)

	// No process receives: not even the first work request completes.
	alone := enter(t, "no buffers", "posts", "-d", "rxe0", "-o", "send", "-b")
	var local, remote uint32
	if _, err := fmt.Sscanf(alone.line(t, "queue pairs "), "queue pairs %d %d", &local, &remote); err != nil {
		t.Fatal(err)
	}
	s.silent(t, "a receiver without buffers", alone, "::ffff:10.70.0.1", remote)
	// In the error state all completions come at once, but this process does not poll any more.
	if err := alone.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	alone.line(t, "ready")
	eventually(t, 30*time.Second, func() error {
		if stalled, oldest := s.fresh().waiting(alone); stalled != 0 || oldest != 0 {
			return fmt.Errorf("in the error state: %v stalled, %v s", stalled, oldest)
		}
		return nil
	})
	alone.signal(t)

	// rxe sends again after the timeout of the queue pair, 4.3 s, and never gives up.
	nextPort++
	port := fmt.Sprint(nextPort)
	target := enter(t, "over the link, server", append([]string{"ib_write_bw", "-d", "rxe1", "-u", "20", "-p", port}, many...)...)
	listening(t, nextPort)
	writer := enter(t, "over the link, client", append(append([]string{"ib_write_bw", "-d", "rxe0", "-u", "20", "-p", port}, many...), "10.71.0.1")...)
	gid, qpn = s.remote(t, writer)
	if gid != "::ffff:10.71.0.1" {
		t.Errorf("it is connected with %s", gid)
	}
	s.moves(t, "over the link", writer)
	lose(t, 100)
	s.silent(t, "a link that is cut", writer, gid, qpn)
	lose(t, 0)
	eventually(t, 30*time.Second, func() error {
		if stalled, oldest := s.fresh().waiting(writer); stalled != 0 {
			return fmt.Errorf("the link is there again: %v stalled, %v s", stalled, oldest)
		}
		return nil
	})
	kill(writer, target)
	s.sentAgain(t)
	keeper.rest(t)
	s.stop()
}

// sentAgain: after packets were lost, the retransmissions of rxe0 equal the driver's counter, and are not 0.
func (s *sensor) sentAgain(t *testing.T) {
	t.Helper()
	const file = "/sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err"
	eventually(t, 30*time.Second, func() error {
		want := strings.TrimSpace(sh(t, "cat", file))
		got := fmt.Sprint(s.fresh().sum("rdma_port_retransmitted_total", "device", "rxe0"))
		if want == "0" || got != want {
			return fmt.Errorf("sent again after a loss: %s, the driver has %s", got, want)
		}
		return nil
	})
}

// kill ends programs that would go on.
func kill(containers ...*container) {
	for _, c := range containers {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}
