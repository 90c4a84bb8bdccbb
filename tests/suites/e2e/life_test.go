// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// restart: after a crash of the sensor, objects from before are attributed again, exactly once.
func (n node) restart(t *testing.T) {
	s := start(t, n.args()...)
	c := enter(t, "survivor", "verbs", "-d", "rxe0", "-q", "4", "-m", "2097152", "-C")
	c.line(t, "device")
	threaded := enter(t, "surviving threads", "threads", "-d", "rxe1", "-n", "3")
	for range 3 {
		threaded.line(t, "thread")
	}
	// Traffic continues, so that objects are created and destroyed while the hooks are attached.
	stop := make(chan struct{})
	var traffic sync.WaitGroup
	traffic.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = child.Command(context.Background(), "churn", "rxe0").Run()
			}
		}
	})
	defer func() { close(stop); traffic.Wait() }()
	time.Sleep(time.Second)
	s.kill()

	s = start(t, n.args()...)
	eventually(t, 20*time.Second, func() error {
		m := s.scrape()
		want := map[string]float64{"qp": 4, "cq": 1, "pd": 1, "mr": 1}
		if n.kernel != "5.10" {
			want["ctx"] = 1 // 5.10 does not dump contexts
		}
		got := m.by("container_rdma_resources", "type", "container_id", c.id)
		for kind, count := range want {
			if got[kind] != count {
				return fmt.Errorf("%v %s, want %v", got[kind], kind, count)
			}
		}
		// Only the hooks see the kind of memory.
		if bytes, want := m.sum("container_rdma_registered_bytes", "container_id", c.id, "memory", "unknown"), pinned(t, c.cmd.Process.Pid); bytes != want {
			return fmt.Errorf("%v bytes registered, VmPin is %v", bytes, want)
		}
		if n.kernel != "5.10" {
			// Their threads have ended; the verbs context identifies their process.
			if qps := m.sum("container_rdma_resources", "container_id", threaded.id, "type", "qp"); qps != 3 {
				return fmt.Errorf("%v QPs of threads that are gone, want 3", qps)
			}
		}
		return nil
	})
	// The context is destroyed and counted once: not below zero, which would show in the next objects.
	c.rest(t)
	again := enter(t, "survivor", "verbs", "-d", "rxe0", "-q", "1")
	again.line(t, "device")
	eventually(t, 20*time.Second, func() error {
		if qps := s.scrape().sum("container_rdma_resources", "container_id", c.id, "type", "qp"); qps != 1 {
			return fmt.Errorf("%v QPs, want 1", qps)
		}
		return nil
	})
	again.rest(t)
	threaded.rest(t)
	s.stop()
}

// churn: short-lived cgroups, 20 at a time, are counted exactly once and forgotten after the grace period.
func (n node) churn(t *testing.T) {
	const together, grace = 20, 15 * time.Second
	total := size(300, 60)
	s := start(t, n.args("--grace="+grace.String())...)
	before := s.scrape()
	slots := make(chan struct{}, together)
	var wg sync.WaitGroup
	ids := map[string]bool{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range total {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				c := enter(t, fmt.Sprint("churn ", i), "churn", "rxe0")
				c.rest(t)
				c.remove()
			})
		}
		wg.Wait()
	}()
	for i := range total {
		ids[digest(fmt.Sprint("churn ", i))] = true
	}
	seen := map[string]map[string]float64{}
	begin, logged := time.Now(), 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		case <-time.After(time.Second):
		}
		scrape := s.scrape
		if !running {
			scrape = s.fresh // a cached read lacks the last calls
		}
		m := scrape()
		family, by := "container_rdma_objects_created_total", "type"
		if !n.counts() {
			family, by = "container_rdma_verbs_total", "verb"
		}
		for _, x := range m[family].GetMetric() {
			if id := label(x, "container_id"); ids[id] {
				if seen[id] == nil {
					seen[id] = map[string]float64{}
				}
				seen[id][label(x, by)] = x.GetCounter().GetValue()
			}
		}
		if len(seen) >= logged+total/4 {
			logged = len(seen)
			t.Logf("%d of %d seen", logged, total) // an emulated preemptible kernel takes minutes
		}
		if v := m.sum("accelscope_unresolved_cgroups_total"); v != before.sum("accelscope_unresolved_cgroups_total") {
			t.Fatalf("%v cgroups have no name", v)
		}
	}
	t.Logf("%d containers lived and died in %v; largest scrape %d kB", total, time.Since(begin).Round(time.Second), s.largest>>10)
	wrong := 0
	for id := range ids {
		got := seen[id]
		ok := got["qp"] == 1 && got["mr"] == 1 && got["ctx"] == 1 && got["cq"] == 1 && got["pd"] == 1
		if !n.counts() {
			ok = got["create_qp"] == 1 && got["reg_mr"] == 1 && got["get_context"] == 1
		}
		if !ok {
			wrong++
			t.Logf("%.12s: %v", id, got)
		}
	}
	skipped, repair := 0, time.Duration(0)
	if n.preempts() { // the kernel skips programs that preempt one another, and counts them as skipped
		skipped, repair = int(s.scrape().sum("accelscope_probe_lost_total", "reason", "program_skipped")), 4*time.Minute
	}
	if wrong > skipped {
		t.Errorf("%d of %d containers were not counted exactly once, and %d programs were skipped", wrong, total, skipped)
	}
	took := eventually(t, grace+30*time.Second+repair, func() error {
		m := s.scrape()
		for _, family := range []string{"container_rdma_resources", "container_rdma_registered_bytes", "container_rdma_verbs_total", "accelscope_workload_info"} {
			for _, x := range m[family].GetMetric() {
				if ids[label(x, "container_id")] {
					if v := x.GetGauge().GetValue(); v != 0 && family == "container_rdma_resources" && n.counts() { // netlink is read every 15 s
						t.Fatalf("%.12s still holds %v", label(x, "container_id"), x)
					}
					return fmt.Errorf("%s of %.12s is still there", family, label(x, "container_id"))
				}
			}
		}
		for _, x := range m["accelscope_probe_map_entries"].GetMetric() {
			name := label(x, "map")
			if was := before.sum("accelscope_probe_map_entries", "map", name); x.GetGauge().GetValue() > was {
				return fmt.Errorf("map %s has %v entries, had %v before", name, x.GetGauge().GetValue(), was)
			}
		}
		return nil
	})
	t.Logf("no series and no map entry left %v after the last container", took.Round(time.Second))
	lost := n.avoidable(t, s.scrape().losses())
	if n.wantTier() == "kprobe" {
		// A kretprobe follows twice as many concurrent calls as there are CPUs; the guest has two.
		t.Logf("%v returns missed, and counted as such", lost["return_missed"])
		delete(lost, "return_missed")
	}
	for reason, count := range lost {
		if count != 0 {
			t.Errorf("%v lost: %s", count, reason)
		}
	}
	s.stop()
}

// modules are the modules of the RDMA stack, in the order of unloading. Other scenarios may have loaded movable, a
// module of the tests, which can only be unloaded when the devices are gone.
var modules = []string{"movable", "rdma_ucm", "ib_umad", "rdma_cm", "iw_cm", "ib_cm", "rdma_rxe", "ib_uverbs", "ib_uverbs_support", "ib_core"}

// reload: the sensor never blocks a driver reload, and works afterwards.
func (n node) reload(t *testing.T) {
	s := start(t, n.args()...)
	c := enter(t, "before the reload", "verbs", "-d", "rxe0", "-q", "2")
	c.line(t, "device")
	c.rest(t)
	before := s.fresh()
	if before.sum("container_rdma_verbs_total", "container_id", c.id) == 0 {
		t.Fatal("nothing counted before the reload")
	}
	for _, device := range []string{"rxe0", "rxe1"} {
		sh(t, "rdma", "link", "delete", device)
	}
	retried := unload(t)
	if retried > 10*time.Second { // far more than an emulator needs to detach all hooks
		t.Errorf("the driver reload had to retry for %v", retried)
	}
	gone := s.fresh()
	if v := gone.sum("container_rdma_resources"); v != 0 {
		t.Errorf("%v objects without a device", v)
	}
	if was, is := before.sum("container_rdma_verbs_total", "container_id", c.id), gone.sum("container_rdma_verbs_total", "container_id", c.id); is != was {
		t.Errorf("totals went from %v to %v with the device", was, is)
	}

	for _, m := range []string{"ib_uverbs", "rdma_rxe"} {
		sh(t, "modprobe", m)
	}
	sh(t, "rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "v0")
	eventually(t, 30*time.Second, func() error {
		if n := s.scrape().sum("accelscope_probe_hook_state", "hook", "ib_uverbs_ioctl", "state", "ok"); n != 1 {
			return errors.New("the hooks have not come back")
		}
		return nil
	})
	if _, err := os.Stat("/dev/infiniband/uverbs0"); err != nil {
		t.Fatal(err)
	}
	again := enter(t, "after the reload", "verbs", "-d", "rxe0", "-q", "3", "-m", "4096")
	again.line(t, "device")
	eventually(t, n.delay(), func() error {
		if qps := s.fresh().sum("container_rdma_resources", "container_id", again.id, "type", "qp", "device", "rxe0"); qps != 3 {
			return fmt.Errorf("%v QPs after the reload, want 3", qps)
		}
		return nil
	})
	m := s.fresh()
	if calls := m.sum("container_rdma_verbs_total", "container_id", again.id, "verb", "create_qp"); calls != 3 {
		t.Errorf("%v calls of create_qp after the reload, want 3", calls)
	}
	again.rest(t)
	s.stop()
	// No references remain: after the sensor stopped, the modules can be unloaded at once.
	sh(t, "rdma", "link", "delete", "rxe0")
	if retried := unload(t); retried != 0 {
		t.Errorf("without a sensor the driver reload had to retry for %v", retried)
	}
}

// unload removes the modules of the RDMA stack and returns how long rmmod had to retry, from the first refusal on.
func unload(t *testing.T) time.Duration {
	t.Helper()
	begin := time.Now()
	var refused time.Time
	for _, m := range modules {
		for loaded(m) {
			out, err := child.Command(context.Background(), "rmmod", m).CombinedOutput()
			if err == nil {
				break
			}
			if refused.IsZero() {
				refused = time.Now()
			}
			if time.Since(refused) > 20*time.Second {
				t.Fatalf("rmmod %s: %v: %s\n%s", m, err, out, users(m))
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	var retried time.Duration
	if !refused.IsZero() {
		retried = time.Since(refused)
	}
	t.Logf("modules unloaded after %v, of which %v after the first refusal", time.Since(begin), retried)
	return retried
}

// users describes what may hold a module: its holders, BPF links and programs, sockets of netlink, and processes.
func users(module string) string {
	out, _ := child.Command(context.Background(), "sh", "-c", "grep . /sys/module/"+module+"/refcnt; ls /sys/module/"+module+
		"/holders; bpftool link show; bpftool prog show; cat /proc/net/netlink; ps").CombinedOutput()
	return string(out)
}

func loaded(module string) bool {
	_, err := os.Stat(filepath.Join("/sys/module", strings.ReplaceAll(module, "-", "_")))
	return err == nil
}
