// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"testing"
)

// TestVendorRows checks assumptions about the rows.
func TestVendorRows(t *testing.T) {
	bare := 0
	seen := map[string]Vendor{} // names that must be unique
	for _, v := range GPUVendors {
		if v.Vendor.Row().Vendor != v.Vendor {
			t.Errorf("%s has two rows", v.Vendor)
		}
		if v.BareNames {
			bare++
		} else if v.DockerDriver != "" && len(v.CDIKinds) == 0 {
			t.Errorf("%s: the names that Docker is asked for have no kind", v.Vendor)
		}
		if (v.CharDriver == "") != (v.DeviceClass == "") {
			t.Errorf("%s: driver %q, class %q", v.Vendor, v.CharDriver, v.DeviceClass)
		}
		unique := append([]string{v.Source, v.DRADriver, v.DockerDriver, v.NodePrefix}, v.CDIKinds...)
		for _, name := range unique {
			if other, taken := seen[name]; taken && name != "" && other != v.Vendor {
				t.Errorf("%q is of %s and of %s", name, other, v.Vendor)
			}
			seen[name] = v.Vendor
		}
	}
	if bare != 1 {
		t.Errorf("%d vendors have bare names, want 1", bare)
	}
	if unknown := Vendor("other").Row(); unknown.Source != "" || unknown.SharedAddress {
		t.Errorf("a vendor without a row: %+v", unknown)
	}
}

func TestOwns(t *testing.T) {
	for resource, want := range map[string]Vendor{
		"nvidia.com/gpu": NVIDIA, "nvidia.com/gpu.shared": NVIDIA, "nvidia.com/mig-1g.10gb": NVIDIA, "nvidia.com/hostdev": "",
		"amd.com/gpu": AMD, "amd.com/cpx_nps4": AMD, "amd.com/cpx": "", "amd.com/cpx_nps": "",
		"gpu.intel.com/i915": Intel, "gpu.intel.com/xe": Intel, "gpu.intel.com/i915_monitoring": "",
		"example.com/cpx_nps4": "", "rdma/hca": "", "": "",
	} {
		var got Vendor
		if v := FindGPUVendor(func(v *GPUVendor) bool { return v.Owns(resource) }); v != nil {
			got = v.Vendor
		}
		if got != want {
			t.Errorf("%s: %q, want %q", resource, got, want)
		}
	}
}

// TestNVIDIANodes has the names and minor numbers that the driver and nvidia-modprobe give device nodes.
func TestNVIDIANodes(t *testing.T) {
	for _, c := range []struct {
		driver string
		minor  uint32
		want   string
	}{
		{"nvidia", 0, "nvidia0"},
		{"nvidia-frontend", 253, "nvidia253"},
		{"nvidia", 254, "nvidia-modeset"},
		{"nvidia", 255, "nvidiactl"},
		{"nvidia-uvm", 0, "nvidia-uvm"},
		{"nvidia-uvm", 1, "nvidia-uvm-tools"},
		{"nvidia-caps", 1, "nvidia-cap1"},
		{"nvidia-caps", 255, "nvidia-cap255"},
		{"nvidia-nvswitch", 3, "nvidia-nvswitch3"},
		{"nvidia-nvswitch", 255, "nvidia-nvswitchctl"},
		{"other", 254, "other254"},
		{"other", 255, "other255"},
	} {
		if got := nvidiaNode(c.driver, c.minor); got != c.want {
			t.Errorf("%s %d: %s, want %s", c.driver, c.minor, got, c.want)
		}
	}
	for _, c := range []struct {
		driver string
		gpus   int
		want   []uint32
	}{
		{"nvidia", 2, []uint32{0, 1, 254, 255}},
		{"nvidiactl", 0, []uint32{254, 255}},
		{"nvidia-uvm", 2, []uint32{0, 1}},
		{"nvidia-caps", 2, nil},
	} {
		if got := nvidiaMinors(c.driver, c.gpus); !slices.Equal(got, c.want) {
			t.Errorf("%s, %d GPUs: %v, want %v", c.driver, c.gpus, got, c.want)
		}
	}
	if got := nvidiaMinors("nvidia", 300); len(got) != 256 || got[253] != 253 {
		t.Errorf("300 GPUs: %v", got)
	}
}
