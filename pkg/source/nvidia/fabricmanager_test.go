// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
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
	n.user(pid, 0, "         0          0 4294967295\n")
	n.runs(pid, "/usr/bin/nv-fabricmanager")
}

func (n managerNode) user(pid, user int, mapped string) {
	n.t.Helper()
	n.write(filepath.Join(n.procfs, fmt.Sprint(pid), "status"), fmt.Sprintf("Name:\tx\nUid:\t%d\t0\t0\t0\nGid:\t0\t0\t0\t0\n", user))
	n.write(filepath.Join(n.procfs, fmt.Sprint(pid), "uid_map"), mapped)
}

func (n managerNode) runs(pid int, file string) {
	n.t.Helper()
	link := filepath.Join(n.procfs, fmt.Sprint(pid), "exe")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		n.t.Fatal(err)
	}
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

// TestNoFabricManager: nodes that need no manager, and unknown nodes.
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
		"procfs of a user namespace": func(n managerNode) {
			n.function("0000:07:00.0", "0x068000", "0x10de", "nvidia-nvswitch")
			n.user(1, 65534, "")
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
	for start := range 2 { // one that ends at once shows nothing
		n.process(80, "nv-fabricmanage", "S", start)
		if m.look(now.Add(searchInterval)); m.facts.Load() != nil {
			t.Errorf("%+v", m.facts.Load())
		}
		n.end(80)
		now = now.Add(2 * searchInterval)
		if m.look(now); m.facts.Load() != nil {
			t.Errorf("%+v", m.facts.Load())
		}
	}
	n.process(80, "nv-fabricmanage", "S", 50)
	m.look(now.Add(searchInterval))
	now = now.Add(searchInterval + managerSettled)
	if m.look(now); m.facts.Load() == nil || *m.facts.Load() != (model.FabricManager{Running: true}) {
		t.Errorf("%+v", m.facts.Load())
	}
	n.end(80)
	if m.look(now.Add(searchInterval)); m.facts.Load() == nil || m.facts.Load().Running {
		t.Errorf("%+v", m.facts.Load())
	}
}

// TestForgedFabricManager: a process gives itself the name, or the name to its executable. It neither hides a manager nor counts as a manager.
func TestForgedFabricManager(t *testing.T) {
	for name, set := range map[string]func(managerNode, int){
		"a name only":              func(n managerNode, pid int) { n.runs(pid, "/usr/bin/python3.12") },
		"a longer name":            func(n managerNode, pid int) { n.runs(pid, "/home/user/nv-fabricmanager.py") },
		"of a user":                func(n managerNode, pid int) { n.user(pid, 1000, "         0          0 4294967295\n") },
		"root of a user namespace": func(n managerNode, pid int) { n.user(pid, 100000, "0 100000 65536\n") },
		"root in a user namespace": func(n managerNode, pid int) { n.user(pid, 0, "0 0 1\n") },
		"a kernel thread":          func(n managerNode, pid int) { _ = os.Remove(filepath.Join(n.procfs, fmt.Sprint(pid), "exe")) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newManagerNode(t)
			n.function("0000:07:00.0", "0x068000", "0x10de", "nvidia-nvswitch")
			m, now := fabricManager{sysfs: n.sysfs, procfs: n.procfs}, time.Now()
			look := func(want model.FabricManager) {
				t.Helper()
				now = now.Add(searchInterval)
				if m.look(now); m.facts.Load() == nil || *m.facts.Load() != want {
					t.Errorf("%+v, want %+v", m.facts.Load(), want)
				}
			}
			for _, pid := range []int{60, 90} {
				n.process(pid, "nv-fabricmanage", "S", 50)
				set(n, pid)
			}
			look(model.FabricManager{})
			n.process(80, "nv-fabricmanage", "S", 50)
			n.runs(80, "/usr/bin/nv-fabricmanager (deleted)")
			look(model.FabricManager{Running: true})
			n.end(80)
			look(model.FabricManager{})
		})
	}
}
