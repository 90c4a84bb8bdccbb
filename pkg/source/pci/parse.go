// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// parseSpeed parses current_link_speed and max_link_speed, "32.0 GT/s PCIe" or "2.5 GT/s" before Linux 5.8, into transfers per
// second. It returns 0 for "Unknown" and for conventional PCI.
func parseSpeed(b []byte) float64 {
	number, _, ok := strings.Cut(string(bytes.TrimSpace(b)), " GT/s")
	if !ok {
		return 0
	}
	g, err := strconv.ParseFloat(number, 64)
	if err != nil || !(g > 0 && g <= 1024) {
		return 0
	}
	return g * 1e9
}

// widths are the possible widths of a link. A function that does not answer has 63: all bits of the register are set.
var widths = []int{1, 2, 4, 8, 12, 16, 32}

// parseWidth parses current_link_width and max_link_width, a number of lanes, or 255 for unknown in some kernels. It
// returns 0 for other values.
func parseWidth(b []byte) int {
	n, err := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || !slices.Contains(widths, n) {
		return 0
	}
	return n
}

// maxDepth is more than the bridges between a CPU and a device.
const maxDepth = 32

var hostBridge = regexp.MustCompile(`^pci[0-9a-f]{4,8}:[0-9a-f]{2}$`)

// parsePlace returns the host bridge in a path of sysfs and everything below. On some platforms the host bridge is
// below other devices: devices/platform/NAME/pci0000:00/0000:00:00.0. It returns nil without a host bridge, and for a
// path that is too deep.
func parsePlace(path string) []string {
	parts := strings.Split(path, "/")
	first := slices.IndexFunc(parts, hostBridge.MatchString)
	if first < 0 || len(parts)-first > maxDepth {
		return nil
	}
	return slices.Clone(parts[first:])
}

// The limits of parseAER: a register has 32 bits, each with a name.
const (
	maxTypes    = 32
	maxTypeName = 32
)

// parseAER parses aer_dev_correctable, aer_dev_nonfatal or aer_dev_fatal (drivers/pci/pcie/aer.c): a line "NAME VALUE"
// for each type of error, and at the end a total such as "TOTAL_ERR_COR VALUE". Types that did not occur are left out.
// A bit without a name in the kernel is "dev_cor_errs_bit[3]". It returns false without a total.
func parseAER(b []byte, severity string) (model.AERErrors, bool) {
	errs := model.AERErrors{Severity: severity}
	found := false
	for line := range bytes.Lines(b) {
		name, number, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		value, err := strconv.ParseUint(number, 10, 64)
		switch {
		case !ok || err != nil || !validType(name):
		case strings.HasPrefix(name, "TOTAL_ERR_"):
			errs.Total, found = value, true
		case value > 0 && len(errs.Types) < maxTypes:
			errs.Types = append(errs.Types, model.Counter{Name: name, Value: value})
		}
	}
	return errs, found
}

func validType(name string) bool {
	return name != "" && len(name) <= maxTypeName && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '_' && r != '[' && r != ']' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// Offsets and bits of the configuration space (include/uapi/linux/pci_regs.h).
const (
	configSize     = 256
	statusRegister = 0x04    // in the upper half
	hasList        = 1 << 20 // in the status: there is a list of capabilities
	listRegister   = 0x34
	expressID      = 0x10    // capability: PCI Express
	implementsSlot = 1 << 24 // in the flags of that capability, which are its upper half
	slotRegister   = 0x14    // below the capability
)

// dwords returns four bytes at an offset of a configuration space, false if they cannot be read.
type dwords func(offset int) (uint32, bool)

// findExpress returns the offset of the PCI Express capability, or 0. It returns false if the list of capabilities
// cannot be read to its end.
func findExpress(dword dwords) (at int, known bool) {
	status, ok := dword(statusRegister)
	if !ok || status&hasList == 0 {
		return 0, ok
	}
	next, ok := dword(listRegister)
	for range configSize / 4 { // a list that loops ends here, and the list of a function that does not answer
		if at = int(next & 0xfc); !ok || at < headerSize {
			return 0, ok && at == 0
		}
		if next, ok = dword(at); ok && next&0xff == expressID {
			return at, true
		}
		next >>= 8
	}
	return 0, false
}

// parseSlotPower returns the power limit of the slot of a port, in watts: Slot Power Limit Value (bits 14 to 7 of Slot
// Capabilities) and Scale (bits 16 and 15). It is unknown if the registers cannot be read, as without CAP_SYS_ADMIN, if
// the port has no slot, or if the platform did not set it.
func parseSlotPower(dword dwords) model.Optional {
	at, _ := findExpress(dword)
	flags, ok := dword(at)
	if at == 0 || !ok || flags&implementsSlot == 0 {
		return model.Optional{}
	}
	slot, ok := dword(at + slotRegister)
	if !ok {
		return model.Optional{}
	}
	value, scale := slot>>7&0xff, slot>>15&3
	switch {
	case value == 0:
		return model.Optional{}
	case scale == 0 && value >= 0xf0: // above 239 W the value is a code; codes up to 300 W are the same in all releases
		watts, ok := map[uint32]float64{0xf0: 250, 0xf1: 275, 0xf2: 300}[value]
		return model.Optional{Value: watts, Known: ok}
	}
	return model.Some(float64(value) * []float64{1, 0.1, 0.01, 0.001}[scale])
}
