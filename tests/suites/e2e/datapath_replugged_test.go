// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// counted returns what a container has done on a device: bytes, work requests, verbs and created objects.
func (m metrics) counted(id, device string) map[string]float64 {
	out := map[string]float64{}
	for family, by := range map[string]string{
		"container_rdma_transmit_bytes_total": "method", "container_rdma_receive_bytes_total": "method",
		"container_rdma_work_requests_total": "opcode", "container_rdma_work_request_bytes_total": "opcode",
		"container_rdma_verbs_total": "verb", "container_rdma_verbs_errors_total": "verb", "container_rdma_objects_created_total": "type",
	} {
		for value, n := range m.by(family, by, "container_id", id, "device", device) {
			if n != 0 {
				out[family+" "+value] = n
			}
		}
	}
	return out
}

// held returns the objects that a container holds on a device, by type.
func (m metrics) held(id, device string) map[string]float64 {
	out := m.by("container_rdma_resources", "type", "container_id", id, "device", device)
	maps.DeleteFunc(out, func(_ string, n float64) bool { return n == 0 })
	return out
}

// unplug and plug remove rxe1 and add it again, like the reset of an HCA.
func unplug(t *testing.T) { t.Helper(); sh(t, "rdma", "link", "delete", "rxe1") }

func (s *sensor) plug(t *testing.T) {
	t.Helper()
	sh(t, "rdma", "link", "add", "rxe1", "type", "rxe", "netdev", "v1")
	// The new HCA's own counters begin at zero.
	maps.DeleteFunc(s.last, func(series string, _ float64) bool {
		return strings.HasPrefix(series, "rdma_stat_") && strings.Contains(series, "device=rxe1")
	})
}

// replugged: rxe1 is removed and added again, under the same name, while two containers have objects on rxe0. Their
// counts on rxe1 continue exactly, and every scrape in between shows the counts from before.
func (n node) replugged(t *testing.T) {
	const chains, size, rounds = 100, 1000, 4
	s, keeper := n.watched(t, "--rdma.datapath=always")
	// One container is a process that holds a queue pair on rxe0 and opens rxe1 repeatedly, the other runs processes.
	traffic := []string{"-o", "send", "-n", fmt.Sprint(chains), "-s", fmt.Sprint(size)}
	turns := strings.Join(slices.Repeat([]string{"rxe1"}, rounds+1), ",") // it closes all devices except the last
	one := enter(t, "one process", append([]string{"posts", "-H", "rxe0", "-t", "-d", turns}, traffic...)...)
	one.line(t, "open")
	many := enter(t, "many processes", "sh")
	many.do(t, "posts -d rxe0 -n 1 -k </dev/null & holder=$!")
	containers := []*container{one, many}

	held := map[*container]map[string]float64{}
	eventually(t, 30*time.Second, func() error {
		m := s.fresh()
		for _, c := range containers {
			if held[c] = m.held(c.id, "rxe0"); held[c]["qp"] != 2 || held[c]["ctx"] != 1 {
				return fmt.Errorf("%v holds %v on rxe0", c.cmd.Args[4:], held[c])
			}
		}
		return nil
	})
	// What each round adds: known from the program, and everything that the first round shows.
	known := map[string]float64{
		"container_rdma_transmit_bytes_total uprobe": chains * size, "container_rdma_receive_bytes_total uprobe": chains * size,
		"container_rdma_work_requests_total send": chains, "container_rdma_work_requests_total recv": chains,
		"container_rdma_verbs_total create_qp": 2, "container_rdma_verbs_total get_context": 1,
		"container_rdma_objects_created_total qp": 2, "container_rdma_objects_created_total ctx": 1,
	}
	first := map[*container]map[string]float64{}
	differs := func(m metrics, round int) error {
		for _, c := range containers {
			want := maps.Clone(first[c])
			for key := range want {
				want[key] *= float64(round)
			}
			if diff := cmp.Diff(want, m.counted(c.id, "rxe1")); diff != "" {
				return fmt.Errorf("%v on rxe1 after %d rounds (-want +got)\n%s", c.cmd.Args[4:], round, diff)
			}
			if diff := cmp.Diff(held[c], m.held(c.id, "rxe0")); diff != "" {
				return fmt.Errorf("%v holds on rxe0 after %d rounds (-want +got)\n%s", c.cmd.Args[4:], round, diff)
			}
		}
		return nil
	}
	steady := func(round int, what string) {
		t.Helper()
		for range 3 {
			if err := differs(s.fresh(), round); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	for round := 1; round <= rounds; round++ {
		if _, err := fmt.Fprintln(one.stdin); err != nil {
			t.Fatal(err)
		}
		one.line(t, "open") // it has closed rxe1
		many.do(t, "posts -d rxe1 "+strings.Join(traffic, " "))
		eventually(t, 30*time.Second, func() error {
			m := s.fresh()
			for _, c := range containers {
				if round == 1 {
					first[c] = m.counted(c.id, "rxe1")
				}
				for key, want := range known {
					if got := m.counted(c.id, "rxe1")[key]; got != want*float64(round) {
						return fmt.Errorf("%v: %s %v after %d rounds of %v", c.cmd.Args[4:], key, got, round, want)
					}
				}
			}
			return differs(m, round)
		})
		steady(round, "after the traffic")
		switch round {
		case 1: // scraped while it is gone
			unplug(t)
			steady(round, "unplugged")
			s.plug(t)
			steady(round, "plugged in again")
		case 2: // not scraped, and twice
			for range 2 {
				unplug(t)
				s.plug(t)
			}
		}
	}
	m := s.fresh()
	if late := m.sum("accelscope_datapath_late_total"); late > 1 {
		t.Errorf("%v contexts were late", late)
	}
	if lost := n.avoidable(t, m.losses()); len(lost) > 0 {
		t.Errorf("lost: %v", lost)
	}
	one.rest(t)
	many.do(t, "kill $holder; wait $holder; echo done")
	many.rest(t)
	keeper.rest(t)
	s.stop()
}
