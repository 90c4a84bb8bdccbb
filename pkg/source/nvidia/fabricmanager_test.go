// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// managerNode is a fake node: PCI functions and processes.
type managerNode struct {
	t             *testing.T
	sysfs, procfs string
}

func newManagerNode(t *testing.T) managerNode {
	n := managerNode{t, t.TempDir(), t.TempDir()}
	n.process(1, "systemd", "S", 1)
	n.process(2, "kthreadd", "S", 1)
	return n
}

func (n managerNode) write(path, text string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n managerNode) process(pid int, name, state string, started int) {
	n.t.Helper()
	n.write(filepath.Join(n.procfs, fmt.Sprint(pid), "stat"),
		fmt.Sprintf("%d (%s) %s 1 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0\n", pid, name, state, started))
}

func (n managerNode) end(pid int) {
	n.t.Helper()
	if err := os.RemoveAll(filepath.Join(n.procfs, fmt.Sprint(pid))); err != nil {
		n.t.Fatal(err)
	}
}

func (n managerNode) function(address, class, vendor, driver string) {
	n.t.Helper()
	dir := filepath.Join(n.sysfs, "bus/pci/devices", address)
	n.write(filepath.Join(dir, "class"), class+"\n")
	n.write(filepath.Join(dir, "vendor"), vendor+"\n")
	if driver != "" {
		if err := os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(dir, "driver")); err != nil {
			n.t.Fatal(err)
		}
	}
}

// TestFabricManager follows the process through its life.
func TestFabricManager(t *testing.T) {
	n := newManagerNode(t)
	n.function("0000:07:00.0", "0x068000", "0x10de", "nvidia-nvswitch")
	m := fabricManager{sysfs: n.sysfs, procfs: n.procfs}
	now := time.Now()
	for _, step := range []struct {
		name string
		set  func()
		want model.FabricManager
	}{
		{"never started", func() {}, model.FabricManager{}},
		{"another process has a part of the name", func() { n.process(70, "nv-fabricmana", "S", 5) }, model.FabricManager{}},
		{"its name in another name", func() { n.process(71, "x) (nv-fabricmanage", "S", 5) }, model.FabricManager{}},
		{"started", func() { n.process(80, "nv-fabricmanage", "S", 50) }, model.FabricManager{Running: true}},
		{"goes on", func() {}, model.FabricManager{Running: true}},
		{"crashed, not reaped", func() { n.process(80, "nv-fabricmanage", "Z", 50) }, model.FabricManager{}},
		{"ended", func() { n.end(80) }, model.FabricManager{}},
		{"started again with the same PID", func() { n.process(80, "nv-fabricmanage", "S", 900) }, model.FabricManager{Running: true, Starts: 1}},
		{"between two looks", func() { n.end(80); n.process(81, "nv-fabricmanage", "S", 950) }, model.FabricManager{Running: true, Starts: 2}},
		{"the PID is of another process", func() { n.process(81, "python3", "S", 990) }, model.FabricManager{Starts: 2}},
	} {
		now = now.Add(searchInterval)
		step.set()
		m.look(now)
		if d := cmp.Diff(&step.want, m.facts.Load()); d != "" {
			t.Errorf("%s: %s", step.name, d)
		}
	}
}

// TestNoFabricManager: nodes that need none, and those of which nothing is known.
func TestNoFabricManager(t *testing.T) {
	for name, set := range map[string]func(managerNode){
		"no NVSwitch":                    func(managerNode) {},
		"a GPU":                          func(n managerNode) { n.function("0000:07:00.0", "0x030200", "0x10de", "nvidia") },
		"a bridge of another vendor":     func(n managerNode) { n.function("0000:07:00.0", "0x068000", "0x8086", "") },
		"a network controller of nForce": func(n managerNode) { n.function("0000:07:00.0", "0x068000", "0x10de", "forcedeth") },
		"given to a virtual machine":     func(n managerNode) { n.function("0000:07:00.0", "0x068000", "0x10de", "vfio-pci") },
		"procfs of a container": func(n managerNode) {
			n.function("0000:07:00.0", "0x068000", "0x10de", "nvidia-nvswitch")
			n.process(2, "sh", "S", 1)
		},
		"no procfs": func(n managerNode) {
			n.function("0000:07:00.0", "0x068000", "0x10de", "nvidia-nvswitch")
			n.end(2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newManagerNode(t)
			set(n)
			m := fabricManager{sysfs: n.sysfs, procfs: n.procfs}
			if m.look(time.Now()); m.facts.Load() != nil {
				t.Errorf("%+v", m.facts.Load())
			}
		})
	}
}

// TestFabricManagerElsewhere: GPUs of a fabric whose switches the node does not have. Where the manager runs on a switch, none is missing; one
// that ran on the node is.
func TestFabricManagerElsewhere(t *testing.T) {
	n := newManagerNode(t)
	m, now := fabricManager{sysfs: n.sysfs, procfs: n.procfs}, time.Now()
	m.inFabric.Store(true)
	if m.look(now); m.facts.Load() != nil {
		t.Errorf("%+v", m.facts.Load())
	}
	n.process(80, "nv-fabricmanage", "S", 50)
	if m.look(now.Add(searchInterval)); m.facts.Load() == nil || !m.facts.Load().Running {
		t.Errorf("%+v", m.facts.Load())
	}
	n.end(80)
	if m.look(now.Add(2 * searchInterval)); m.facts.Load() == nil || m.facts.Load().Running {
		t.Errorf("%+v", m.facts.Load())
	}
}
