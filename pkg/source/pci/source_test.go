// SPDX-License-Identifier: Apache-2.0

package pci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// tree is a FAKE sysfs: the files of drivers/pci/pci-sysfs.c and drivers/pci/pcie/aer.c of Linux 6.1.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree {
	t.Helper()
	tr := tree{t, t.TempDir()}
	if err := os.MkdirAll(filepath.Join(tr.root, "bus/pci/devices"), 0o755); err != nil {
		t.Fatal(err)
	}
	return tr
}

// add adds a function with its files. path is its directory below devices/.
func (tr tree) add(path string, files map[string]string) {
	tr.t.Helper()
	dir, name := filepath.Join(tr.root, "devices", path), filepath.Base(path)
	for file, content := range files {
		full := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			tr.t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			tr.t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join("../../../devices", path), filepath.Join(tr.root, "bus/pci/devices", name)); err != nil {
		tr.t.Fatal(err)
	}
}

// bind binds a function to a driver.
func (tr tree) bind(address, driver string) {
	tr.t.Helper()
	if err := os.Symlink("../../../bus/pci/drivers/"+driver, filepath.Join(tr.root, "bus/pci/devices", address, "driver")); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) read() (model.Snapshot, error) {
	tr.t.Helper()
	s, err := New(Options{Sysfs: tr.root, Wait: time.Minute})
	if err != nil {
		tr.t.Fatal(err)
	}
	defer s.Close()
	return s.Read(tr.t.Context())
}

func link(speed, maxSpeed, width, maxWidth string) map[string]string {
	return map[string]string{
		"class": "0x020700\n", "power/runtime_status": "active\n",
		"current_link_speed": speed + "\n", "max_link_speed": maxSpeed + "\n",
		"current_link_width": width + "\n", "max_link_width": maxWidth + "\n",
	}
}

func with(files map[string]string, more ...string) map[string]string {
	for i := 0; i < len(more); i += 2 {
		files[more[i]] = more[i+1]
	}
	return files
}

const (
	correctable = "RxErr 3\nBadTLP 0\nBadDLLP 7\nRollover 0\nTimeout 0\nNonFatalErr 0\nCorrIntErr 0\nHeaderOF 0\n"
	fatal       = "Undefined 0\nDLP 0\nSDES 1\nTLP 0\nFCP 0\nCmpltTO 0\nCmpltAbrt 0\nUnxCmplt 0\nRxOF 0\nMalfTLP 0\nECRC 0\n" +
		"UnsupReq 0\nACSViol 0\nUncorrIntErr 0\nBlockedTLP 0\nAtomicOpBlocked 0\nTLPBlockedErr 0\nPoisonTLPBlocked 0\n"
)

func TestRead(t *testing.T) {
	tr := newTree(t)
	// An HCA that trained at half the width, in a slot of a generation less than its own.
	tr.add("pci0000:15/0000:15:01.0", with(link("16.0 GT/s PCIe", "16.0 GT/s PCIe", "8", "16"), "class", "0x060400\n",
		"aer_dev_correctable", correctable+"TOTAL_ERR_COR 10\n", "aer_dev_fatal", fatal+"TOTAL_ERR_FATAL 1\n",
		"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 0\n", "config", string(port(0x19, 0, true))))
	tr.add("pci0000:15/0000:15:01.0/0000:16:00.0", with(link("16.0 GT/s PCIe", "32.0 GT/s PCIe", "8", "16"),
		"aer_dev_correctable", "RxErr 0\ndev_cor_errs_bit[3] 2\nTOTAL_ERR_COR 4\n", "numa_node", "1\n", "vendor", "0x15b3\n", "device", "0x1021\n"))
	// Its VF, which has the registers of no link.
	tr.add("pci0000:15/0000:15:01.0/0000:16:00.1", with(link("Unknown", "Unknown", "0", "0"), "physfn", ""))
	// A GPU that is suspended: the files must not be read. A processing accelerator behind a domain of a VMD.
	tr.add("pci0000:40/0000:41:00.0", with(link("2.5 GT/s PCIe", "32.0 GT/s PCIe", "16", "16"), "class", "0x030200\n",
		"power/runtime_status", "suspended\n"))
	tr.add("pci10000:00/10000:00:01.0", with(link("32.0 GT/s PCIe", "64.0 GT/s PCIe", "16", "16"), "class", "0x060400\n"))
	tr.add("pci10000:00/10000:00:01.0/10000:01:00.0", with(link("32.0 GT/s PCIe", "32.0 GT/s PCIe", "16", "16"), "class", "0x120000\n"))
	// The Data Direct function of an HCA, of a class of its own, on a platform whose host bridges are below other devices.
	tr.add("platform/NVDA0001:00/pci0002:00/0002:00:00.0/0002:03:00.0",
		map[string]string{"class": "0x088000\n", "vendor": "0x15b3\n", "device": "0x2100\n", "numa_node": "-1\n"})
	// A disk. A function that fell off the bus: all bits of its registers are set.
	tr.add("pci0000:50/0000:51:00.0", with(link("8.0 GT/s PCIe", "8.0 GT/s PCIe", "4", "4"), "class", "0x010802\n"))
	tr.add("pci0000:60/0000:61:00.0", link("Unknown", "Unknown", "63", "63"))

	tr.bind("0000:16:00.0", "mlx5_core")
	tr.bind("0002:03:00.0", "mlx5_ib") // the others have no driver

	snap, err := tr.read()
	if err != nil {
		t.Fatal(err)
	}
	want := []model.PCIFunction{
		{
			Address: "0000:16:00.0", ID: "15b3:1021", Class: "0x020700", Driver: "mlx5_core", NUMANode: "1",
			Path: []string{"pci0000:15", "0000:15:01.0", "0000:16:00.0"}, IOMMUGroup: "none",
			Bridges: []model.PCIBridge{{Address: "0000:15:01.0"}}, // a PCIe port without an extended configuration space
			VPD:     model.VPD{Missing: errNoVPD.Error()},
			PCIEnd: model.PCIEnd{
				Link: model.PCILink{Speed: 16e9, MaxSpeed: 32e9, Width: 8, MaxWidth: 16},
				AER:  []model.AERErrors{{Severity: "correctable", Total: 4, Types: []model.Counter{{Name: "dev_cor_errs_bit[3]", Value: 2}}}},
			},
			Upstream: model.PCIUpstream{
				Address: "0000:15:01.0",
				PCIEnd: model.PCIEnd{
					Link: model.PCILink{Speed: 16e9, MaxSpeed: 16e9, Width: 8, MaxWidth: 16},
					AER: []model.AERErrors{
						{Severity: "correctable", Total: 10, Types: []model.Counter{{Name: "RxErr", Value: 3}, {Name: "BadDLLP", Value: 7}}},
						{Severity: "nonfatal"},
						{Severity: "fatal", Total: 1, Types: []model.Counter{{Name: "SDES", Value: 1}}},
					},
				},
				SlotPower: model.Some(25),
			},
		},
		{Address: "0000:41:00.0", Class: "0x030200", Path: []string{"pci0000:40", "0000:41:00.0"}, IOMMUGroup: "none"},
		{Address: "0000:61:00.0", Class: "0x020700", Path: []string{"pci0000:60", "0000:61:00.0"}, IOMMUGroup: "none"},
		{
			Address: "0002:03:00.0", ID: "15b3:2100", Class: "0x088000", Driver: "mlx5_ib", Path: []string{"pci0002:00", "0002:00:00.0", "0002:03:00.0"},
			IOMMUGroup: "none", Bridges: []model.PCIBridge{{Address: "0002:00:00.0"}}, VPD: model.VPD{Missing: errNoVPD.Error()},
			Upstream: model.PCIUpstream{Address: "0002:00:00.0"},
		},
		{
			Address: "10000:01:00.0", Class: "0x120000", Path: []string{"pci10000:00", "10000:00:01.0", "10000:01:00.0"},
			IOMMUGroup: "none", Bridges: []model.PCIBridge{{Address: "10000:00:01.0"}},
			PCIEnd: model.PCIEnd{Link: model.PCILink{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}},
			Upstream: model.PCIUpstream{
				Address: "10000:00:01.0", PCIEnd: model.PCIEnd{Link: model.PCILink{Speed: 32e9, MaxSpeed: 64e9, Width: 16, MaxWidth: 16}},
			},
		},
	}
	if diff := cmp.Diff(want, snap.PCI); diff != "" {
		t.Fatal(diff)
	}
	if !snap.PCI[3].IsDataDirect() || snap.PCI[0].IsDataDirect() {
		t.Error("only the function of class 0x0880 is Data Direct")
	}
	if speed, width := snap.PCI[0].Possible(); speed != 16e9 || width != 16 {
		t.Errorf("possible: %v transfers per second, %d lanes; want those of the slot, 16e9 and 16", speed, width)
	}
	errs := []model.Counter{{Name: "correctable", Value: 14}, {Name: "nonfatal"}, {Name: "fatal", Value: 1}}
	if diff := cmp.Diff(errs, snap.PCI[0].Errors(nil)); diff != "" {
		t.Errorf("errors of both ends:\n%s", diff)
	}
}

// TestManyFunctions: of more functions than a node has, the first are read, and the error says so.
func TestManyFunctions(t *testing.T) {
	tr := newTree(t)
	for i := range maxFunctions + 1 {
		tr.add(fmt.Sprintf("pci0000:50/0000:%02x:%02x.0", i/32, i%32), map[string]string{"class": "0x020700\n"})
	}
	if got, err := tr.read(); len(got.PCI) != maxFunctions || err == nil {
		t.Errorf("%d functions, %v", len(got.PCI), err)
	}
}

func TestAbsent(t *testing.T) {
	tr := newTree(t)
	tr.add("pci0000:50/0000:51:00.0", with(link("8.0 GT/s PCIe", "8.0 GT/s PCIe", "4", "4"), "class", "0x010802\n"))
	if _, err := tr.read(); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("only a disk: %v, want absent", err)
	}
	if err := os.RemoveAll(filepath.Join(tr.root, "bus")); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.read(); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("no PCI bus: %v, want absent", err)
	}
}
