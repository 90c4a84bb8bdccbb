// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"context"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// Offsets in the extended configuration space (include/uapi/linux/pci_regs.h).
const (
	headerSize   = 0x40   // what the kernel shows without CAP_SYS_ADMIN
	extendedSize = 0x1000 // with the extended capabilities
	acsID        = 0x0d   // extended capability: Access Control Services
	acsRegisters = 0x04   // below the capability: ACS Capability, and ACS Control in the upper half
)

// findACS looks for the ACS capability. It is absent if the list of extended capabilities was read, or if the bridge
// has no PCI Express capability and so no list.
func findACS(dword dwords) model.ACS {
	if _, ok := dword(headerSize); !ok {
		return model.ACS{}
	}
	at := configSize
	for range (extendedSize - configSize) / 8 { // a list that loops ends here
		header, ok := dword(at)
		switch {
		case ok && header == 0: // the list has no capability
			return model.ACS{State: model.ACSAbsent}
		case !ok && at == configSize: // the kernel or a hypervisor may not reach the list of a PCIe port
			if express, known := findExpress(dword); known && express == 0 {
				return model.ACS{State: model.ACSAbsent}
			}
			return model.ACS{}
		case !ok || header == ^uint32(0): // the function does not answer
			return model.ACS{}
		case header&0xffff == acsID:
			registers, ok := dword(at + acsRegisters)
			if !ok || registers == ^uint32(0) {
				return model.ACS{}
			}
			return model.ACS{State: model.ACSPresent, Control: model.ACSControl(registers >> 16)} //nolint:gosec // 16 bits remain
		}
		if at = int(header >> 20 &^ 3); at < configSize {
			return model.ACS{State: model.ACSAbsent}
		}
	}
	return model.ACS{}
}

// readBridges sets the bridges of functions, and the power limits of the slots above them. The file config of each
// bridge is read once per round. The read waits while the kernel resets the bus (pci_user_read_config_dword of
// drivers/pci/access.c), and delays the round no longer than a VPD does. Registers that were not read in time are
// unknown.
func (s *Source) readBridges(ctx context.Context, found []model.PCIFunction) {
	reads := map[string]*hang.Pending[result]{}
	for i := range found {
		for _, address := range bridgesOn(found[i].Path) {
			if _, ok := reads[address]; !ok {
				reads[address] = s.startBridge(ctx, address)
			}
		}
	}
	known := make(map[string]result, len(reads))
	for address, read := range reads {
		known[address], _ = read.Wait(ctx) // after a failure nothing is known
	}
	for i := range found {
		f := &found[i]
		for _, address := range bridgesOn(f.Path) {
			f.Bridges = append(f.Bridges, model.PCIBridge{Address: address, ID: s.id(address), ACS: known[address].acs})
		}
		f.Upstream.SlotPower = known[f.Upstream.Address].slotPower
	}
}

// startBridge begins to read the registers of a bridge, unless the bridge is suspended.
func (s *Source) startBridge(ctx context.Context, address string) *hang.Pending[result] {
	if s.suspended(address) {
		return nil
	}
	file, key := s.path(address, "config"), device{address, inode(s.path(address, ""))}
	return s.calls.Start(ctx, key, s.wait, func() (result, error) { return readBridge(file) })
}

// readBridge reads some registers from the file config of a bridge.
func readBridge(file string) (result, error) {
	fd, err := boundedfile.Open(unix.AT_FDCWD, file, 0)
	if err != nil {
		return result{}, err
	}
	defer unix.Close(fd)
	dword := func(offset int) (uint32, bool) {
		var b [4]byte
		n, err := boundedfile.Retry(func() (int, error) { return unix.Pread(fd, b[:], int64(offset)) })
		return binary.LittleEndian.Uint32(b[:]), err == nil && n == len(b)
	}
	return result{acs: findACS(dword), slotPower: parseSlotPower(dword)}, nil
}

// bridgesOn returns the addresses of the bridges on a path.
func bridgesOn(path []string) []string {
	if len(path) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(path[:len(path)-1]), func(part string) bool { return !isAddress(part) })
}
