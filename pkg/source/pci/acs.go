// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// Offsets in the extended configuration space (include/uapi/linux/pci_regs.h).
const (
	headerSize   = 0x40   // what the kernel shows without CAP_SYS_ADMIN
	extendedSize = 0x1000 // with the extended capabilities
	acsID        = 0x0d   // extended capability: Access Control Services
	acsRegisters = 0x04   // below the capability: ACS Capability, and ACS Control in the upper half
)

// findACS looks for the ACS capability. dword returns four bytes at an offset of the configuration space, false if it cannot be read.
func findACS(dword func(offset int) (uint32, bool)) model.ACS {
	if _, ok := dword(headerSize); !ok {
		return model.ACS{}
	}
	at := configSize
	for range (extendedSize - configSize) / 8 { // a list that loops ends here
		header, ok := dword(at)
		switch {
		case !ok && at == configSize, ok && header == 0: // there is no extended space, or no capability in it
			return model.ACS{State: model.ACSAbsent}
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

// bridgesOf returns the bridges of a path. Each is read once in a round.
func (s *Source) bridgesOf(path []string) []model.PCIBridge {
	var found []model.PCIBridge
	for i, address := range path {
		if i == len(path)-1 || !isAddress(address) {
			continue
		}
		b, ok := s.bridges[address]
		if !ok {
			b = model.PCIBridge{Address: address, ID: s.id(address), ACS: s.acs(address)}
			s.bridges[address] = b
		}
		found = append(found, b)
	}
	return found
}

// acs reads some registers of the file config, and none while the bridge is suspended.
func (s *Source) acs(address string) model.ACS {
	if s.suspended(address) {
		return model.ACS{}
	}
	fd, err := boundedfile.Open(unix.AT_FDCWD, s.path(address, "config"), 0)
	if err != nil {
		return model.ACS{}
	}
	defer unix.Close(fd)
	return findACS(func(offset int) (uint32, bool) {
		var b [4]byte
		n, err := boundedfile.Retry(func() (int, error) { return unix.Pread(fd, b[:], int64(offset)) })
		return binary.LittleEndian.Uint32(b[:]), err == nil && n == len(b)
	})
}
