// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// exclusive runs the sensor while each RDMA device belongs to one network namespace. If the kernel module that lets
// rxe0 move is available, rxe0 is in another namespace than the sensor.
func (n node) exclusive(t *testing.T) {
	sh(t, "rdma", "system", "set", "netns", "exclusive")
	// Not a cleanup: the context of a test, which ends the programs that sh starts, is canceled before cleanups run.
	defer sh(t, "sh", "-c", "ip netns del moved 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9 10; do "+
		"rdma system set netns shared && exit 0; sleep 0.5; done; exit 1")
	var inside []string
	netns := ""
	if module := n.module(t, movableVar); module != "" {
		sh(t, "insmod", module)
		sh(t, "ip", "netns", "add", "moved")
		sh(t, "rdma", "dev", "set", "rxe0", "netns", "moved")
		var st syscall.Stat_t
		if err := syscall.Stat("/run/netns/moved", &st); err != nil {
			t.Fatal(err)
		}
		inside, netns = []string{"ip", "netns", "exec", "moved"}, fmt.Sprint(st.Ino)
	}
	posts := func(name string, more ...string) *container {
		return enter(t, name, append(append(inside, "posts", "-d", "rxe0"), more...)...)
	}
	s := start(t, n.args("--rdma.datapath=always")...)
	keeper := posts("keeper in a namespace", "-n", "1", "-k")
	keeper.line(t, "done")
	probes := -1.0
	eventually(t, 30*time.Second, func() error {
		before := probes
		m := s.fresh()
		probes = m.sum("accelscope_datapath_probes")
		if m.sum("infiniband_device_info", "device", "rxe0", "netns", netns) != 1 {
			return fmt.Errorf("rxe0 is not in the namespace %q: %v", netns, m.all("infiniband_device_info"))
		}
		if probes < 3 || probes != before {
			return fmt.Errorf("%v probes, before %v", probes, before)
		}
		return nil
	})
	want := map[*container]moved{}
	for _, operation := range []string{"write", "read"} {
		c := posts("in a namespace: "+operation, "-o", operation, "-n", "50")
		want[c] = posted(t, operation, 50, c.rest(t))
	}
	s.equal(want)
	for _, x := range s.fresh()["container_rdma_work_requests_total"].GetMetric() {
		if label(x, "device") != "rxe0" || !strings.HasPrefix(label(x, "opcode"), "rdma_") {
			t.Errorf("unexpected traffic: %v", x)
		}
	}
	keeper.rest(t)
	s.stop()
}
