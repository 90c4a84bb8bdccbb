// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
	"github.com/accelscope/accelscope/tests/fakes/silent"
)

// state of the tasks of a process, as in /proc/PID/task/TID/stat.
func taskStates(pid int) string {
	all := ""
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range stats {
		if b, err := os.ReadFile(path); err == nil {
			if _, after, ok := strings.Cut(string(b), ") "); ok {
				all += after[:1]
			}
		}
	}
	return all
}

// TestChildDoesNotEnd: a call is in uninterruptible sleep, so the child does not end when it is killed. It is counted, what it
// has open is reported, and another child reads the other GPU.
func TestChildDoesNotEnd(t *testing.T) {
	dir, answer := silent.Mount(t, "silent")
	r := newRemoteNode(t, 2, func(o *Options) { o.hangLimit = 3 * time.Second })
	t.Cleanup(answer) // before the Source is closed
	until(t, r.Source, ready(2))
	first := slices.Collect(maps.Keys(must(r.Held())))[0]
	r.Sleep("1", "nvmlDeviceGetPowerUsage", filepath.Join(dir, "file"))
	r.write()
	s := until(t, r.Source, func(s model.Snapshot) bool {
		return state(s, fake.Address(1)) == model.StateStuck && s.GPUs[0].Utilization.Known && s.Children[0].Stuck > 0
	})
	if tasks := taskStates(first); !strings.Contains(tasks, "D") {
		t.Fatalf("the tasks of the child are %q, none is in uninterruptible sleep: this test shows nothing", tasks)
	}
	if n := s.Children[0].Stuck; n != 1 || r.ends(endedByHang) != 1 {
		t.Errorf("%d children have not ended, %d hung", n, r.ends(endedByHang))
	}
	if state(s, "0") != model.StateOK || s.GPUs[0].Blocked || s.GPUs[1].Blocked {
		t.Errorf("%+v %+v", s.GPUs, s.DeviceStates)
	}
	status := r.Release("a test", time.Hour)
	if status.State != model.StateReleased || !slices.ContainsFunc(status.Open, func(node string) bool { return strings.Contains(node, "nvidia1") }) {
		t.Errorf("the child that has not ended: %+v", status)
	}

	// With as many as this no other is started.
	for range maxStuck - 1 {
		r.children.abandon(&child.Process{})
	}
	status = r.Resume()
	if want := fmt.Sprint(maxStuck, " ", errRemaining); status.State != model.StateFailed || !strings.Contains(status.Reason, want) {
		t.Errorf("%+v, want %q", status, want)
	}
	until(t, r.Source, states(isBlocked, isStuck))
	r.children.mu.Lock()
	r.children.stuck = r.children.stuck[:1]
	r.children.mu.Unlock()
	r.Heal("1", "nvmlDeviceGetPowerUsage")
	r.write()
	answer()
	nvmltest.Eventually(t, "the child ends", func() bool { return len(r.children.remaining()) == 0 })
	until(t, r.Source, func(s model.Snapshot) bool { return state(s, "0") == isOK })
}
