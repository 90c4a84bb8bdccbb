// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// managerInterval is how often a known process is looked at, searchInterval how often all processes are.
	managerInterval = 5 * time.Second
	searchInterval  = 30 * time.Second
	// managerName is what the kernel keeps of the name nv-fabricmanager.
	managerName = "nv-fabricmanage"
	// maxSearched is the number of processes that are looked at.
	maxSearched = 1 << 16
)

// fabricManager watches for the process of NVIDIA's fabric manager, on the node or in a container. Only the keeper calls look.
type fabricManager struct {
	sysfs, procfs string
	// inFabric is set while a GPU belongs to an NVLink fabric. NVSwitches of a later generation are no PCI functions of the node: there the
	// process is missed once it was seen.
	inFabric atomic.Bool
	facts    atomic.Pointer[model.FabricManager]

	next, nextSwitches time.Time
	switches           bool
	process            managerProcess // zero: none was found
	starts             uint64
	seen               bool
}

// managerProcess identifies a process.
type managerProcess struct{ pid, start string }

// look looks for the process, if that is due.
func (m *fabricManager) look(now time.Time) {
	if now.Before(m.next) {
		return
	}
	m.next = now.Add(searchInterval)
	if !now.Before(m.nextSwitches) {
		m.switches, m.nextSwitches = hasSwitches(m.sysfs), now.Add(searchInterval)
	}
	if name, _ := processStat(m.procfs, "2"); !m.switches && !m.inFabric.Load() || name != "kthreadd" { // else it is not the node's procfs
		m.facts.Store(nil)
		return
	}
	before := m.process
	if m.process = m.read(before.pid); m.process.pid == "" {
		m.process = m.search()
	}
	if m.process.pid != "" {
		if m.seen && m.process != before {
			m.starts++
		}
		m.seen, m.next = true, now.Add(managerInterval)
	}
	if m.seen || m.switches {
		m.facts.Store(&model.FabricManager{Running: m.process.pid != "", Starts: m.starts})
	}
}

// search looks at all processes.
func (m *fabricManager) search() managerProcess {
	f, err := os.Open(m.procfs)
	if err != nil {
		return managerProcess{}
	}
	defer f.Close()
	names, _ := f.Readdirnames(maxSearched) // what could be listed
	for _, name := range names {
		if !model.IsDigits(name) {
			continue
		}
		if p := m.read(name); p.pid != "" {
			return p
		}
	}
	return managerProcess{}
}

// read returns the process with a PID, zero if it is not the fabric manager, or has ended.
func (m *fabricManager) read(pid string) managerProcess {
	if pid == "" {
		return managerProcess{}
	}
	name, fields := processStat(m.procfs, pid)
	if name != managerName || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return managerProcess{}
	}
	return managerProcess{pid, fields[19]}
}

// processStat reads /proc/PID/stat. It returns the name of the process, which is in parentheses and may contain anything, and the fields
// after it: the first is the state, the 20th the time when the process was started.
func processStat(procfs, pid string) (name string, fields []string) {
	stat := attribute(filepath.Join(procfs, pid, "stat"))
	begin, end := strings.Index(stat, "("), strings.LastIndex(stat, ")")
	if begin < 0 || end < begin {
		return "", nil
	}
	return stat[begin+1 : end], strings.Fields(stat[end+1:])
}

// hasSwitches reports whether the node has NVSwitches: PCI functions of NVIDIA of the class "other bridge", but for network controllers of
// old chipsets, which have another driver, and those that are given to a virtual machine.
func hasSwitches(sysfs string) bool {
	devices := filepath.Join(sysfs, "bus/pci/devices")
	entries, _ := os.ReadDir(devices)
	for _, e := range entries {
		dir := filepath.Join(devices, e.Name())
		if !strings.HasPrefix(attribute(filepath.Join(dir, "class")), "0x0680") || attribute(filepath.Join(dir, "vendor")) != "0x10de" {
			continue
		}
		driver, err := os.Readlink(filepath.Join(dir, "driver"))
		if err != nil || strings.HasPrefix(filepath.Base(driver), "nvidia") {
			return true
		}
	}
	return false
}
