// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

var (
	train = Owner{Workload: "ml/train-0/main", Namespace: "ml", Pod: "train-0", Container: "main", ContainerID: "c1"}
	job   = Owner{Workload: "slurm:42"}
)

func entities() map[uint64]model.Entity {
	return map[uint64]model.Entity{
		1: {
			Workload: "ml/train-0/main", Namespace: "ml", Pod: "train-0", Container: "main", ContainerID: "c1",
			PodUID: "u1", Runtime: "containerd", Cgroup: "/kubepods/podu1/c1",
		},
		11: {Workload: "slurm:42", Runtime: "slurm", Step: "0", Cgroup: "/system.slice/slurmstepd.scope/job_42/step_0"},
		12: {Workload: "slurm:42", Runtime: "slurm", Step: "1", Cgroup: "/system.slice/slurmstepd.scope/job_42/step_1"},
		20: {Runtime: "systemd", Cgroup: "/without/workload"},
	}
}

func TestAttributeProbe(t *testing.T) {
	fast := model.Histogram{Count: 2, SumSeconds: 0.5}
	got := Attribute(model.Snapshot{
		HCAs: []model.HCA{{Name: "mlx5_0"}},
		Resources: []model.Resource{
			{Device: "mlx5_0", Type: model.QP, Count: 10},
			{Device: "mlx5_0", Type: model.CQ, Count: 1}, // read before a share grew
			{Device: "mlx5_1", Type: model.QP, Count: 0},
		},
		Objects: []model.Objects{
			{Cgroup: 1, Device: "mlx5_0", Type: model.QP, Current: 4, Created: 9},
			{Cgroup: 11, Device: "mlx5_0", Type: model.QP, Current: 1, Created: 1},
			{Cgroup: 12, Device: "mlx5_0", Type: model.QP, Current: 2, Created: 3},
			{Cgroup: 12, Device: "mlx5_0", Type: model.CQ, Current: 3, Created: 3},
			{Cgroup: 1, Device: "mlx5_0", Type: model.DEVXObj, Current: 5, Created: 5}, // not counted by the kernel
			{Cgroup: 99, Device: "mlx5_0", Type: model.QP, Current: 1, Created: 2},     // no entity
			{Cgroup: 20, Device: "mlx5_0", Type: model.QP, Current: 1, Created: 1},     // entity without a name
			{Cgroup: 1, Device: "gone_0", Type: model.QP, Current: 1, Created: 1},      // no device figure
		},
		Holdings:   []model.Holding{{Device: "mlx5_0", PID: 7, Type: model.QP, Count: 100}}, // not used
		Registered: []model.Registered{{Cgroup: 1, Device: "mlx5_0", Memory: model.GPUMemory, Bytes: 4096}},
		Verbs: []model.Verb{
			{Cgroup: 11, Device: "mlx5_0", Verb: "reg_mr", Duration: fast},
			{Cgroup: 12, Device: "mlx5_0", Verb: "reg_mr", Duration: fast},
		},
		VerbErrors: []model.VerbError{
			{Cgroup: 11, Device: "mlx5_0", Verb: "reg_mr", Errno: "ENOMEM", Count: 1},
			{Cgroup: 12, Device: "mlx5_0", Verb: "reg_mr", Errno: "EFAULT", Count: 2},
			{Cgroup: 12, Device: "mlx5_0", Verb: "reg_mr", Errno: "ENOMEM", Count: 3},
		},
		Entities: entities(),
	})
	want := Attribution{
		Owners: []Owner{{}, train, job},
		Infos: []Info{
			{Owner: 1, PodUID: "u1", Runtime: "containerd", Cgroup: "/kubepods/podu1/c1"},
			{Owner: 2, Runtime: "slurm", Cgroup: "/system.slice/slurmstepd.scope/job_42"},
		},
		Devices: []model.Resource{
			{Device: "mlx5_0", Type: model.QP, Count: 10},
			{Device: "mlx5_0", Type: model.CQ, Count: 3},
			{Device: "mlx5_1", Type: model.QP, Count: 0},
			{Device: "mlx5_0", Type: model.DEVXObj, Count: 5},
		},
		Objects: []ObjectShare{
			{Owner: 1, Device: "mlx5_0", Type: model.QP, Method: MethodProbe, Current: 4, Created: 9},
			{Owner: 2, Device: "mlx5_0", Type: model.QP, Method: MethodProbe, Current: 3, Created: 4},
			{Owner: 2, Device: "mlx5_0", Type: model.CQ, Method: MethodProbe, Current: 3, Created: 3},
			{Owner: 1, Device: "mlx5_0", Type: model.DEVXObj, Method: MethodProbe, Current: 5, Created: 5},
			{Owner: 0, Device: "mlx5_0", Type: model.QP, Method: MethodProbe, Current: 3, Created: 3},
			{Owner: 1, Device: "gone_0", Type: model.QP, Method: MethodProbe, Current: 1, Created: 1},
			{Owner: 0, Device: "mlx5_0", Type: model.CQ, Method: MethodProbe},
			{Owner: 0, Device: "mlx5_1", Type: model.QP, Method: MethodProbe},
			{Owner: 0, Device: "mlx5_0", Type: model.DEVXObj, Method: MethodProbe},
		},
		Registered: []RegisteredShare{
			{Owner: 1, Device: "mlx5_0", Memory: model.GPUMemory, Bytes: 4096},
			{Owner: 0, Device: "mlx5_0", Memory: model.HostMemory},
			{Owner: 0, Device: "mlx5_0", Memory: model.GPUMemory},
		},
		Verbs: []VerbShare{
			{Owner: 2, Device: "mlx5_0", Verb: "reg_mr", Duration: model.Histogram{Count: 4, SumSeconds: 1}},
		},
		VerbErrors: []VerbErrorShare{
			{Owner: 2, Device: "mlx5_0", Verb: "reg_mr", Errno: "ENOMEM", Count: 4},
			{Owner: 2, Device: "mlx5_0", Verb: "reg_mr", Errno: "EFAULT", Count: 2},
		},
		RDMACgroups: []RDMACgroupShare{},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestAttributeNetlink(t *testing.T) {
	got := Attribute(model.Snapshot{
		HCAs:      []model.HCA{{Name: "rxe0"}},
		Resources: []model.Resource{{Device: "rxe0", Type: model.QP, Count: 3}, {Device: "rxe0", Type: model.MR, Count: 1}},
		Holdings: []model.Holding{
			{Device: "rxe0", PID: 7, Type: model.QP, Count: 1},
			{Device: "rxe0", PID: 8, Type: model.QP, Count: 1}, // its cgroup is not known
			{Device: "rxe0", PID: 7, Type: model.MR, Count: 1, Bytes: 65536},
		},
		Tasks:    map[int]uint64{7: 1},
		Entities: entities(),
	})
	want := []ObjectShare{
		{Owner: 1, Device: "rxe0", Type: model.QP, Method: MethodNetlink, Current: 1},
		{Owner: 0, Device: "rxe0", Type: model.QP, Method: MethodNetlink, Current: 2},
		{Owner: 1, Device: "rxe0", Type: model.MR, Method: MethodNetlink, Current: 1},
		{Owner: 0, Device: "rxe0", Type: model.MR, Method: MethodNetlink},
	}
	if d := cmp.Diff(want, got.Objects); d != "" {
		t.Error(d)
	}
	wantBytes := []RegisteredShare{
		{Owner: 1, Device: "rxe0", Memory: model.HostMemory, Bytes: 65536},
		{Owner: 0, Device: "rxe0", Memory: model.HostMemory},
	}
	if d := cmp.Diff(wantBytes, got.Registered); d != "" {
		t.Error(d)
	}
}

// The controller charges every ancestor: only the topmost cgroup of an owner
// may be counted, and a parent that belongs to nobody not at all.
func TestRDMACgroupsAreNotCountedTwice(t *testing.T) {
	e := entities()
	e[10] = model.Entity{Workload: "slurm:42", Cgroup: "/system.slice/slurmstepd.scope/job_42"}
	charge := func(cgroup, n uint64) model.RDMACgroup {
		return model.RDMACgroup{Cgroup: cgroup, Device: "rxe0", Handles: n, Objects: 10 * n}
	}
	for name, tt := range map[string]struct {
		facts []model.RDMACgroup
		want  []RDMACgroupShare
	}{
		"steps": {[]model.RDMACgroup{charge(11, 1), charge(12, 2)}, []RDMACgroupShare{{1, "rxe0", 3, 30}}},
		"steps and job": {
			[]model.RDMACgroup{charge(11, 1), charge(10, 4), charge(12, 2)},
			[]RDMACgroupShare{{1, "rxe0", 4, 40}},
		},
		"parent unnamed": {[]model.RDMACgroup{charge(5, 9), charge(1, 1)}, []RDMACgroupShare{{1, "rxe0", 1, 10}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Attribute(model.Snapshot{RDMACgroups: tt.facts, Entities: e})
			if d := cmp.Diff(tt.want, got.RDMACgroups); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestInvalidNamesAreOneOwner(t *testing.T) {
	got := Attribute(model.Snapshot{
		Objects: []model.Objects{
			{Cgroup: 1, Device: "rxe0", Type: model.QP, Current: 1},
			{Cgroup: 2, Device: "rxe0", Type: model.QP, Current: 2},
		},
		Entities: map[uint64]model.Entity{1: {Workload: "a\xff"}, 2: {Workload: "a\xfe"}},
	})
	want := []ObjectShare{{Owner: 1, Device: "rxe0", Type: model.QP, Method: MethodProbe, Current: 3}}
	if d := cmp.Diff(want, got.Objects); d != "" {
		t.Error(d)
	}
}

func TestCommonPath(t *testing.T) {
	for _, tt := range []struct{ a, b, want string }{
		{"/a/b", "/a/b", "/a/b"},
		{"/a/b", "/a/b/c", "/a/b"},
		{"/a/b/c", "/a/b", "/a/b"},
		{"/a/bc", "/a/bd", "/a"},
		{"/a", "/b", ""},
		{"", "/b", ""},
		{"a", "b", ""},
	} {
		if got := commonPath(tt.a, tt.b); got != tt.want {
			t.Errorf("commonPath(%q, %q) = %q, want %q", tt.a, tt.b, got, tt.want)
		}
	}
}

// FuzzInvariants: whatever the facts, the shares add up to the device, and
// what accumulates does not fall when the facts only grow.
func FuzzInvariants(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomSnapshot(r)
		before := Attribute(s)
		checkSums(t, s, before)
		grow(r, &s)
		after := Attribute(s)
		checkSums(t, s, after)
		if before.Objects == nil || s.Objects == nil {
			return
		}
		old, now := cumulative(before), cumulative(after)
		for k, v := range old {
			if now[k] < v {
				t.Errorf("%s fell from %d to %d", k, v, now[k])
			}
		}
	})
}

func checkSums(t *testing.T, s model.Snapshot, a Attribution) {
	t.Helper()
	type kind struct {
		device string
		typ    model.ObjectType
	}
	sums := map[kind]uint64{}
	unowned := map[kind]bool{}
	seen := map[ObjectShare]bool{}
	for _, o := range a.Objects {
		sums[kind{o.Device, o.Type}] += o.Current
		unowned[kind{o.Device, o.Type}] = unowned[kind{o.Device, o.Type}] || o.Owner == 0
		id := ObjectShare{Owner: o.Owner, Device: o.Device, Type: o.Type}
		if seen[id] {
			t.Errorf("two shares for %+v", id)
		}
		seen[id] = true
	}
	figures := map[kind]uint64{}
	for _, d := range a.Devices {
		k := kind{d.Device, d.Type}
		figures[k] = d.Count
		if sums[k] != d.Count {
			t.Errorf("%v: shares add up to %d, the device has %d", k, sums[k], d.Count)
		}
		if !unowned[k] {
			t.Errorf("%v: nothing said about what nobody owns", k)
		}
	}
	for _, d := range s.Resources {
		if got, ok := figures[kind{d.Device, d.Type}]; !ok || got < d.Count {
			t.Errorf("%s %s: the kernel counts %d, the figure is %d", d.Device, d.Type, d.Count, got)
		}
	}
}

func cumulative(a Attribution) map[string]uint64 {
	m := map[string]uint64{}
	for _, o := range a.Objects {
		m[fmt.Sprint("created ", a.Owners[o.Owner], o.Device, o.Type)] = o.Created
	}
	for _, v := range a.Verbs {
		m[fmt.Sprint("verbs ", a.Owners[v.Owner], v.Device, v.Verb)] = v.Duration.Count
	}
	for _, v := range a.VerbErrors {
		m[fmt.Sprint("errors ", a.Owners[v.Owner], v.Device, v.Verb, v.Errno)] = v.Count
	}
	return m
}

func randomSnapshot(r *rand.Rand) model.Snapshot {
	s := model.Snapshot{Entities: map[uint64]model.Entity{}, Tasks: map[int]uint64{}}
	for id := range uint64(8) {
		if r.IntN(4) > 0 { // several ids share a workload
			s.Entities[id] = model.Entity{Workload: fmt.Sprint("w", r.IntN(4))}
		}
		s.Tasks[100+int(id)] = id
	}
	for _, d := range []string{"d0", "d1", "d2"} {
		for _, typ := range []model.ObjectType{model.QP, model.MR} {
			if r.IntN(3) > 0 {
				s.Resources = append(s.Resources, model.Resource{Device: d, Type: typ, Count: r.Uint64N(50)})
			}
		}
	}
	if r.IntN(4) == 0 {
		for range r.IntN(30) {
			s.Holdings = append(s.Holdings, model.Holding{
				Device: device(r), PID: 98 + r.IntN(10), Type: objectType(r), Count: r.Uint64N(9),
			})
		}
		return s
	}
	s.Objects = []model.Objects{}
	for range r.IntN(40) {
		s.Objects = append(s.Objects, model.Objects{
			Cgroup: r.Uint64N(10), Device: device(r), Type: objectType(r), Current: r.Uint64N(9), Created: r.Uint64N(99),
		})
		s.Verbs = append(s.Verbs, model.Verb{
			Cgroup: r.Uint64N(10), Device: device(r), Verb: "reg_mr", Duration: model.Histogram{Count: r.Uint64N(99)},
		})
		s.VerbErrors = append(s.VerbErrors, model.VerbError{
			Cgroup: r.Uint64N(10), Device: device(r), Verb: "reg_mr", Errno: "ENOMEM", Count: r.Uint64N(9),
		})
	}
	return s
}

// grow lets time pass: what accumulates grows, what is current changes, and
// new cgroups appear.
func grow(r *rand.Rand, s *model.Snapshot) {
	for i := range s.Objects {
		s.Objects[i].Created += r.Uint64N(9)
		s.Objects[i].Current = r.Uint64N(9)
		s.Verbs[i].Duration.Count += r.Uint64N(9)
		s.VerbErrors[i].Count += r.Uint64N(9)
	}
	for i := range s.Resources {
		s.Resources[i].Count = r.Uint64N(50)
	}
	if s.Objects != nil {
		s.Objects = append(s.Objects,
			model.Objects{Cgroup: 50, Device: device(r), Type: objectType(r), Current: 1, Created: 1})
		s.Entities[50] = model.Entity{Workload: "w0"}
	}
}

func device(r *rand.Rand) string { return fmt.Sprint("d", r.IntN(3)) }

func objectType(r *rand.Rand) model.ObjectType {
	return []model.ObjectType{model.QP, model.MR, model.DEVXObj}[r.IntN(3)]
}

// BenchmarkAttribute: 500 workloads that use 10 devices each.
func BenchmarkAttribute(b *testing.B) {
	s := model.Snapshot{Objects: []model.Objects{}, Registered: []model.Registered{}, Entities: map[uint64]model.Entity{}}
	for d := range 10 {
		dev := fmt.Sprint("mlx5_", d)
		s.HCAs = append(s.HCAs, model.HCA{Name: dev})
		for _, typ := range []model.ObjectType{model.PD, model.CQ, model.QP, model.MR, model.Context} {
			s.Resources = append(s.Resources, model.Resource{Device: dev, Type: typ, Count: 5000})
			for id := range uint64(500) {
				s.Objects = append(s.Objects, model.Objects{Cgroup: id, Device: dev, Type: typ, Current: 3, Created: 9})
			}
		}
	}
	for id := range uint64(500) {
		s.Entities[id] = model.Entity{Workload: fmt.Sprint("ns/pod-", id, "/c"), ContainerID: fmt.Sprint(id)}
	}
	b.ReportAllocs()
	for b.Loop() {
		Attribute(s)
	}
}
