// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// faultNode is a node with a GPU with faults, refresh by refresh.
type faultNode struct {
	t        *testing.T
	entities map[model.CgroupID]identitytest.Entity
	owners   *identity.Table
	counters Counters
	facts    model.Snapshot
	count    uint64 // of the GPU
	owned    map[model.CgroupID]uint64
	fell     map[string]uint64
}

var memoryFault = model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:c1:00.0", Code: "31"}

func (n *faultNode) refresh() Attribution {
	n.t.Helper()
	s := n.facts
	s.Faults = []model.Series[model.FaultKey, model.Count]{}
	for id, v := range n.owned {
		s.Faults = append(s.Faults, model.Series[model.FaultKey, model.Count]{Cgroup: id, Key: memoryFault, Value: model.Count(v)})
	}
	s.FaultTotals = []model.FaultTotal{{FaultKey: memoryFault, Count: n.count}}
	s.Merge(identitytest.Facts(n.entities))
	merges := n.owners.Resolve(&s, s.CgroupIDs())
	n.counters.Credit(&s, n.owners, merges)
	a := Attribute(&s, n.owners, &n.counters, func(*Attribution) { n.counters.Expire(n.owners.Expire(nil)) })
	var sum uint64
	for _, f := range a.FaultShares {
		sum += f.Count
		workload := a.Owners[f.Owner].Workload
		if f.Count < n.fell[workload] {
			n.t.Errorf("the faults of %q fell from %d to %d", workload, n.fell[workload], f.Count)
		}
		n.fell[workload] = f.Count
	}
	if sum > n.count {
		n.t.Errorf("the shares add up to %d of %d", sum, n.count)
	}
	return a
}

func (n *faultNode) shares(a *Attribution) map[string]uint64 {
	shares := map[string]uint64{}
	for _, f := range a.FaultShares {
		shares[a.Owners[f.Owner].Workload] += f.Count
	}
	return shares
}

// TestFaultShares: the shares add up to the GPU, and no share falls when an owner ends or returns.
func TestFaultShares(t *testing.T) {
	n := &faultNode{
		t: t, entities: map[model.CgroupID]identitytest.Entity{1: {Workload: "unit:a"}, 2: {Workload: "unit:b"}}, owners: &identity.Table{},
		count: 10, owned: map[model.CgroupID]uint64{1: 3, 2: 2, 9: 4}, fell: map[string]uint64{},
		facts: model.Snapshot{
			GPUs:         []model.GPU{{ID: "4", UUID: "GPU-4", PCIAddress: "0000:C1:00.0"}, {ID: "4:0", UUID: "MIG-1", Parent: "GPU-4", PCIAddress: "0000:C1:00.0"}},
			HCAs:         []model.HCA{{Name: "mlx5_0", PCIAddress: "0000:18:00.0"}},
			FaultHistory: []model.Fault{{ID: 1, FaultKey: memoryFault, Cgroup: 1}, {ID: 2, FaultKey: memoryFault}},
		},
	}
	a := n.refresh()
	if d := cmp.Diff(map[string]uint64{"": 5, "unit:a": 3, "unit:b": 2}, n.shares(&a)); d != "" {
		t.Error(d)
	}
	device := FaultDevice{GPU: "4", UUID: "GPU-4"}
	if a.FaultTotals[0].FaultDevice != device || a.FaultShares[0].FaultDevice != device {
		t.Errorf("%+v", a.FaultTotals)
	}

	// The GPU is no longer listed and keeps its names. A workload ends.
	n.facts.GPUs = nil
	n.facts.FaultHistory[0].Cgroup = 0
	delete(n.owned, 1)
	delete(n.entities, 1)
	n.counters.Forget([]model.CgroupID{1})
	n.owners.Forget([]model.CgroupID{1})
	n.count++
	a = n.refresh()
	if d := cmp.Diff(map[string]uint64{"": 6, "unit:b": 2}, n.shares(&a)); d != "" || a.FaultTotals[0].FaultDevice != device {
		t.Errorf("%s%+v", d, a.FaultTotals)
	}
	if f := a.FaultHistory; f[0].Owner.Workload != "unit:a" || f[1].Owner.Workload != "" || f[0].FaultDevice != device {
		t.Errorf("history: %+v", f)
	}

	// The workload returns before it has expired, and has its faults again.
	n.entities[3] = identitytest.Entity{Workload: "unit:a"}
	n.owned[3] = 1
	n.count++
	a = n.refresh()
	if d := cmp.Diff(map[string]uint64{"": 6, "unit:a": 4, "unit:b": 2}, n.shares(&a)); d != "" {
		t.Error(d)
	}

	// The workload ends for good.
	delete(n.owned, 3)
	delete(n.entities, 3)
	n.counters.Forget([]model.CgroupID{3})
	n.owners.Forget([]model.CgroupID{3})
	for range 15 {
		a = n.refresh()
	}
	if d := cmp.Diff(map[string]uint64{"": 10, "unit:b": 2}, n.shares(&a)); d != "" {
		t.Error(d)
	}
	n.facts.FaultHistory = slices.Clone(n.facts.FaultHistory[1:])
	n.refresh()
	if len(n.counters.faults.owners) > 0 {
		t.Errorf("owners of faults that are not in the history: %v", n.counters.faults.owners)
	}
}

// TestFaultDevices: faults without a listed device have the log's UUID, and HCAs have names but no shares.
func TestFaultDevices(t *testing.T) {
	var counters Counters
	var owners identity.Table
	key := func(driver model.FaultDriver, address string) model.FaultKey {
		return model.FaultKey{Driver: driver, PCIAddress: address, Code: "1"}
	}
	s := model.Snapshot{
		Faults: []model.Series[model.FaultKey, model.Count]{},
		HCAs:   []model.HCA{{Name: "mlx5_0", PCIAddress: "0000:18:00.0"}, {Name: "mlx5_bond", PCIAddress: "0000:18:00.0"}},
		FaultTotals: []model.FaultTotal{
			{FaultKey: key(model.DriverMLX5, "0000:18:00.0"), Count: 1},
			{FaultKey: key(model.DriverMLX5, "0000:19:00.0"), Count: 1},
			{FaultKey: key(model.DriverNVIDIA, "0000:c1:00.0"), Count: 1},
			{FaultKey: key(model.DriverNVIDIA, "0000:c2:00.0")},
		},
		FaultHistory: []model.Fault{{ID: 1, UUID: "GPU-log", FaultKey: key(model.DriverNVIDIA, "0000:c1:00.0")}},
	}
	for range maxFaultDevices + 10 {
		s.HCAs = append(s.HCAs, model.HCA{Name: "x", PCIAddress: fmt.Sprintf("%04x:00:00.0", len(s.HCAs)+1)})
	}
	counters.Credit(&s, &owners, nil)
	a := Attribute(&s, &owners, &counters, func(*Attribution) {})
	var got []string
	for _, f := range a.FaultTotals {
		got = append(got, f.HCA+f.UUID)
	}
	if d := cmp.Diff([]string{"mlx5_0", "", "GPU-log", ""}, got); d != "" {
		t.Error(d)
	}
	if len(a.FaultShares) != 1 || a.FaultShares[0].UUID != "GPU-log" || a.FaultHistory[0].FaultDevice.UUID != "GPU-log" {
		t.Errorf("%+v", a.FaultShares)
	}
	if n := len(counters.faults.devices); n > maxFaultDevices {
		t.Errorf("%d devices are kept", n)
	}
}

// TestFaultsBegan: an owner's faults began at the refresh before, unless the device's labels came later.
func TestFaultsBegan(t *testing.T) {
	gpu := model.GPU{ID: "4", UUID: "GPU-4", PCIAddress: "0000:C1:00.0"}
	for _, c := range []struct {
		name string
		gpus [3][]model.GPU // of each refresh
		want int64
	}{
		{"GPU known before", [3][]model.GPU{{gpu}, {gpu}, {gpu}}, 1},
		{"GPU known with the fault", [3][]model.GPU{nil, {gpu}, {gpu}}, 1},
		{"GPU known later", [3][]model.GPU{nil, nil, {gpu}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := &faultNode{
				t: t, entities: map[model.CgroupID]identitytest.Entity{1: {Workload: "unit:a"}}, owners: &identity.Table{},
				owned: map[model.CgroupID]uint64{}, fell: map[string]uint64{},
			}
			for i, gpus := range c.gpus {
				n.facts.GPUs, n.facts.Counted = gpus, time.Unix(int64(i+1), 0)
				if i == 1 {
					n.count, n.owned[1] = 2, 2
				}
				for _, f := range slices.DeleteFunc(n.refresh().FaultShares, func(f FaultShare) bool { return f.Owner == unattributed }) {
					if i == 2 && f.Since.IsZero() != (c.want == 0) || c.want != 0 && f.Since.Unix() != c.want {
						t.Errorf("refresh %d: began at %v, want %d", i, f.Since, c.want)
					}
				}
			}
		})
	}
}
