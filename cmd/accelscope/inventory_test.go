// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// keptNode is a node with eight fake GPUs, and a sensor that keeps its inventory.
type keptNode struct {
	*gpuNode
	t               *testing.T
	binary, library string
	state           string
}

func startKept(t *testing.T) *keptNode {
	t.Helper()
	binary, library := buildNVML(t)
	k := &keptNode{t: t, binary: binary, library: library, state: filepath.Join(t.TempDir(), "state")}
	k.gpuNode = startGPUs(t, binary, library, time.Second, func(n *gpuNode) { k.boot(n, "b1") }, "--state.dir="+k.state)
	t.Cleanup(func() { _, _ = k.stop() })
	k.until(t, "all GPUs are there", k.healths(nvml.GPUs))
	return k
}

// healths reports whether the health of so many GPUs is known, and of no others.
func (k *keptNode) healths(gpus int) func(exposition) bool {
	return func(e exposition) bool {
		all := slices.DeleteFunc(slices.Collect(maps.Keys(e.by("gpu_health", "gpu_id"))), func(id string) bool { return strings.Contains(id, ":") })
		return len(all) == gpus
	}
}

// boot writes the id of the machine and the boot id.
func (k *keptNode) boot(n *gpuNode, id string) {
	k.t.Helper()
	for path, text := range map[string]string{n.Dir + "/etc/machine-id": "m1", n.ProcFS() + "/sys/kernel/random/boot_id": id} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			k.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			k.t.Fatal(err)
		}
	}
}

// again starts the sensor again.
func (k *keptNode) again() {
	k.t.Helper()
	k.start(k.t, k.binary, k.library, k.interval, "--path.procfs="+k.ProcFS(), "--path.cgroup="+k.CgroupFS(), "--state.dir="+k.state)
}

// reboot ends the sensor, changes the node, and starts the sensor again.
func (k *keptNode) reboot(change func()) {
	k.t.Helper()
	if _, err := k.stop(); err != nil {
		k.t.Fatal(err)
	}
	change()
	k.boot(k.gpuNode, "b2")
	k.again()
}

// unplug removes a GPU from the node.
func (k *keptNode) unplug(gpu int) {
	k.t.Helper()
	if err := nvml.Unbind(k.SysFS(), k.ProcFS(), gpu); err != nil {
		k.t.Fatal(err)
	}
	k.Remove(fmt.Sprint(gpu))
	k.write(k.t)
}

func missingOf(e exposition) map[string]float64 {
	return e.by("accelscope_device_missing", "kind", "id")
}

// misses waits until these GPUs are missing, each with its value.
func (k *keptNode) misses(want map[string]float64) {
	k.t.Helper()
	began := time.Now()
	k.until(k.t, fmt.Sprint("missing: ", want), func(e exposition) bool { return maps.Equal(missingOf(e), want) })
	if took := time.Since(began); took > time.Minute {
		k.t.Errorf("after %v", took)
	}
}

// verdict reports whether the sensor has a verdict about a GPU that is gone.
func (k *keptNode) verdict(uuid string) bool {
	k.t.Helper()
	found, _ := judged(k.t, k.url)
	return slices.Contains(found, "critical GPUGone GPU "+uuid)
}

// accept runs accelscope inventory accept.
func (k *keptNode) accept(devices ...string) string {
	k.t.Helper()
	args := append([]string{"inventory", "accept", "--gpu.control-socket=" + k.socket()}, devices...)
	out, _ := child.Command(k.t.Context(), k.binary, args...).CombinedOutput() // the text has the error
	return string(out)
}

// TestInventory: what the node had is missed across a restart of the node, and what was replaced is not.
func TestInventory(t *testing.T) {
	if testing.Short() {
		t.Skip("starts sensors: make test")
	}
	t.Run("vanished", func(t *testing.T) {
		t.Parallel()
		k := startKept(t)
		gone := k.UUID("3")
		k.reboot(func() { k.unplug(3) })
		k.misses(map[string]float64{"gpu " + gone: 1})
		if !k.verdict(gone) {
			t.Error("no verdict")
		}
		k.until(t, "the others are there", k.healths(nvml.GPUs-1))
		text := k.doctor(t, k.binary, k.library, "--state.dir="+k.state)
		if !strings.Contains(text, "missing: "+gone) || !strings.Contains(text, "critical GPUGone: GPU "+gone) {
			t.Errorf("doctor: %s", text)
		}
		if text := k.accept("no-such-device"); !strings.Contains(text, "nothing is missing of no-such") {
			t.Errorf("accept: %s", text)
		}
		if text := k.accept(); !strings.Contains(text, "accepted: gpu NVIDIA H100 80GB HBM3 "+gone) {
			t.Errorf("accept: %s", text)
		}
		k.misses(map[string]float64{"gpu " + gone: 0})
		if k.verdict(gone) {
			t.Error("a verdict of what was accepted")
		}
		k.reboot(func() {})
		k.until(t, "the others are there again", k.healths(nvml.GPUs-1))
		k.misses(map[string]float64{"gpu " + gone: 0})
	})
	t.Run("replaced", func(t *testing.T) {
		t.Parallel()
		k := startKept(t)
		const other = "GPU-0000beef-0000-4000-8000-00000000beef"
		k.reboot(func() {
			k.Set("3", "nvmlDeviceGetUUID", other)
			k.Set("3", "nvmlDeviceGetSerial", "9999999999999")
			k.write(t)
			path := filepath.Join(k.ProcFS(), "driver/nvidia/gpus", nvml.Address(3), "information")
			if err := os.WriteFile(path, []byte("GPU UUID: \t "+other+"\nDevice Minor: \t 3\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		})
		k.until(t, "the other GPU is there", func(e exposition) bool { return healthOf(e, other) >= 0 && k.healths(nvml.GPUs)(e) })
		k.misses(map[string]float64{})
	})
	t.Run("at run time, and killed", func(t *testing.T) {
		t.Parallel()
		k := startKept(t)
		gone := k.UUID("7")
		k.unplug(7)
		k.misses(map[string]float64{"gpu " + gone: 1})
		for range 5 {
			time.Sleep(rand.N(300 * time.Millisecond))
			if err := k.process.Kill(); err != nil {
				t.Fatal(err)
			}
			_, _ = k.stop() // killed
			k.again()
			k.misses(map[string]float64{"gpu " + gone: 1})
		}
	})
	t.Run("links", func(t *testing.T) {
		t.Parallel()
		k := startKept(t)
		down := func(e exposition) (uuids []string) {
			for uuid := range e.by("gpu_health", "uuid") {
				if slices.Contains(problemsOf(e, uuid), "link_down") {
					uuids = append(uuids, uuid)
				}
			}
			return slices.Sorted(slices.Values(uuids))
		}
		e := k.until(t, "links are judged", func(e exposition) bool {
			return e.by("gpu_problem", "problem")["link_down"] == 0 && len(judgedLinks(e)) >= nvml.GPUs-2 // but for those with MIG
		})
		if got := down(e); got != nil {
			t.Errorf("%q", got)
		}
		k.reboot(func() { // a switch fails: all GPUs are alike
			for n := range nvml.GPUs {
				k.Set(fmt.Sprint(n), "field.165.5", "u", 0)
			}
			k.write(t)
		})
		e = k.until(t, "links are down", func(e exposition) bool { return len(down(e)) >= nvml.GPUs-2 })
		for _, uuid := range down(e) {
			if healthOf(e, uuid) != 0 {
				t.Errorf("%s is healthy", uuid)
			}
		}
		if found, _ := judged(t, k.url); !slices.ContainsFunc(found, func(v string) bool { return strings.HasPrefix(v, "warning GPUUnhealthy") }) {
			t.Errorf("%q", found)
		}
	})
}

// judgedLinks returns the GPUs whose links are judged.
func judgedLinks(e exposition) (uuids []string) {
	for _, m := range e.families["gpu_problem"].GetMetric() {
		if label(m, "problem") == "link_down" {
			uuids = append(uuids, label(m, "uuid"))
		}
	}
	return uuids
}

// TestInventoryOfHCAs: an HCA that vanishes is missed, one that has another name is not.
func TestInventoryOfHCAs(t *testing.T) {
	if testing.Short() {
		t.Skip("starts sensors: make test")
	}
	t.Parallel()
	m, args := fakeNode(t)
	args = append(args, "--state.dir="+filepath.Join(t.TempDir(), "state"))
	class := filepath.Join(m.SysFS(), "class/infiniband")
	names := []string{}
	for _, h := range m.HCAs {
		names = append(names, h.Name)
	}
	binary := build(t)
	url, stop := start(t, binary, args...)
	ready(t, url)
	if got := missingOf(scrape(t, url)); len(got) != 0 {
		t.Errorf("at first: %v", got)
	}
	if err := os.Rename(filepath.Join(class, names[1]), filepath.Join(class, "rail1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(class, names[3]), filepath.Join(m.Dir, "gone")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		time.Sleep(time.Second) // a refresh is used for as long
		if got := missingOf(scrape(t, url)); len(got) != 1 {
			t.Errorf("%v", got)
		}
		found, _ := judged(t, url)
		gone := slices.ContainsFunc(found, func(v string) bool { return strings.HasPrefix(v, "critical RDMADeviceGone "+names[3]+" (0x") })
		if !gone || slices.ContainsFunc(found, func(v string) bool { return strings.Contains(v, "NothingWrong") }) {
			t.Errorf("%q", found)
		}
		if _, err := stop(); err != nil {
			t.Error(err)
		}
		url, stop = start(t, binary, args...)
		ready(t, url)
	}
	if err := os.Rename(filepath.Join(m.Dir, "gone"), filepath.Join(class, names[3])); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	if got := missingOf(scrape(t, url)); len(got) != 0 {
		t.Errorf("after its return: %v", got)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}
