// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestThisMachine compares what the source reads of the PCI functions of this machine with their registers in /proc/bus/pci.
func TestThisMachine(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to read registers")
	}
	s, err := New(Options{Sysfs: "/sys"})
	if err != nil {
		t.Fatal(err)
	}
	snap, err := s.Read(t.Context())
	if err != nil && !errors.Is(err, model.ErrAbsent) {
		t.Fatal(err)
	}
	got := map[string]model.PCILink{}
	for _, f := range snap.PCI {
		got[f.Address] = f.Link
	}
	want := map[string]model.PCILink{}
	files, err := filepath.Glob("/proc/bus/pci/*/*.*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		config, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		const class = 0x0b
		if base := config[class]; base != 0x02 && base != 0x03 && base != 0x12 {
			continue
		}
		if config[0] == 0xff { // a VF has no identity of its own
			continue
		}
		bus := filepath.Base(filepath.Dir(file)) // "00", or "0001:00" in another domain than the first
		if len(bus) == len("00") {
			bus = "0000:" + bus
		}
		want[fmt.Sprint(bus, ":", filepath.Base(file))] = registers(config)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("against the registers:\n%s", diff)
	}
	for _, f := range snap.PCI {
		dir, err := filepath.EvalSymlinks("/sys/bus/pci/devices/" + f.Address)
		if err != nil || !strings.HasSuffix(dir, "/"+strings.Join(f.Path, "/")) || len(f.Path) < 2 || !strings.HasPrefix(f.Path[0], "pci") {
			t.Errorf("%s is in %s, not %q: %v", f.Address, dir, f.Path, err)
		}
	}
	t.Logf("%d functions", len(got))
}

// registers decodes Link Capabilities and Link Status.
func registers(config []byte) model.PCILink {
	const first, next, linkCapabilities, linkStatus = 0x34, 1, 0x0c, 0x12
	for at, n := int(config[first]), 0; at >= 0x40 && at+linkStatus+2 <= len(config) && n < 48; at, n = int(config[at+next]), n+1 {
		if config[at] != expressID {
			continue
		}
		status := binary.LittleEndian.Uint16(config[at+linkStatus:])
		capabilities := binary.LittleEndian.Uint32(config[at+linkCapabilities:])
		speeds := [16]float64{0, 2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9}
		return model.PCILink{
			Speed: speeds[status&0xf], Width: int(status >> 4 & 0x3f),
			MaxSpeed: speeds[capabilities&0xf], MaxWidth: int(capabilities >> 4 & 0x3f),
		}
	}
	return model.PCILink{}
}
