// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// extended returns a configuration space with a list of extended capabilities, each at an offset with its id and its next one, as
// include/uapi/linux/pci_regs.h defines them: the id in 16 bits, the version in 4, the next offset in 12. ACS Control is control.
func extended(control uint16, list ...[3]int) []byte {
	b := make([]byte, extendedSize)
	for _, c := range list {
		at, id, next := c[0], c[1], c[2]
		binary.LittleEndian.PutUint32(b[at:], uint32(id)|1<<16|uint32(next)<<20)
		if id == acsID {
			binary.LittleEndian.PutUint16(b[at+4:], 0x5f)
			binary.LittleEndian.PutUint16(b[at+6:], control)
		}
	}
	return b
}

func bytesOf(b []byte) dwords {
	return func(at int) (uint32, bool) {
		if at+4 > len(b) {
			return 0, false
		}
		return binary.LittleEndian.Uint32(b[at:]), true
	}
}

func TestFindACS(t *testing.T) {
	const aer = 0x01
	ones := make([]byte, extendedSize)
	for i := range ones {
		ones[i] = 0xff
	}
	withoutExpress, astray, loop := port(75, 0, true), port(75, 0, true), port(75, 0, true)
	withoutExpress[0x41], astray[0x41], loop[0x41] = 0, 0x20, 0x40 // where the capability behind the first one is
	present := func(control model.ACSControl) model.ACS { return model.ACS{State: model.ACSPresent, Control: control} }
	absent, unknown := model.ACS{State: model.ACSAbsent}, model.ACS{}
	for name, c := range map[string]struct {
		config []byte
		want   model.ACS
	}{
		"the first":                     {extended(0x1d, [3]int{0x100, acsID, 0}), present(0x1d)},
		"the third, with nothing set":   {extended(0, [3]int{0x100, aer, 0x148}, [3]int{0x148, 3, 0x200}, [3]int{0x200, acsID, 0}), present(0)},
		"a list that goes back":         {extended(0x5d, [3]int{0x100, aer, 0x300}, [3]int{0x300, 3, 0x180}, [3]int{0x180, acsID, 0}), present(0x5d)},
		"at the end":                    {extended(1, [3]int{0x100, aer, 0xff8}, [3]int{0xff8, acsID, 0}), present(1)},
		"others only":                   {extended(0, [3]int{0x100, aer, 0x148}, [3]int{0x148, 3, 0}), absent},
		"no list":                       {extended(0), absent},
		"no PCI Express":                {make([]byte, configSize), absent},
		"other capabilities only":       {withoutExpress, absent},
		"PCI Express without the list":  {port(75, 0, true), unknown},
		"a list that leads nowhere":     {astray, unknown},
		"a list that loops":             {loop, unknown},
		"without CAP_SYS_ADMIN":         {make([]byte, headerSize), unknown},
		"empty":                         {nil, unknown},
		"cut off below the list":        {extended(0, [3]int{0x100, aer, 0x148})[:0x140], unknown},
		"cut off in the capability":     {extended(0, [3]int{0x100, acsID, 0})[:0x104], unknown},
		"fell off the bus":              {ones, unknown},
		"a loop":                        {extended(0, [3]int{0x100, aer, 0x148}, [3]int{0x148, 3, 0x100}), unknown},
		"next is in the ordinary space": {extended(0, [3]int{0x100, aer, 0x40}), absent},
	} {
		if got := findACS(bytesOf(c.config)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func FuzzACS(f *testing.F) {
	f.Add(extended(0x1d, [3]int{0x100, acsID, 0})[:0x120])
	f.Add(extended(0, [3]int{0x100, 1, 0x148}, [3]int{0x148, 3, 0x100})[:0x180])
	f.Fuzz(func(t *testing.T, b []byte) {
		if acs := findACS(bytesOf(b)); acs.State != model.ACSPresent && acs.Control != 0 {
			t.Errorf("%+v", acs)
		}
	})
}

// TestBridges reads the bridges and the IOMMU group of a function. A bridge that is suspended is not read.
func TestBridges(t *testing.T) {
	tr := newTree(t)
	config := string(extended(0x1d, [3]int{0x100, acsID, 0}))
	const root, up, down = "pci0000:15/0000:15:01.0", "pci0000:15/0000:15:01.0/0000:16:00.0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0"
	tr.add(root, map[string]string{"vendor": "0x10de\n", "device": "0x22b1\n", "config": config})
	tr.add(up, map[string]string{"vendor": "0x15b3\n", "device": "0x197c\n", "config": string(extended(0))})
	tr.add(down, map[string]string{"config": config, "power/runtime_status": "suspended\n"})
	tr.add(down+"/0000:18:00.0", map[string]string{"class": "0x030200\n"})
	if err := os.Symlink("../../../kernel/iommu_groups/12", filepath.Join(tr.root, "devices", down, "0000:18:00.0/iommu_group")); err != nil {
		t.Fatal(err)
	}
	snap, err := tr.read()
	if err != nil || len(snap.PCI) != 1 {
		t.Fatalf("%+v %v", snap.PCI, err)
	}
	want := []model.PCIBridge{
		{Address: "0000:15:01.0", ID: "10de:22b1", ACS: model.ACS{State: model.ACSPresent, Control: 0x1d}},
		{Address: "0000:16:00.0", ID: "15b3:197c", ACS: model.ACS{State: model.ACSAbsent}},
		{Address: "0000:17:02.0"},
	}
	if d := cmp.Diff(want, snap.PCI[0].Bridges); d != "" {
		t.Error(d)
	}
	if snap.PCI[0].IOMMUGroup != "12" {
		t.Errorf("IOMMU group %q", snap.PCI[0].IOMMUGroup)
	}
}

// TestBridgeHangs has a bridge whose file config does not answer: Read returns nevertheless, now and later, and knows the other bridge. The
// FAKE is a FIFO, at which open hangs.
func TestBridgeHangs(t *testing.T) {
	tr := newTree(t)
	const up, down = "pci0000:15/0000:15:01.0", "pci0000:15/0000:15:01.0/0000:16:00.0"
	tr.add(up, map[string]string{"config": string(extended(0x1d, [3]int{0x100, acsID, 0}))})
	tr.add(down, map[string]string{"class": "0x060400\n"})
	tr.add(down+"/0000:17:00.0", map[string]string{"class": "0x030200\n"})
	fifo := filepath.Join(tr.root, "devices", down, "config")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	s := sourceOf(t, tr, 100*time.Millisecond)
	check := func(want model.ACS) bool {
		t.Helper()
		snap, err := s.Read(t.Context())
		if err != nil || len(snap.PCI) != 1 || len(snap.PCI[0].Bridges) != 2 {
			t.Fatalf("%+v %v", snap.PCI, err)
		}
		return snap.PCI[0].Bridges[1].ACS == want
	}
	for range 2 {
		if !check(model.ACS{}) {
			t.Fatal("a bridge that does not answer is known")
		}
	}
	hung, err := os.OpenFile(fifo, os.O_WRONLY, 0) // the read that hangs goes on, and fails
	if err != nil {
		t.Fatal(err)
	}
	hung.Close()
	if err := os.Remove(fifo); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fifo, extended(5, [3]int{0x100, acsID, 0}), 0o600); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !check(model.ACS{State: model.ACSPresent, Control: 5}); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a bridge that answers again is not known")
		}
	}
}
