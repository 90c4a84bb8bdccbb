// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// reset: rxe1 is removed and added again while two processes have queue pairs on it, like the reset of an HCA. One
// process then closes its context and opens the new device, like a program that recovers. The other keeps it until it
// ends. A kernel module gives Soft-RoCE what a driver needs for this (pkg/source/rdma/testdata/movable.c).
func (n node) reset(t *testing.T) {
	const chains, size = 100, 1000
	references := func() string {
		b, err := os.ReadFile("/sys/module/rdma_rxe/refcnt")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(b))
	}
	unused := references()
	t.Cleanup(func() { // after both processes have ended
		_ = child.Command(context.Background(), "rmmod", "movable").Run()
		if now := references(); now != unused {
			t.Errorf("rdma_rxe has %s references, had %s", now, unused)
		}
	})
	// Before a process opens the device: ib_uverbs_open takes a reference to the module of a driver that has no
	// disassociate_ucontext, and ib_uverbs_release_file drops it only if disassociate_ucontext is then missing.
	sh(t, "insmod", n.module(t, movableVar), "dev=rxe1")
	faults := func() int { return strings.Count(sh(t, "dmesg"), "Call Trace:") }
	none := faults()
	s, keeper := n.watched(t, "--rdma.datapath=always")
	traffic := []string{"-o", "send", "-n", fmt.Sprint(chains), "-s", fmt.Sprint(size)}
	// libibverbs then lets the process close what the kernel has closed already.
	recovers := enter(t, "recovers", append([]string{
		"env", "RDMAV_ALLOW_DISASSOC_DESTROY=1", "posts", "-t", "-T", "-k", "-H", "rxe0", "-d", "rxe1,rxe1",
	}, traffic...)...)
	next := func(word string) {
		t.Helper()
		if _, err := fmt.Fprintln(recovers.stdin); err != nil {
			t.Fatal(err)
		}
		recovers.line(t, word)
	}
	recovers.line(t, "open")
	next("posted")
	keeps := enter(t, "keeps", append([]string{"posts", "-k", "-d", "rxe1"}, traffic...)...)
	keeps.line(t, "done")
	containers := []*container{recovers, keeps}

	known := map[string]float64{
		"container_rdma_transmit_bytes_total uprobe": chains * size, "container_rdma_receive_bytes_total uprobe": chains * size,
		"container_rdma_work_requests_total send": chains, "container_rdma_work_requests_total recv": chains,
		"container_rdma_verbs_total create_qp": 2, "container_rdma_verbs_total get_context": 1,
		"container_rdma_objects_created_total qp": 2, "container_rdma_objects_created_total ctx": 1,
	}
	counted := func(m metrics, c *container, rounds float64) error {
		got := m.counted(c.id, "rxe1")
		for key, want := range known {
			if got[key] != want*rounds {
				return fmt.Errorf("%v: %s %v, want %v", c.cmd.Args[4:], key, got[key], want*rounds)
			}
		}
		return nil
	}
	// held compares the objects on both devices with the list of RDMA netlink.
	held := func(m metrics) error {
		for _, kind := range []string{"qp", "cq", "mr", "pd", "ctx"} {
			all := dumped(t, kind)
			for _, c := range containers {
				for _, device := range []string{"rxe0", "rxe1"} {
					if got, want := m.held(c.id, device)[kind], all[device][c.id]; got != want {
						return fmt.Errorf("%v holds %v %s on %s, want %v", c.cmd.Args[4:], got, kind, device, want)
					}
				}
			}
		}
		return nil
	}
	before := map[*container]map[string]float64{}
	eventually(t, 30*time.Second, func() error {
		m := s.fresh()
		for _, c := range containers {
			before[c] = m.counted(c.id, "rxe1")
			if err := counted(m, c, 1); err != nil {
				return err
			}
			if m.held(c.id, "rxe1")["qp"] != 2 {
				return fmt.Errorf("%v holds %v", c.cmd.Args[4:], m.held(c.id, "rxe1"))
			}
		}
		return held(m)
	})
	steady := func(what string) { // nothing is lost or repeated
		t.Helper()
		eventually(t, 10*time.Second, func() error { return held(s.fresh()) })
		for range 3 {
			m := s.fresh()
			if err := held(m); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, c := range containers {
				if diff := cmp.Diff(before[c], m.counted(c.id, "rxe1")); diff != "" {
					t.Fatalf("%s: %v (-before +now)\n%s", what, c.cmd.Args[4:], diff)
				}
			}
		}
	}
	unplug(t)
	steady("removed while it is open")
	if m := s.fresh(); len(m.held(recovers.id, "rxe1"))+len(m.held(keeps.id, "rxe1")) > 0 || m.held(recovers.id, "rxe0")["qp"] != 2 {
		t.Errorf("objects after rxe1 was removed: %v", m.all("container_rdma_resources"))
	}
	s.plug(t)
	steady("added again")

	next("open") // it has closed the context of the removed device
	for _, verb := range []string{"destroy_qp", "destroy_cq", "destroy_ah", "dereg_mr", "dealloc_pd"} {
		before[recovers]["container_rdma_verbs_total "+verb]++
	}
	before[recovers]["container_rdma_verbs_total destroy_qp"]++ // of two
	steady("closed")
	next("done")
	eventually(t, 30*time.Second, func() error {
		m := s.fresh()
		if diff := cmp.Diff(before[keeps], m.counted(keeps.id, "rxe1")); diff != "" {
			return fmt.Errorf("%v (-before +now)\n%s", keeps.cmd.Args[4:], diff)
		}
		if err := counted(m, recovers, 2); err != nil {
			return err
		}
		if m.held(recovers.id, "rxe1")["qp"] != 2 {
			return fmt.Errorf("it holds %v", m.held(recovers.id, "rxe1"))
		}
		return held(m)
	})
	m := s.fresh()
	if late := m.sum("accelscope_datapath_late_total"); late > 1 {
		t.Errorf("%v contexts were late", late)
	}
	if lost := n.avoidable(t, m.losses()); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	for _, c := range containers {
		c.signal(t)
	}
	eventually(t, 20*time.Second, func() error {
		m := s.fresh()
		if err := counted(m, keeps, 1); err != nil {
			return err
		}
		return counted(m, recovers, 2)
	})
	keeper.rest(t)
	if faults() != none {
		t.Errorf("the kernel reports a fault:\n%s", sh(t, "dmesg"))
	}
	s.stop()
}
