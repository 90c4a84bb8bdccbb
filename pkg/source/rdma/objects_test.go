// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestObjectsOfProcesses: objects get the current cgroup of their process, or 0 without a cgroup. Each process is
// looked up once, also with objects on several devices.
func TestObjectsOfProcesses(t *testing.T) {
	objects := []model.Object{
		{Device: "mlx5_1", Type: model.MR, ID: 3, PID: 100, Memory: model.UnknownMemory, Bytes: 10},
		{Device: "mlx5_0", Type: model.QP, ID: 1, PID: 100},
		{Device: "mlx5_0", Type: model.MR, ID: 1, PID: 100, Memory: model.UnknownMemory, Bytes: 4096},
		{Device: "mlx5_0", Type: model.QP, ID: 2, PID: 100},
		{Device: "mlx5_0", Type: model.MR, ID: 2, PID: 100, Memory: model.UnknownMemory, Bytes: 100},
		{Device: "mlx5_0", Type: model.MR, ID: 4, PID: 100, Memory: model.ImplicitODPMemory},
		{Device: "mlx5_0", Type: model.QP, ID: 4, PID: 666},
		{Device: "mlx5_1", Type: model.QP, ID: 4, PID: 666},
		{Device: "mlx5_0", Type: model.QP, ID: 5, PID: 200},
		{Device: "mlx5_0", Type: model.PD, ID: 6},
	}
	want := []model.Holding{
		{Device: "mlx5_0", PID: 100, Cgroup: 42, Type: model.MR, Memory: model.ImplicitODPMemory, Count: 1},
		{Device: "mlx5_0", PID: 100, Cgroup: 42, Type: model.MR, Memory: model.UnknownMemory, Count: 2, Bytes: 4196},
		{Device: "mlx5_0", PID: 100, Cgroup: 42, Type: model.QP, Count: 2},
		{Device: "mlx5_0", PID: 200, Cgroup: 43, Type: model.QP, Count: 1},
		{Device: "mlx5_0", PID: 666, Type: model.QP, Count: 1},
		{Device: "mlx5_1", PID: 100, Cgroup: 42, Type: model.MR, Memory: model.UnknownMemory, Count: 1, Bytes: 10},
		{Device: "mlx5_1", PID: 666, Type: model.QP, Count: 1},
	}
	looked := map[int]int{}
	cgroupOf := func(pid int) (model.CgroupID, error) {
		looked[pid]++
		if pid == 666 { // an id returned with an error is ignored
			return 99, unix.ESRCH
		}
		return map[int]model.CgroupID{100: 42, 200: 43}[pid], nil
	}
	if d := cmp.Diff(want, holdings(objects, cgroupOf)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d := cmp.Diff(map[int]int{100: 1, 200: 1, 666: 1}, looked); d != "" {
		t.Errorf("processes looked up (-want +got)\n%s", d)
	}
	for i := range want {
		want[i].Cgroup = 0
	}
	if d := cmp.Diff(want, holdings(objects, nil)); d != "" {
		t.Errorf("without cgroups (-want +got)\n%s", d)
	}
	if all := holdings([]model.Object{}, cgroupOf); all == nil || len(all) != 0 {
		t.Errorf("without objects: %v", all)
	}
}
