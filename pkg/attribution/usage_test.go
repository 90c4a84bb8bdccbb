// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

func workloads(a Attribution, owners ...int) []string {
	names := make([]string, len(owners))
	for i, n := range owners {
		names[i] = a.Owners[n].Workload
	}
	return names
}

func TestUsageShares(t *testing.T) {
	n := model.Some
	a := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{
		Usages: []model.Usage{
			{Cgroup: 99, CPU: model.CPUUsage{Total: n(100)}}, // unattributed
			{Cgroup: 20, CPU: model.CPUUsage{Total: n(100)}}, // without a name
			{Cgroup: 1, CPU: model.CPUUsage{Total: n(5)}, Memory: model.MemoryUsage{Peak: n(3)}},
			{
				Cgroup: 11,
				CPU:    model.CPUUsage{Total: n(1), Period: n(100), Waiting: n(4)},
				Memory: model.MemoryUsage{Usage: n(10), Limit: n(100), Peak: n(50)},
				IO:     []model.DeviceIO{{Device: "/dev/sda", Major: 8, Reads: n(1)}},
			},
			{
				Cgroup: 12,
				CPU:    model.CPUUsage{Total: n(2), Period: n(200), Waiting: n(3), Stalled: n(1)},
				Memory: model.MemoryUsage{Usage: n(20), Limit: n(math.Inf(1)), Swap: n(7), Peak: n(60)},
				IO: []model.DeviceIO{
					{Device: "/dev/sda", Major: 8, Reads: n(2), Writes: n(3)},
					{Device: "/dev/sdb", Major: 8, Minor: 16, Reads: n(9)},
				},
			},
		},
	}})
	if len(a.Usages) != 2 {
		t.Fatalf("%d shares", len(a.Usages))
	}
	if d := cmp.Diff([]string{train.Workload, job.Workload}, workloads(a, a.Usages[0].Owner, a.Usages[1].Owner)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := a.Usages[0]; got.CPU.Total != n(5) || got.Memory.Peak != n(3) || got.CPU.User.Known {
		t.Errorf("%+v", *got.Usage)
	}
	want := model.Usage{
		Cgroup: 11,
		CPU:    model.CPUUsage{Total: n(3), Period: n(100), Waiting: n(4), Stalled: n(1)},
		Memory: model.MemoryUsage{Usage: n(30), Limit: n(math.Inf(1)), Swap: n(7)},
		IO: []model.DeviceIO{
			{Device: "/dev/sda", Major: 8, Reads: n(3), Writes: n(3)},
			{Device: "/dev/sdb", Major: 8, Minor: 16, Reads: n(9)},
		},
	}
	if d := cmp.Diff(want, *a.Usages[1].Usage); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestUsageOfFacts checks that adding up does not change the shared facts.
func TestUsageOfFacts(t *testing.T) {
	usages := []model.Usage{
		{Cgroup: 11, Threads: model.Some(1), IO: []model.DeviceIO{{Major: 8, Reads: model.Some(1)}}},
		{Cgroup: 12, Threads: model.Some(2), IO: []model.DeviceIO{{Major: 8, Reads: model.Some(1)}}},
	}
	f := facts{Entities: entities(), Snapshot: model.Snapshot{Usages: usages}}
	first, second := attribute(f), attribute(f)
	if d := cmp.Diff(first.Usages, second.Usages); d != "" {
		t.Errorf("(-first +second)\n%s", d)
	}
	if first.Usages[0].Threads != model.Some(3) || usages[0].Threads != model.Some(1) || usages[0].IO[0].Reads != model.Some(1) {
		t.Errorf("%v, facts %v", first.Usages[0].Threads, usages[0])
	}
}

// TestUsageCreated: an owner is as old as its oldest cgroup whose age is known.
func TestUsageCreated(t *testing.T) {
	early, late := time.Unix(100, 0), time.Unix(200, 0)
	for _, c := range [][3]time.Time{{early, late, early}, {late, early, early}, {late, {}, late}, {{}, late, late}, {{}, {}, {}}} {
		if got := addUsages(model.Usage{Created: c[0]}, &model.Usage{Created: c[1]}); !got.Created.Equal(c[2]) {
			t.Errorf("%v and %v: %v", c[0], c[1], got.Created)
		}
	}
}

func TestNothingCollected(t *testing.T) {
	if a := attribute(facts{}); a.Usages != nil || a.Networks != nil {
		t.Errorf("%v %v", a.Usages, a.Networks)
	}
	a := attribute(facts{Snapshot: model.Snapshot{Usages: []model.Usage{}, Namespaces: []model.Namespace{}}})
	if a.Usages == nil || a.Networks == nil {
		t.Errorf("%v %v", a.Usages, a.Networks)
	}
}

func TestNetworkShares(t *testing.T) {
	e := entities()
	e[2] = identitytest.Entity{ // the sandbox of the same pod
		Workload: "ml/train-0", Namespace: "ml", Pod: "train-0", ContainerID: "s1", PodUID: "u1", Runtime: "containerd",
	}
	e[3] = identitytest.Entity{Workload: "pod:u3/abc", ContainerID: "abc", PodUID: "u3"} // without a name
	e[4] = identitytest.Entity{Workload: "docker:d1", ContainerID: "d1", Runtime: "docker", Called: "web"}
	e[5] = identitytest.Entity{Workload: "ml/host/main", Namespace: "ml", Pod: "host", Container: "main", ContainerID: "h1"}
	eth := func(bytes uint64) []model.Interface { return []model.Interface{{Name: "eth0", ReceiveBytes: bytes}} }
	a := attribute(facts{Entities: e, Snapshot: model.Snapshot{Namespaces: []model.Namespace{
		{Inode: 1, Cgroup: 5, Host: true, Interfaces: eth(1000)}, // the node's
		{Inode: 2, Cgroup: 2, Interfaces: eth(1)},
		{Inode: 3, Cgroup: 1, Interfaces: eth(100)}, // a container outside its pod's namespace
		{Inode: 4, Cgroup: 3, Interfaces: eth(2)},
		{Inode: 5, Cgroup: 4, Interfaces: eth(3)},
		{Inode: 6, Cgroup: 11, Interfaces: eth(4)},
		{Inode: 7, Cgroup: 99, Interfaces: eth(100)}, // unattributed
	}}})
	hidden := attribute(facts{Entities: e, Snapshot: model.Snapshot{Namespaces: []model.Namespace{{Inode: 8, Cgroup: 3}}}})
	if len(hidden.Owners) != 1 || len(hidden.Networks) != 0 {
		t.Errorf("a namespace without interfaces is shown: %v", hidden.Owners)
	}
	got := map[identity.Owner]uint64{}
	for _, s := range a.Networks {
		got[a.Owners[s.Owner]] += s.Interfaces[0].ReceiveBytes
	}
	want := map[identity.Owner]uint64{
		{Workload: "ml/train-0", Namespace: "ml", Pod: "train-0"}: 1,
		{Workload: "pod:u3"}:                        2,
		{Workload: "docker:web", ContainerID: "d1"}: 3,
		job: 4,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
