// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// preempted: the kernel preempts threads in system calls on BPF maps, and skips kprobe programs on that CPU meanwhile.
// During many such calls, objects are created and destroyed, in containers that stay and in containers that end. Then the
// sensor's numbers of objects must equal netlink's.
func (n node) preempted(t *testing.T) {
	if mode, err := os.ReadFile("/sys/kernel/debug/sched/preempt"); err != nil || !strings.Contains(string(mode), "(full)") {
		t.Fatalf("the kernel does not preempt itself: %q %v", mode, err)
	}
	const rounds, each = 8, 3
	s := start(t, n.args()...)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	defer busy.Wait()
	defer cancel()
	var reads atomic.Uint64
	maps := objectMaps(t)
	for i := range 4 {
		busy.Go(func() {
			for m := maps[i%len(maps)]; ctx.Err() == nil; {
				_, _ = m.LookupBytes(make([]byte, m.KeySize())) // no such key: the system call is what matters
				reads.Add(1)
			}
		})
	}
	for _, device := range []string{"rxe0", "rxe1"} {
		busy.Go(func() {
			for ctx.Err() == nil {
				_ = child.Command(ctx, "churn", device).Run()
			}
		})
	}
	var stay, ended []*container
	for round := range rounds {
		var now []*container
		for i := range each {
			name := fmt.Sprintf("round %d container %d", round, i)
			now = append(now, enter(t, name, "verbs", "-d", fmt.Sprint("rxe", i%2), "-p", "2", "-c", "3", "-q", "4", "-m", "1048576", "-m", "65536"))
		}
		for _, c := range now {
			c.line(t, "device")
		}
		ends, begun := now[0], now[1:]
		if round%2 == 1 { // also one that existed before
			ends, stay = stay[0], append(stay[1:], now[0])
		}
		ends.rest(t)
		ended, stay = append(ended, ends), append(stay, begun...)
		s.scrape()
	}
	cancel()
	busy.Wait()

	t.Logf("%d containers stay, %d ended; %d reads of maps; lost: %v", len(stay), len(ended), reads.Load(), s.fresh().losses())
	if reads.Load() < 100_000 {
		t.Error("too few reads of maps")
	}
	// The interval of reconciliations is a minute, and may have been doubled.
	took := eventually(t, 4*time.Minute, func() error {
		m := s.fresh()
		for _, kind := range []string{"ctx", "pd", "cq", "qp", "mr"} {
			want := dumped(t, kind)
			for _, device := range []string{"rxe0", "rxe1"} {
				for _, c := range slices.Concat(stay, ended) {
					got := m.sum("container_rdma_resources", "container_id", c.id, "device", device, "type", kind)
					if got != want[device][c.id] {
						return fmt.Errorf("%s of %.12s on %s: %v, netlink has %v", kind, c.id, device, got, want[device][c.id])
					}
				}
			}
		}
		for _, c := range stay {
			if got, want := m.sum("container_rdma_registered_bytes", "container_id", c.id), pinned(t, c.cmd.Process.Pid); got != want || want == 0 {
				return fmt.Errorf("%.12s has registered %v bytes, VmPin is %v", c.id, got, want)
			}
		}
		return nil
	})
	t.Logf("the same as netlink after %v; repaired %v", took.Round(time.Second),
		s.fresh().by("accelscope_probe_repaired_objects_total", "change"))
	for _, c := range stay {
		c.rest(t)
	}
	eventually(t, 4*time.Minute, func() error {
		m := s.fresh()
		for _, c := range slices.Concat(stay, ended) {
			if left := m.sum("container_rdma_resources", "container_id", c.id); left != 0 {
				return fmt.Errorf("%.12s has ended and holds %v", c.id, m.by("container_rdma_resources", "type", "container_id", c.id))
			}
		}
		return nil
	})
	s.stop()
}

// avoidable returns the losses without the counted losses that a kernel that preempts itself causes: it skips a program
// while another thread is preempted in it on the same CPU, and creates no task storage while another thread is
// preempted in an operation on task storage.
func (n node) avoidable(t *testing.T, lost map[string]float64) map[string]float64 {
	t.Helper()
	if n.preempts() {
		t.Logf("lost: %v", lost)
		for _, reason := range []string{"program_skipped", "return_missed", "device_program_skipped", "datapath_skipped", "calls_map_full"} {
			delete(lost, reason)
		}
	}
	return lost
}

// objectMaps opens the maps of the sensor that its hooks of objects use.
func objectMaps(t *testing.T) (found []*ebpf.Map) {
	t.Helper()
	var id ebpf.MapID
	for {
		var err error
		if id, err = ebpf.MapGetNextID(id); errors.Is(err, os.ErrNotExist) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue // removed meanwhile
		}
		if info, err := m.Info(); err == nil && (info.Name == "objects" || info.Name == "holdings") {
			t.Cleanup(func() { m.Close() })
			found = append(found, m)
		} else {
			m.Close()
		}
	}
	if len(found) != 2 {
		t.Fatalf("%d maps of objects", len(found))
	}
	return found
}
