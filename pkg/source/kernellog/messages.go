// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"regexp"
	"slices"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
)

// message is a form of a text that drivers log with dev_printk. The text of an event may vary with the version of the
// kernel; each form has a row, from the sources of Linux 5.10.262, 5.15.0, 6.1.192, 6.8.0, 6.12.117 and 7.2.12.
// Distributions backport later forms: 6.1.192 has amdgpu's forms of 6.9.
type message struct {
	driver  model.FaultDriver
	code    string
	kernels string // 5.10–6.8: the kernels that have the form
	example string // the text after the driver, the address and their prefixes
	// text matches the text after the prefixes. A group "process" has the name of the process that caused the fault,
	// "pid" its PID, and "task" both, as amdgpu writes them.
	text   func() *regexp.Regexp
	kind   kind
	awaits bool // the next record of the device has the process
	// again is set if newer kernels log the text as well, after another text about the same event.
	again bool
}

// lazily returns a function that compiles a regular expression at its first call: no node has the hardware of all
// drivers.
func lazily(text string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
}

func row(driver model.FaultDriver, code, kernels, text, example string) message {
	return message{driver: driver, code: code, kernels: kernels, text: lazily(text), example: example}
}

func awaiting(m message) message { m.awaits = true; return m }

func recovers(m message) message { m.kind = recovery; return m }

func again(m message) message { m.again = true; return m }

func names(m message) message { m.kind = culprit; return m }

// messages lists the messages by the name of the driver of the PCI device. Each error has one code, although drivers
// may print several lines about it.
var messages = map[string][]message{
	"amdgpu":    withPCIe(model.DriverAMDGPU, amdgpuMessages),
	"i915":      withPCIe(model.DriverI915, i915Messages),
	"xe":        withPCIe(model.DriverXe, xeMessages),
	"nvidia":    withPCIe(model.DriverNVIDIA, nil),
	"mlx5_core": withPCIe(model.DriverMLX5, mlx5Messages),
	"bnxt_en":   withPCIe(model.DriverBNXT, bnxtMessages),
	"ice":       withPCIe(model.DriverIRDMA, irdmaMessages),
	"efa":       withPCIe(model.DriverEFA, efaMessages),
}

// otherNames are other drivers to which the PCI device of a message may be bound, or seem bound.
var otherNames = map[string]string{"i40e": "ice", "idpf": "ice", "irdma": "ice", "bnxt_re": "bnxt_en"}

// ofFunctions has the drivers of ordinary NICs, few of them with RDMA: only irdma's messages with their names are read,
// not the PCI core's.
var ofFunctions = map[string][]message{"i40e": irdmaMessages, "idpf": irdmaMessages}

// withPCIe adds the PCI core's messages about the device of any driver.
func withPCIe(driver model.FaultDriver, rows []message) []message {
	rows = slices.Clone(rows)
	for _, m := range pcieMessages {
		m.driver = driver
		rows = append(rows, m)
	}
	return rows
}

// pcieMessages are from aer.c and pci.c. Only the first line about an error has its severity.
var pcieMessages = []message{
	row("", "pcie_fatal", "5.10–7.2", `^(?:AER: )?(?:PCIe|CXL) Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\), type=`,
		"PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)"),
	row("", "pcie_nonfatal", "5.10–7.2", `^(?:AER: )?(?:PCIe|CXL) Bus Error: severity=Uncorrect(?:ed|able) \(Non-Fatal\), type=`,
		"PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Receiver ID)"),
	row("", "inaccessible", "5.10–5.15", `^can't change power state from \w+ to \w+ \(config space inaccessible\)`,
		"can't change power state from D3hot to D0 (config space inaccessible)"),
	row("", "inaccessible", "6.1–7.2", `^Unable to change power state from \w+ to \w+, device inaccessible`,
		"Unable to change power state from D3cold to D0, device inaccessible"),
	row("", "inaccessible", "6.12", `^Device config space inaccessible; unable to \w+`,
		"Device config space inaccessible; unable to recover"),
}
