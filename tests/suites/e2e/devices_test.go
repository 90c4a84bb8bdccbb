// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// accessTestVar names the directory of the compiled tests of source/access.
const accessTestVar = "ACCELSCOPE_ACCESSTEST"

// accessHooks runs the tests of the source on this kernel: all tested kernels have fentry; kprobe is for others.
func (n node) accessHooks(t *testing.T) {
	for _, tier := range []string{"fentry", "kprobe"} {
		t.Setenv("ACCELSCOPE_TEST_TIER", tier)
		n.packageTests(t, accessTestVar, "../../../pkg/source/access", ".", "TestOpens")
	}
}

// numbers are the major and the minor number of a device node.
func numbers(t *testing.T, path string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %d", st.Rdev>>8&0xfff, st.Rdev&0xff|st.Rdev>>12&0xfff00)
}

// devices checks the counted opens of two real containers: one may use device nodes, the other creates nodes itself and
// may not open them. Opens by the shell in the container count, too.
func (n node) devices(t *testing.T) {
	t.Run("hooks", n.accessHooks)
	sh(t, "modprobe", "virtio_gpu")
	const render, card, uverbs = "/dev/dri/renderD128", "/dev/dri/card0", "/dev/infiniband/uverbs0"
	s := start(t, n.args()...)
	m := s.fresh()
	for hook, tier := range map[string]string{
		"chrdev_open": "fentry", "devcgroup_check_permission": "fentry", "task_file": "iterator",
	} {
		if m.sum("accelscope_probe_hook_state", "hook", hook, "tier", tier, "state", "ok") != 1 {
			t.Errorf("%s is not hooked by %s: %v", hook, tier, m.all("accelscope_probe_hook_state", "hook", hook))
		}
	}
	d, err := guest.StartContainerd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Stop() //nolint:errcheck // the guest ends with the test
	run := func(pod, script string, devices ...string) guest.Container {
		c := guest.PodContainer("gpu", pod, "worker", "sh", "-c", `
			opens() { # TIMES PATH RESULT
				i=0; ok=0
				while [ $i -lt $1 ]; do i=$((i + 1)); true <>$2 && ok=$((ok + 1)); done
				echo "$2 $ok"
			}
			wait_for() { while [ ! -e /tmp/$1 ]; do sleep 0.1; done; }
			`+script)
		c.Devices = devices
		if n.cgroup != "" {
			c.Cgroup = strings.Replace(c.Cgroup, "burstable/", "", 1)
		}
		if _, err := d.Run(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Delete(t.Context(), c.ID) })
		return c
	}
	// The test creates a file in the shared root to let a container continue.
	const tmp = "/run/guest/rootfs/tmp"
	_ = os.Remove(filepath.Join(tmp, "close-devices"))
	said := func(c guest.Container, line string) {
		t.Helper()
		eventually(t, 60*time.Second, func() error {
			if text, err := d.Log(c.ID); err != nil || !strings.Contains(text, line+"\n") {
				return errors.Join(fmt.Errorf("%.12s has not said %q: %s", c.ID, line, text), err)
			}
			return nil
		})
	}

	// access(2) and an unopened path do not count as opens.
	given := run("given", `
		opens 17 `+render+`; opens 5 `+card+`; opens 9 `+uverbs+`
		for i in 1 2 3; do [ -r `+render+` ]; done
		exec 3<>`+render+` 4<>`+render+` 5<>`+uverbs+`; echo held
		wait_for close-devices; exec 3>&- 4>&- 5>&-; echo closed; exec sleep 600`, render, card, uverbs)
	said(given, "held")
	// Nodes that the container creates itself. The last node has no device.
	refused := run("refused", `
		exec 2>&1 # the log has two streams in any order
		mknod /dev/r c `+numbers(t, render)+`; mknod /dev/u c `+numbers(t, uverbs)+`; mknod /dev/x c 226 4000
		opens 13 /dev/r; opens 4 /dev/u; opens 3 /dev/x
		for i in 1 2 3 4 5 6 7; do [ -r /dev/r ] && echo readable; done
		echo done; exec sleep 600`)
	said(refused, "done")
	for _, line := range []string{"/dev/r 0", "/dev/u 0", "/dev/x 0"} {
		said(refused, line)
	}
	if text, err := d.Log(refused.ID); err != nil || strings.Contains(text, "readable") ||
		strings.Count(text, "Operation not permitted") != 13+4+3 {
		t.Errorf("not refused by the device cgroup: %v: %s", err, text)
	}

	wantOpens := map[string]float64{
		given.ID + " renderD128 dri allowed": 17 + 2, given.ID + " card0 dri allowed": 5, given.ID + " uverbs0 rdma allowed": 9 + 1,
		refused.ID + " renderD128 dri denied": 13, refused.ID + " uverbs0 rdma denied": 4, refused.ID + " other dri denied": 3,
	}
	held := map[string]float64{given.ID + " renderD128": 2, given.ID + " card0": 0, given.ID + " uverbs0": 1}
	check := func(wantHandles map[string]float64) {
		t.Helper()
		eventually(t, 30*time.Second, func() error {
			m := s.scrape()
			opens, handles := map[string]float64{}, map[string]float64{}
			for id, workload := range map[string]string{given.ID: "gpu/given/worker", refused.ID: "gpu/refused/worker"} {
				for _, x := range m.all("container_device_opens_total", "container_id", id, "workload", workload) {
					if v := x.GetCounter().GetValue(); v != 0 {
						opens[strings.Join([]string{id, label(x, "device"), label(x, "class"), label(x, "result")}, " ")] = v
					}
				}
				for _, x := range m.all("container_device_handles", "container_id", id) {
					handles[id+" "+label(x, "device")] = x.GetGauge().GetValue()
				}
			}
			if diff := cmp.Diff(wantOpens, opens) + cmp.Diff(wantHandles, handles); diff != "" {
				return fmt.Errorf("-want +got: %s", diff)
			}
			return nil
		})
	}
	check(held)
	if err := os.WriteFile(filepath.Join(tmp, "close-devices"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	said(given, "closed")
	check(map[string]float64{given.ID + " renderD128": 0, given.ID + " card0": 0, given.ID + " uverbs0": 0})
	for _, x := range s.fresh().all("accelscope_probe_lost_total") {
		if strings.HasPrefix(label(x, "reason"), "device_") && x.GetCounter().GetValue() != 0 {
			t.Errorf("lost: %v", x)
		}
	}

	// A container that ended keeps its totals, separate from other containers.
	if err := d.Delete(t.Context(), refused.ID); err != nil {
		t.Error(err)
	}
	m = s.fresh()
	if v := m.sum("container_device_opens_total", "container_id", refused.ID, "result", "denied"); v != 13+4+3 {
		t.Errorf("after its end %v denied opens, want 20", v)
	}
	s.stop()
}
