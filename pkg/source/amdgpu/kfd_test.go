// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

// TestTopology uses the fake tree of processes_test.go.
func TestTopology(t *testing.T) {
	n := newFakeProcs(t)
	k := newKFD(n.sys)
	want := func(nodes ...kfdNode) {
		t.Helper()
		got, err := k.topology()
		if err != nil {
			t.Fatal(err)
		}
		byID := map[uint32]kfdNode{}
		for _, node := range got {
			byID[node.gpuID] = node
		}
		wanted := map[uint32]kfdNode{}
		for _, node := range nodes {
			wanted[node.gpuID] = node
		}
		if !reflect.DeepEqual(byID, wanted) || len(got) != len(nodes) {
			t.Errorf("got  %+v\nwant %+v", byID, wanted)
		}
	}
	n.gpu(1, 51001, 0xc1<<8|0x1f<<3|7, 128)
	first := kfdNode{
		gpuID: 51001, renderMinor: 128, address: "0000:c1:1f.7", uniqueID: 8000123456789012345, units: 304, sdma: 16,
	}
	want(first)

	// The topology is read again only when it has changed.
	n.write(n.kfd("topology/nodes/2/gpu_id"), "61002\n")
	n.write(n.kfd("topology/nodes/2/properties"), "location_id 49664\ndomain 65536\nsimd_count 8\ndrm_render_minor 0\nsimd_per_cu 0\n"+
		"num_sdma_engines 18446744073709551615\nunique_id -3\nnonsense\n\n")
	want(first)
	n.write(n.kfd("topology/generation_id"), "3\n")
	second := kfdNode{gpuID: 61002, renderMinor: noMinor, address: "10000:c2:00.0", sdma: maxEngines}
	want(first, second)

	// An unreadable node is skipped until it becomes readable.
	n.write(n.kfd("topology/generation_id"), "4\n")
	properties := n.kfd("topology/nodes/1/properties")
	if err := os.Rename(properties, properties+"x"); err != nil {
		t.Fatal(err)
	}
	if got, err := k.topology(); err == nil || len(got) != 1 || got[0].gpuID != 61002 {
		t.Errorf("without properties: %+v, %v", got, err)
	}
	if err := os.Rename(properties+"x", properties); err != nil {
		t.Fatal(err)
	}
	want(first, second)

	if err := os.RemoveAll(filepath.Join(n.sys, "class/kfd")); err != nil {
		t.Fatal(err)
	}
	want()
}
