// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// withoutPersistence: without persistence mode, the driver initializes a GPU when its device node is opened first, and shuts it
// down after the last close. So rounds and scrapes open nothing, and the node of a GPU that sleeps is never opened.
func withoutPersistence(t *testing.T, binary, library string) {
	const asleep, rounds = 4, 20
	n := startGPUs(t, binary, library, 300*time.Millisecond, func(n *gpuNode) {
		for i := range nvml.GPUs {
			d := fmt.Sprint(i)
			n.Set(d, "nvmlDeviceGetPersistenceMode", 0)
			if n.Get(d, "nvmlDeviceGetMigMode") == "1 1" { // instances are read through the device nodes of their own
				n.Remove(d)
				if err := nvml.Unbind(n.SysFS(), n.ProcFS(), i); err != nil {
					t.Fatal(err)
				}
			}
		}
		n.Processes = slices.DeleteFunc(n.Processes, func(p nvml.Process) bool { return p.Device == fmt.Sprint(asleep) })
		n.Balance()
		if err := nvml.Suspend(n.SysFS(), asleep, "suspended"); err != nil {
			t.Fatal(err)
		}
	})
	defer ends(t, n.stop)
	n.listed(t)
	holds := func() (pid int, files []string) {
		t.Helper()
		held := n.held(t)
		if len(held) != 1 {
			t.Fatalf("processes with open device nodes: %v", held)
		}
		for pid, files = range held {
		}
		return pid, files
	}
	want := []string{"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia5", "nvidiactl"}
	reader, files := holds()
	if diff := cmp.Diff(want, files); diff != "" {
		t.Fatalf("device nodes (-want +got):\n%s", diff)
	}
	before := n.called(t)
	n.until(t, fmt.Sprint(rounds, " rounds"), func(exposition) bool {
		if pid, files := holds(); pid != reader || !slices.Equal(files, want) {
			t.Errorf("process %d holds %v", pid, files)
		}
		return n.called(t).Since(before).Of("0", "nvmlDeviceGetMigMode") >= rounds // once per round
	})
	opens := map[string]uint64{}
	for call, times := range n.called(t) {
		if call == "- dlopen" || call == "- nvmlInit" || call == "- nvmlEventSetCreate" {
			opens[call] = times
		}
	}
	if diff := cmp.Diff(map[string]uint64{"- dlopen": 1, "- nvmlInit": 1, "- nvmlEventSetCreate": 5}, opens); diff != "" {
		t.Errorf("since the start of the sensor (-want +got):\n%s", diff)
	}
	if calls := n.called(t).Since(before); calls.Functions()["nvmlDeviceGetHandleByIndex"] > 0 {
		t.Errorf("handles in %d rounds: %v", rounds, slices.Sorted(maps.Keys(calls)))
	}
	if c := n.called(t); c.Of(fmt.Sprint(asleep), "nvml") != 0 {
		t.Errorf("a GPU that sleeps is asked: %v", c)
	}
}
