// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// cmIDs: ids of the RDMA connection manager belong to the container that created them, as `rdma resource` shows: a
// listener on all devices, an id bound to an address, an id whose address a kernel thread resolves, and an id that a
// kernel thread creates for an incoming connection.
func (n node) cmIDs(t *testing.T) {
	s := start(t, n.args()...)
	all := enter(t, "listens on all", "rping", "-s", "-p", "7174")
	one := enter(t, "listens on one", "rping", "-s", "-a", "10.71.0.1", "-p", "7175")
	ids := func(want map[string]map[string]float64) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			if diff := cmp.Diff(want, dumped(t, "cm_id")); diff != "" {
				return fmt.Errorf("ids of `rdma resource` (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	ids(map[string]map[string]float64{"rxe0": {all.id: 1}, "rxe1": {all.id: 1, one.id: 1}})
	connects := enter(t, "connects", "rping", "-c", "-a", "10.70.0.1", "-p", "7174", "-C", "100000000")
	connected := map[string]map[string]float64{"rxe0": {all.id: 2, connects.id: 1}, "rxe1": {all.id: 1, one.id: 1}}
	ids(connected)

	shown := func(s *sensor) map[string]map[string]float64 {
		m, got := s.fresh(), map[string]map[string]float64{}
		for _, device := range []string{"rxe0", "rxe1"} {
			got[device] = map[string]float64{}
			for id, count := range m.by("container_rdma_resources", "container_id", "device", device, "type", "cm_id") {
				if count != 0 && id != "" {
					got[device][id] = count
				}
			}
		}
		return got
	}
	expect := func(s *sensor, want map[string]map[string]float64) {
		t.Helper()
		eventually(t, n.delay()+20*time.Second, func() error {
			if diff := cmp.Diff(want, shown(s)); diff != "" {
				return fmt.Errorf("ids of the sensor (-want +got):\n%s", diff)
			}
			return nil
		})
	}
	none := map[string]map[string]float64{"rxe0": {}, "rxe1": {}}
	counted := connected
	if n.counts() && n.kernel == "5.10" {
		counted = none // its modules have no type information
	}
	expect(s, counted)
	if n.counts() {
		created := s.fresh().by("container_rdma_objects_created_total", "container_id", "type", "cm_id")
		want := map[string]float64{all.id: 3, one.id: 1, connects.id: 1}
		if n.kernel == "5.10" {
			want = map[string]float64{}
		}
		for id := range created {
			if created[id] == 0 {
				delete(created, id)
			}
		}
		if diff := cmp.Diff(want, created); diff != "" {
			t.Errorf("created (-want +got):\n%s", diff)
		}
	}
	s.kill()

	s = start(t, n.args("--no-collector.probe")...)
	expect(s, connected)
	s.stop()

	// The ids existed before the sensor. The server ends with its connection, and the kernel ends all ids of a killed process.
	s = start(t, n.args()...)
	expect(s, counted)
	for _, c := range []*container{connects, one} {
		if err := c.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = c.cmd.Wait()
	}
	ids(map[string]map[string]float64{})
	expect(s, none)
	late := enter(t, "listens later", "rping", "-s", "-a", "10.71.0.1", "-p", "7175")
	ids(map[string]map[string]float64{"rxe1": {late.id: 1}})
	if n.counts() && n.kernel == "5.10" {
		expect(s, none)
	} else {
		expect(s, map[string]map[string]float64{"rxe0": {}, "rxe1": {late.id: 1}})
	}
	if err := late.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = late.cmd.Wait()
	expect(s, none)
	s.stop()
}
