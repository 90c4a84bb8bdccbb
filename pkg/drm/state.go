// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"bufio"
	"os"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// ScrapeTimeout is how long a scrape waits for a driver; after that it uses the last values. A GPU is stuck if its driver has
// not answered within HungAfter. DefaultInterval is how often processes are listed.
const (
	ScrapeTimeout   = 800 * time.Millisecond
	HungAfter       = 2 * time.Second
	DefaultInterval = 5 * time.Second
)

// Active reports whether one of the named conditions is active.
func Active(conditions []model.GPUCondition, names ...string) bool {
	return slices.ContainsFunc(conditions, func(c model.GPUCondition) bool { return c.Active && slices.Contains(names, c.Name) })
}

// StuckGPU returns the constant properties of a GPU with a hung driver.
func StuckGPU(g model.GPU) model.GPU {
	return model.GPU{
		Vendor: g.Vendor, UUID: g.UUID, Name: g.Name, Serial: g.Serial, PCIAddress: g.PCIAddress, PCIDevice: g.PCIDevice,
		NUMANode: g.NUMANode, VBIOS: g.VBIOS, Problems: []model.GPUCondition{{Name: model.ProblemStuck, Active: true}},
	}
}

// Unanswered returns the conditions of a GPU that is gone, or whose driver answers no read; nil of others.
func Unanswered(lost, silent bool) []model.GPUCondition {
	switch {
	case lost:
		return []model.GPUCondition{{Name: model.ProblemLost, Active: true}}
	case silent:
		return []model.GPUCondition{{Name: model.ProblemUnreadable, Active: true}}
	}
	return nil
}

// Answered returns the conditions that a GPU whose driver answers does not have.
func Answered() []model.GPUCondition {
	return []model.GPUCondition{{Name: model.ProblemLost}, {Name: model.ProblemStuck}, {Name: model.ProblemUnreadable}}
}

// State returns the state of a GPU. silent is why its driver answers no read.
func State(source, device string, g model.GPU, stuck bool, silent error) model.DeviceState {
	state := model.DeviceState{Source: source, Device: device, State: model.StateOK}
	switch {
	case stuck:
		state.State, state.Reason = model.StateStuck, "the driver does not answer"
	case Active(g.Problems, model.ProblemLost):
		state.State, state.Reason = model.StateFailed, "the device is gone"
	case silent != nil:
		state.State, state.Reason = model.StateFailed, "the driver answers no read: "+silent.Error()
	}
	return state
}

// Power is the power state of a device.
type Power struct {
	Asleep   bool   // suspended, suspending or resuming
	Changing string // suspending or resuming
	// Autosuspend is the idle time after which the device suspends itself; 0 if it does not.
	Autosuspend time.Duration
}

// ReadPower reads runtime_status and autosuspend_delay_ms, which belong to the power management core: reading them does not
// wake the device.
func ReadPower(d *Directory) Power {
	var p Power
	status := d.Line("power/runtime_status")
	if status == "suspending" || status == "resuming" {
		p.Changing = status
	}
	if d.Line("power/control") == "auto" {
		if ms := d.Number("power/autosuspend_delay_ms", 1); ms.Value > 0 {
			p.Autosuspend = time.Duration(ms.Value) * time.Millisecond
		}
	}
	p.Asleep = status == "suspended" || p.Changing != ""
	return p
}

// Rests reports whether the device must not be read, so that it can suspend itself: every read delays that. touched is the last read.
func (p Power) Rests(now, touched time.Time) bool {
	return p.Autosuspend > 0 && !touched.IsZero() && now.Sub(touched) < p.Autosuspend+p.Autosuspend/4+time.Second
}

// NUMANode returns the NUMA node of a device, "" if the kernel does not know it.
func NUMANode(d *Directory) string {
	if node := d.Line("numa_node"); node != "-1" {
		return node
	}
	return ""
}

// DriverVersion returns the version of a driver: its own if the vendor's package is installed, else the kernel's.
func DriverVersion(sysfs, procfs, module string) string {
	version := (&Directory{Path: sysfs}).Line("module/" + module + "/version")
	if version == "" {
		version = (&Directory{Path: procfs}).Line("sys/kernel/osrelease")
	}
	return version
}

// EachLine calls f with the lines of a file below the root of the node, at most limit, until f returns false.
func EachLine(root, file string, limit int, f func(line string) bool) {
	fd, err := boundedfile.OpenBelow(root, file, 0)
	if err != nil {
		return
	}
	list := os.NewFile(uintptr(fd), file)
	defer list.Close()
	lines := bufio.NewScanner(list)
	for n := 0; n < limit && lines.Scan() && f(lines.Text()); n++ {
	}
}
