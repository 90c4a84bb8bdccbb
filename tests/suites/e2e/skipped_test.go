// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// kprobes enables or disables all kprobes of the kernel. The programs of disabled kprobes are skipped.
func kprobes(t *testing.T, on string) {
	t.Helper()
	sh(t, "sh", "-c", "mountpoint -q /sys/kernel/debug || mount -t debugfs none /sys/kernel/debug")
	if err := os.WriteFile("/sys/kernel/debug/kprobes/enabled", []byte(on), 0); err != nil {
		t.Fatal(err)
	}
}

func qps(m metrics, c *container) float64 {
	return m.sum("container_rdma_resources", "container_id", c.id, "type", "qp")
}

// showsQPs waits until the sensor shows this number of queue pairs of a container.
func (s *sensor) showsQPs(c *container, want float64) {
	s.t.Helper()
	eventually(s.t, time.Minute, func() error {
		if got := qps(s.fresh(), c); got != want {
			return fmt.Errorf("%v QPs, want %v", got, want)
		}
		return nil
	})
}

// skipped: the kernel skips the programs that count objects, while a container ends and another begins. The sensor
// detects that its numbers differ from the kernel's, and corrects them.
func (n node) skipped(t *testing.T) {
	s := start(t, n.args()...)
	ends := enter(t, "ends unseen", "verbs", "-d", "rxe0", "-q", "4", "-m", "2097152")
	ends.line(t, "device")
	s.showsQPs(ends, 4)
	for range 4 { // compared without a difference
		time.Sleep(2 * time.Second)
		s.fresh()
	}
	kprobes(t, "0")
	defer kprobes(t, "1")
	ends.rest(t)
	begins := enter(t, "begins unseen", "verbs", "-d", "rxe0", "-q", "2", "-m", "1048576")
	begins.line(t, "device")
	kprobes(t, "1")
	m := s.fresh()
	if a, b := qps(m, ends), qps(m, begins); a != 4 || b != 0 {
		t.Errorf("the programs were not skipped: %v QPs of the container that ended, %v of the other", a, b)
	}
	// The interval of reconciliations is a minute, and may have been doubled.
	eventually(t, 4*time.Minute, func() error {
		m := s.fresh()
		if a, b := qps(m, ends), qps(m, begins); a != 0 || b != 2 {
			return fmt.Errorf("%v QPs of the container that ended, %v of the other, want 0 and 2", a, b)
		}
		bytes, want := m.sum("container_rdma_registered_bytes", "container_id", begins.id), pinned(t, begins.cmd.Process.Pid)
		if bytes != want {
			return fmt.Errorf("%v bytes registered, VmPin is %v", bytes, want)
		}
		if got := m.sum("container_rdma_registered_bytes", "container_id", ends.id); got != 0 {
			return fmt.Errorf("%v bytes of the container that ended", got)
		}
		return nil
	})
	m = s.fresh()
	for change, want := range map[string]float64{"added": 2, "removed": 4} {
		if got := m.sum("accelscope_probe_repaired_objects_total", "change", change); got < want {
			t.Errorf("%v objects %s, want at least %v", got, change, want)
		}
	}
	// Counted once: the end of the adopted objects is seen.
	begins.rest(t)
	s.showsQPs(begins, 0)
	s.stop()
}

func addressOf(t *testing.T, function string) string {
	t.Helper()
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(symbols)) {
		if f := strings.Fields(line); f[2] == function {
			return f[0]
		}
	}
	t.Fatalf("the kernel has no function %s", function)
	return ""
}

// missed: the kernel counts skipped programs, and then the sensor lists all objects. The numbers of objects show
// nothing: while no program ran, one container ended and another began to hold equally many.
func (n node) missed(t *testing.T) {
	s := start(t, n.args()...)
	hold := []string{"verbs", "-d", "rxe0", "-q", "4", "-m", "2097152"}
	ends := enter(t, "ends unseen", hold...)
	ends.line(t, "device")
	s.showsQPs(ends, 4)
	kprobes(t, "0")
	defer kprobes(t, "1")
	ends.rest(t)
	begins := enter(t, "begins unseen", hold...)
	begins.line(t, "device")
	kprobes(t, "1")
	for range 4 {
		time.Sleep(2 * time.Second)
		m := s.fresh()
		if a, b, lost := qps(m, ends), qps(m, begins), m.losses()["program_skipped"]; a != 4 || b != 0 || lost != 0 {
			t.Fatalf("%v QPs of the container that ended, %v of the other, %v skipped programs: nothing should be noticed", a, b, lost)
		}
	}
	sh(t, "insmod", os.Getenv(missedVar), "restrack_del=0x"+addressOf(t, "rdma_restrack_del"))
	sh(t, "rmmod", "missed")
	took := eventually(t, 4*time.Minute, func() error {
		m := s.fresh()
		if lost := m.losses()["program_skipped"]; lost != 5 {
			return fmt.Errorf("%v skipped programs, want 5", lost)
		}
		if a, b := qps(m, ends), qps(m, begins); a != 0 || b != 4 {
			return fmt.Errorf("%v QPs of the container that ended, %v of the other, want 0 and 4", a, b)
		}
		return nil
	})
	t.Logf("listed again after %v", took.Round(time.Second))
	begins.rest(t)
	s.stop()
}
