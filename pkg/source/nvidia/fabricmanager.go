// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const (
	// managerInterval is the time between looks at a known process, searchInterval between searches of all processes.
	managerInterval = 5 * time.Second
	searchInterval  = 30 * time.Second
	// managerName is the name nv-fabricmanager as the kernel cuts it.
	managerName = "nv-fabricmanage"
	managerFile = "nv-fabricmanager"
	// managerSettled is how long a process must run to show that a node without NVSwitches needs it.
	managerSettled = time.Minute
	// maxSearched is the maximum number of searched processes.
	maxSearched = 1 << 16
)

// fabricManager watches for the process of NVIDIA's fabric manager, on the node or in a container. Any process may give itself the name,
// so the process must be root of the node and have the executable of that name. Only the keeper calls look.
type fabricManager struct {
	sysfs, procfs string
	// inFabric is set while a GPU belongs to an NVLink fabric. Later NVSwitches are no PCI functions of the node: there, the process is
	// missed only after it was seen.
	inFabric atomic.Bool
	facts    atomic.Pointer[model.FabricManager]

	next, nextSwitches time.Time
	switches           bool
	process            managerProcess // zero: none was found
	since              time.Time      // when process was found
	starts             uint64
	seen               bool
}

// managerProcess identifies a process.
type managerProcess struct {
	pid   string
	start time.Duration // since boot
}

// look looks for the process when due.
func (m *fabricManager) look(now time.Time) {
	if now.Before(m.next) {
		return
	}
	m.next = now.Add(searchInterval)
	if !now.Before(m.nextSwitches) {
		m.switches, m.nextSwitches = hasSwitches(m.sysfs), now.Add(searchInterval)
	}
	if !m.switches && !m.inFabric.Load() || !m.ofNode() {
		m.facts.Store(nil)
		return
	}
	process, err := m.read(m.process.pid)
	if process.pid == "" {
		process, err = m.search()
	}
	if process.pid == "" && err != nil { // perhaps it runs
		m.facts.Store(nil)
		return
	}
	m.note(now, process)
	if m.seen || m.switches {
		m.facts.Store(&model.FabricManager{Running: m.process.pid != "", Starts: m.starts})
	}
}

// note records the result of a look.
func (m *fabricManager) note(now time.Time, process managerProcess) {
	changed := process != m.process
	m.process = process
	if process.pid == "" {
		return
	}
	if m.next = now.Add(managerInterval); changed {
		m.since = now
		if m.seen {
			m.starts++
		}
	}
	m.seen = m.seen || m.switches || now.Sub(m.since) >= managerSettled
}

// ofNode reports whether procfs shows the processes and users of the node.
func (m *fabricManager) ofNode() bool {
	stat, err := procfile.ReadStat(filepath.Join(m.procfs, "2"))
	return err == nil && stat.Name == "kthreadd" && procfile.RealUser(filepath.Join(m.procfs, "1")) == "0"
}

// search looks at all processes. If no process is the fabric manager, it returns the error of a process that may be.
func (m *fabricManager) search() (_ managerProcess, unknown error) {
	f, err := os.Open(m.procfs)
	if err != nil {
		return managerProcess{}, fmt.Errorf("list processes: %w", err)
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxSearched) // what could be listed
	for _, name := range names {
		if !model.IsDigits(name) {
			continue
		}
		p, err := m.read(name)
		if p.pid != "" {
			return p, nil
		}
		if err != nil {
			unknown = err
		}
	}
	return managerProcess{}, unknown
}

// read returns the process with a PID, or zero if the process is not the fabric manager or has ended.
func (m *fabricManager) read(pid string) (managerProcess, error) {
	if pid == "" {
		return managerProcess{}, nil
	}
	stat, err := procfile.ReadStat(filepath.Join(m.procfs, pid))
	if err != nil || stat.Name != managerName || stat.State == "Z" || stat.State == "X" {
		return managerProcess{}, nil
	}
	users := func(pid string) string { return wire.Attribute(filepath.Join(m.procfs, pid, "uid_map")) }
	if procfile.RealUser(filepath.Join(m.procfs, pid)) != "0" || users(pid) != users("1") { // root of a user namespace
		return managerProcess{}, nil
	}
	file, err := os.Readlink(filepath.Join(m.procfs, pid, "exe"))
	switch {
	case errors.Is(err, fs.ErrPermission):
		return managerProcess{}, fmt.Errorf("read executable of process %s: %w", pid, err)
	case err != nil || strings.TrimSuffix(filepath.Base(file), " (deleted)") != managerFile: // deleted: by an update
		return managerProcess{}, nil
	}
	return managerProcess{pid, stat.Start}, nil
}

// hasSwitches reports whether the node has NVSwitches: PCI functions of NVIDIA of the class "other bridge", without network controllers
// of old chipsets, which have another driver, and functions of virtual machines.
func hasSwitches(sysfs string) bool {
	devices := filepath.Join(sysfs, "bus/pci/devices")
	entries, _ := os.ReadDir(devices)
	for _, e := range entries {
		dir := filepath.Join(devices, e.Name())
		value := func(name string) string { return wire.Attribute(filepath.Join(dir, name)) }
		if !strings.HasPrefix(value("class"), "0x0680") || value("vendor") != "0x10de" {
			continue
		}
		driver, err := os.Readlink(filepath.Join(dir, "driver"))
		if err != nil || strings.HasPrefix(filepath.Base(driver), "nvidia") {
			return true
		}
	}
	return false
}
