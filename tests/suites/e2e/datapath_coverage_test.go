// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// covered waits until the containers have the wanted coverage: values by reason, on all devices.
func (s *sensor) covered(want map[*container]map[string]float64) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, func() error {
		m := s.fresh()
		for c, w := range want {
			got := m.by("container_rdma_datapath_coverage", "reason", "container_id", c.id)
			if diff := cmp.Diff(w, got); diff != "" {
				return fmt.Errorf("coverage of %v (-want +got)\n%s", c.cmd.Args[4:], diff)
			}
		}
		return nil
	})
}

var complete = map[string]float64{"complete": 1}

func gap(reason string) map[string]float64 { return map[string]float64{reason: 0} }

// coverage: a workload whose bytes are not all counted says why.
func (n node) coverage(t *testing.T) {
	none := map[string]float64{}
	alone := func(c *container, w map[string]float64) map[*container]map[string]float64 {
		return map[*container]map[string]float64{c: w}
	}

	// The first user of the provider, whose probes come late, a later user, and unconnected queue pairs.
	s, keeper := n.watched(t, "--rdma.datapath=always")
	second := enter(t, "second", "posts", "-d", "rxe0", "-o", "send", "-n", "1", "-k")
	second.line(t, "done")
	unconnected := enter(t, "unconnected", "verbs", "-d", "rxe0", "-q", "2")
	nothing := enter(t, "nothing", "verbs", "-d", "rxe0", "-c", "1")
	s.covered(map[*container]map[string]float64{
		keeper: gap("late"), second: complete, unconnected: gap("not_seen"), nothing: none,
	})
	late := s.fresh().by("container_rdma_datapath_late_total", "container_id")
	if late[keeper.id] != 1 || late[second.id] != 0 {
		t.Errorf("contexts that were late: %v, want one of %s and none of %s", late, keeper.id, second.id)
	}
	unconnected.rest(t)
	nothing.rest(t)
	s.covered(map[*container]map[string]float64{second: complete, unconnected: none, nothing: none})
	s.stop()

	// Processes from before the sensor are counted from its start on.
	s = start(t, n.args("--rdma.datapath=always")...)
	s.covered(map[*container]map[string]float64{keeper: complete, second: complete})
	s.stop()
	keeper.rest(t)

	reasons := map[string][]string{"off": nil, "not_selected": {"--rdma.datapath=always", "--rdma.datapath-select=other"}}
	if whole() {
		reasons["full"] = []string{"--rdma.datapath=always", "--rdma.datapath-max-contexts=2"} // one of them for each cgroup
	}
	for reason, args := range reasons {
		s = start(t, n.args(args...)...)
		s.covered(alone(second, gap(reason)))
		s.stop()
	}
	second.rest(t)

	busy := enter(t, "busy", "posts", "-d", "rxe0", "-n", "1", "-p")
	busy.line(t, "polls")
	s = start(t, n.args("--rdma.datapath=survey")...)
	s.covered(alone(busy, gap("survey")))
	s.stop()
}

// toolCoverage: the coverage of foreign programs while they run: perftest, and pyverbs with its extended completion
// queue.
func (n node) toolCoverage(t *testing.T) {
	s, keeper := n.watched(t, "--rdma.datapath=always")
	first := s.extended(t)
	reads, unread := python(t, "pyverbs that reads all", "hold"), python(t, "pyverbs that reads no lengths", "unread")
	reads.line(t, "done")
	unread.line(t, "done")
	// It posts for longer than the test takes.
	x := trial{name: "perftest", argv: []string{"ib_write_bw", "-F", "-d", "rxe0", "-x", "1", "-n", "5000000", "-N"}}
	server, client := x.ends(t)
	eventually(t, 30*time.Second, func() error {
		if m := s.fresh().moved(client.id); m["rdma_write"] == 0 {
			return fmt.Errorf("perftest has posted nothing: %v", m)
		}
		return nil
	})
	s.covered(map[*container]map[string]float64{
		server: complete, client: complete, reads: complete, unread: gap("extended_poll"),
	})
	kill(client, server)
	reads.rest(t)
	unread.rest(t)
	first.rest(t)
	keeper.rest(t)
	s.stop()
}

// portCoverage: if the counters of the port carry the bytes of a workload, they are complete without the data path.
// After another workload had a queue pair, they are never complete again.
func (n node) portCoverage(t *testing.T) {
	s := start(t, n.args()...)
	one := enter(t, "alone on rxe0", "posts", "-d", "rxe0", "-n", "1", "-k")
	one.line(t, "done")
	s.covered(map[*container]map[string]float64{one: complete})
	other := enter(t, "other on rxe0", "posts", "-d", "rxe0", "-n", "1", "-k")
	other.line(t, "done")
	s.covered(map[*container]map[string]float64{one: gap("off"), other: gap("off")})
	other.rest(t)
	s.covered(map[*container]map[string]float64{one: gap("unattributed"), other: {}})
	one.rest(t)
	s.stop()
}

// devx: a workload with DEVX objects may have queue pairs among them, which are not counted. The device is a FAKE, a
// module that has only such objects; the uobject layer that makes them is the kernel's.
func (n node) devx(t *testing.T) {
	sh(t, "insmod", n.module(t, devxVar))
	defer sh(t, "rmmod", "devx") // not a cleanup: the context of a test is canceled before cleanups run
	const device, made = "devx0", 3
	s := start(t, n.args("--rdma.datapath=always")...)
	c := enter(t, "DEVX objects", "devx", device, fmt.Sprint(made))
	c.line(t, "ready")
	s.covered(map[*container]map[string]float64{c: gap("devx")})
	m := s.fresh()
	if held := m.sum("container_rdma_resources", "container_id", c.id, "device", device, "type", "devx_obj"); held != made-1 {
		t.Errorf("%v DEVX objects, want %d", held, made-1)
	}
	if created := m.sum("container_rdma_objects_created_total", "container_id", c.id, "device", device, "type", "devx_obj"); created != made {
		t.Errorf("%v DEVX objects created, want %d", created, made)
	}
	if calls := m.sum("container_rdma_verbs_total", "container_id", c.id, "device", device, "verb", "devx"); calls != made+1 {
		t.Errorf("%v calls of DEVX methods, want %d", calls, made+1)
	}
	s.stop()

	// A restarted sensor sees them too, also without the data path. They are gone with the process.
	for _, args := range [][]string{{"--rdma.datapath=always"}, nil} {
		s = start(t, n.args(args...)...)
		want := "devx"
		if args == nil {
			want = "off"
		}
		s.covered(map[*container]map[string]float64{c: gap(want)})
		m = s.fresh()
		if held := m.sum("container_rdma_resources", "container_id", c.id, "device", device, "type", "devx_obj"); held != made-1 {
			t.Errorf("%v DEVX objects after a restart, want %d", held, made-1)
		}
		if created := m.sum("container_rdma_objects_created_total", "container_id", c.id, "device", device, "type", "devx_obj"); created != 0 {
			t.Errorf("%v DEVX objects were created since the restart", created)
		}
		if args != nil {
			s.stop()
		}
	}
	c.rest(t)
	s.covered(map[*container]map[string]float64{c: {}})
	s.stop()
}
