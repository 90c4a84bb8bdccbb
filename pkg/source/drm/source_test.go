// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// tree is a FAKE sysfs: the links of class/drm like in a 6.1 kernel (seen in the guest with
// virtio-gpu). tests/suites/e2e/dri_test.go compares the real ones with the driver's own answers.
type tree struct {
	t   *testing.T
	dir string
}

func newTree(t *testing.T) tree {
	t.Helper()
	return tree{t, t.TempDir()}
}

func (f tree) link(target, name string) {
	f.t.Helper()
	name = filepath.Join(f.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(target, name); err != nil {
		f.t.Fatal(err)
	}
}

// add adds the device's directory with its nodes.
func (f tree) add(device, driver string, nodes ...string) {
	f.t.Helper()
	for _, n := range nodes {
		if err := os.MkdirAll(filepath.Join(f.dir, "devices", device, "drm", n), 0o755); err != nil {
			f.t.Fatal(err)
		}
		up := strings.Repeat("../", strings.Count(device, "/")+1)
		f.link(filepath.Join("../../..", filepath.Base(device)), filepath.Join("devices", device, "drm", n, "device"))
		f.link(filepath.Join("../../devices", device, "drm", n), filepath.Join("class/drm", n))
		if driver != "" && n == nodes[0] {
			f.link(filepath.Join(up, "bus/pci/drivers", driver), filepath.Join("devices", device, "driver"))
		}
	}
}

func (f tree) remove(device string, nodes ...string) {
	f.t.Helper()
	for _, n := range nodes {
		if err := os.Remove(filepath.Join(f.dir, "class/drm", n)); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(f.dir, "devices", device)); err != nil {
		f.t.Fatal(err)
	}
}

func (f tree) source() *Source {
	f.t.Helper()
	s, err := New(Options{Sysfs: f.dir})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func wantDevices(t *testing.T, s *Source, want ...model.DRIDevice) {
	t.Helper()
	got, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.DRI, want) {
		t.Errorf("got  %+v\nwant %+v", got.DRI, want)
	}
}

func TestDevices(t *testing.T) {
	f := newTree(t)
	f.add("pci0000:c0/0000:c0:01.1/0000:c1:00.0", "amdgpu", "card10", "renderD129")
	f.add("pci0000:00/0000:00:01.0", "virtio-pci", "card0", "renderD128")
	f.add("pci0000:00/0000:00:02.0/virtio3", "virtio_gpu", "card1")                              // newer kernels: below the virtio device
	f.add("platform/amdgpu_xcp_0", "", "card11", "renderD130")                                   // a partition
	f.add("pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0", "udl", "card2")                            // a display on USB
	f.link("../../devices/pci0000:00/0000:00:01.0/drm/card0/card0-DP-1", "class/drm/card0-DP-1") // a connector
	if err := os.WriteFile(filepath.Join(f.dir, "class/drm/version"), []byte("drm 1.1.0 20060810\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantDevices(
		t, f.source(),
		model.DRIDevice{Card: "/dev/dri/card0", Render: "/dev/dri/renderD128", PCIAddress: "0000:00:01.0", Driver: "virtio-pci"},
		model.DRIDevice{Card: "/dev/dri/card1", CardID: 1, PCIAddress: "0000:00:02.0", Driver: "virtio_gpu"},
		model.DRIDevice{Card: "/dev/dri/card2", CardID: 2, Driver: "udl"},
		model.DRIDevice{
			Card: "/dev/dri/card10", CardID: 10, Render: "/dev/dri/renderD129", PCIAddress: "0000:c1:00.0", Driver: "amdgpu",
		},
		model.DRIDevice{Card: "/dev/dri/card11", CardID: 11, Render: "/dev/dri/renderD130"},
	)
}

func TestHotPlug(t *testing.T) {
	f := newTree(t)
	s := f.source()
	for _, made := range []bool{false, true} { // no DRM at all, and a class without cards, as after modprobe -r
		if made {
			if err := os.MkdirAll(filepath.Join(f.dir, "class/drm"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) || got.DRI != nil {
			t.Errorf("without a card: %+v, %v; want model.ErrAbsent", got.DRI, err)
		}
	}

	f.add("pci0000:00/0000:00:01.0", "amdgpu", "card0", "renderD128")
	first := model.DRIDevice{Card: "/dev/dri/card0", Render: "/dev/dri/renderD128", PCIAddress: "0000:00:01.0", Driver: "amdgpu"}
	wantDevices(t, s, first)
	f.add("pci0000:00/0000:00:02.0", "amdgpu", "card1")
	second := model.DRIDevice{Card: "/dev/dri/card1", CardID: 1, PCIAddress: "0000:00:02.0", Driver: "amdgpu"}
	wantDevices(t, s, first, second)

	// The number is reused by another device: the names in the directory are the same as
	// before.
	f.remove("pci0000:00/0000:00:01.0", "card0", "renderD128")
	f.add("pci0000:00/0000:00:03.0", "nouveau", "card0", "renderD128")
	first.PCIAddress, first.Driver = "0000:00:03.0", "nouveau"
	wantDevices(t, s, first, second)

	f.remove("pci0000:00/0000:00:02.0", "card1")
	wantDevices(t, s, first)
}

// TestUnchanged checks that links are not read again while the cards are the same.
func TestUnchanged(t *testing.T) {
	f := newTree(t)
	f.add("pci0000:00/0000:00:01.0", "amdgpu", "card0")
	s := f.source()
	want := model.DRIDevice{Card: "/dev/dri/card0", PCIAddress: "0000:00:01.0", Driver: "amdgpu"}
	wantDevices(t, s, want)
	if err := os.Remove(filepath.Join(f.dir, "devices/pci0000:00/0000:00:01.0/driver")); err != nil {
		t.Fatal(err)
	}
	wantDevices(t, s, want)
	got, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got.DRI[0].Driver = "changed by the reader"
	wantDevices(t, s, want)
}
