// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestIPoIB: a device has the interfaces of its function, and as many of their children as the kernel has protection
// domains of IPoIB. The files are a FAKE in the form of a real sysfs.
func TestIPoIB(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	function := "class/infiniband/mlx5_0/device/net/"
	tr.Interface(function+"ib0", "32", 5, 5, 100)
	tr.Interface(function+"eth3", "1", 6, 6, 7) // a representor
	tr.Interface("class/net/ib0", "32", 5, 5, 100)
	tr.Interface("class/net/ib0.8001", "32", 9, 5, 3)
	tr.Interface("class/net/ib7.8001", "32", 12, 11, 4) // of another device
	tr.Interface("class/net/veth5", "1", 13, 5, 4)
	tr.Interface("class/net/ib9", "32", 5000, 5000, 4)
	path := tr.Path("class/infiniband/mlx5_0")
	d := NewDevice("mlx5_0", path, path+"/device", new(atomic.Int64))
	read := func(domains uint64) []model.IPoIB {
		d.Reader.Buffer = make([]byte, BufferSize)
		return d.ReadIPoIB([]model.Domains{{Count: 3}, {Module: model.IPoIBModule, Count: domains}})
	}
	parent, child := model.IPoIB{Name: "ib0", Packets: 300}, model.IPoIB{Name: "ib0.8001", Packets: 9}
	for i, step := range []struct {
		domains uint64
		want    []model.IPoIB
	}{
		{0, nil},
		{1, []model.IPoIB{parent}},
		{2, []model.IPoIB{parent, child}},
		{3, []model.IPoIB{parent, child}}, // one interface is in another network namespace
	} {
		if diff := cmp.Diff(step.want, read(step.domains)); diff != "" {
			t.Errorf("step %d (-want +got)\n%s", i, diff)
		}
	}

	// Later readings read only new interfaces.
	tr.Remove("class/net/ib9/type")
	tr.Interface("class/net/ib0.8002", "32", 10, 5, 1)
	tr.Interface("class/net/ib0.8001", "32", 9, 5, 30)
	child.Packets = 90
	want := []model.IPoIB{parent, child, {Name: "ib0.8002", Packets: 3}}
	calls := d.Reader.Calls
	if diff := cmp.Diff(want, read(3)); diff != "" {
		t.Errorf("a new child (-want +got)\n%s", diff)
	}
	first := d.Reader.Calls - calls
	calls = d.Reader.Calls
	if diff := cmp.Diff(want, read(3)); diff != "" || d.Reader.Calls-calls >= first {
		t.Errorf("again: %d system calls, before %d (-want +got)\n%s", d.Reader.Calls-calls, first, diff)
	}
}

// TestManyIPoIB: of the IPoIB interfaces of a device, maxIPoIB are read, whether of the function or their children.
func TestManyIPoIB(t *testing.T) {
	for _, ofFunction := range []int{maxIPoIB + 10, 1} {
		tr := hca.NewTree(t)
		tr.HCA(0, 1)
		for i := range ofFunction {
			tr.Interface(fmt.Sprint("class/infiniband/mlx5_0/device/net/ib", i), "32", 1000+i, 1000+i, 1)
		}
		for i := range maxIPoIB + 10 {
			tr.Interface(fmt.Sprint("class/net/child", i), "32", 5000+i, 1000, 1)
		}
		path := tr.Path("class/infiniband/mlx5_0")
		d := NewDevice("mlx5_0", path, path+"/device", new(atomic.Int64))
		d.Reader.Buffer = make([]byte, BufferSize)
		if n := len(d.ReadIPoIB([]model.Domains{{Module: model.IPoIBModule, Count: 1000}})); n != maxIPoIB {
			t.Errorf("%d of the function: %d interfaces, want %d", ofFunction, n, maxIPoIB)
		}
	}
}
