// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

var (
	train = identity.Owner{Workload: "ml/train-0/main", Namespace: "ml", Pod: "train-0", Container: "main", ContainerID: "c1"}
	job   = identity.Owner{Workload: "slurm:42"}
)

type facts struct {
	model.Snapshot
	Entities map[model.CgroupID]identitytest.Entity
}

func attribute(f facts) Attribution {
	var c Counters
	return attributeNext(f, identitytest.Table(f.Entities), &c)
}

func attributeNext(f facts, owners *identity.Table, c *Counters) Attribution {
	c.Credit(&f.Snapshot, owners, nil)
	a := Attribute(&f.Snapshot, owners, c, func(*Attribution) {})
	a.ids, a.index = nil, nil
	return a
}

func created(cgroup model.CgroupID, device string, typ model.ObjectType, n uint64) model.Series[model.ObjectKey, model.Count] {
	return model.Series[model.ObjectKey, model.Count]{
		Cgroup: cgroup, Key: model.ObjectKey{Device: device, Type: typ}, Value: model.Count(n),
	}
}

func verbs(cgroup model.CgroupID, device, verb string, h model.Histogram) model.Series[model.VerbKey, model.Histogram] {
	return model.Series[model.VerbKey, model.Histogram]{Cgroup: cgroup, Key: model.VerbKey{Device: device, Verb: verb}, Value: h}
}

func verbErrors(cgroup model.CgroupID, device, verb, errno string, n uint64) model.Series[model.VerbErrorKey, model.Count] {
	return model.Series[model.VerbErrorKey, model.Count]{
		Cgroup: cgroup, Key: model.VerbErrorKey{Device: device, Verb: verb, Errno: errno}, Value: model.Count(n),
	}
}

func entities() map[model.CgroupID]identitytest.Entity {
	return map[model.CgroupID]identitytest.Entity{
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
	fast := model.Histogram{Count: 2, Sum: 5e8}
	got := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{
		HCAs: []model.HCA{{Name: "mlx5_0"}},
		Resources: []model.Resource{
			{Device: "mlx5_0", Type: model.QP, Count: 10},
			{Device: "mlx5_0", Type: model.CQ, Count: 1}, // read before a share grew
			{Device: "mlx5_1", Type: model.QP, Count: 0},
		},
		Objects: []model.Objects{
			{Cgroup: 1, Device: "mlx5_0", Type: model.QP, Current: 4},
			{Cgroup: 11, Device: "mlx5_0", Type: model.QP, Current: 1},
			{Cgroup: 12, Device: "mlx5_0", Type: model.QP, Current: 2},
			{Cgroup: 12, Device: "mlx5_0", Type: model.CQ, Current: 3},
			{Cgroup: 1, Device: "mlx5_0", Type: model.DEVXObj, Current: 5}, // not counted by the kernel
			{Cgroup: 99, Device: "mlx5_0", Type: model.QP, Current: 1},     // without a name
			{Cgroup: 20, Device: "mlx5_0", Type: model.QP, Current: 1},     // without a workload
			{Cgroup: 1, Device: "gone_0", Type: model.QP, Current: 1},      // no device total
		},
		Created: []model.Series[model.ObjectKey, model.Count]{
			created(1, "mlx5_0", model.QP, 9),
			created(11, "mlx5_0", model.QP, 1),
			created(12, "mlx5_0", model.QP, 3),
			created(12, "mlx5_0", model.CQ, 3),
			created(1, "mlx5_0", model.DEVXObj, 5),
			created(99, "mlx5_0", model.QP, 2),
			created(20, "mlx5_0", model.QP, 1),
			created(1, "gone_0", model.QP, 1),
		},
		Holdings:   []model.Holding{{Device: "mlx5_0", PID: 7, Type: model.QP, Count: 100}}, // not used
		Registered: []model.Registered{{Cgroup: 1, Device: "mlx5_0", Memory: model.GPUMemory, Bytes: 4096}},
		Verbs: []model.Series[model.VerbKey, model.Histogram]{
			verbs(11, "mlx5_0", "reg_mr", fast), verbs(12, "mlx5_0", "reg_mr", fast),
		},
		VerbErrors: []model.Series[model.VerbErrorKey, model.Count]{
			verbErrors(11, "mlx5_0", "reg_mr", "ENOMEM", 1), verbErrors(12, "mlx5_0", "reg_mr", "EFAULT", 2),
			verbErrors(12, "mlx5_0", "reg_mr", "ENOMEM", 3),
		},
	}})
	want := Attribution{
		Owners: []identity.Owner{{}, train, job},
		Infos: []Info{
			{1, identity.Info{PodUID: "u1", Runtime: "containerd", Cgroup: "/kubepods/podu1/c1"}},
			{2, identity.Info{Runtime: "slurm", Job: model.Job{Kind: "Slurm", Name: "42"}, Cgroup: "/system.slice/slurmstepd.scope/job_42"}},
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
		CounterShares: CounterShares{
			Created: []Share[model.ObjectKey, model.Count]{
				{Owner: 1, Key: model.ObjectKey{Device: "mlx5_0", Type: model.QP}, Value: 9},
				{Owner: 2, Key: model.ObjectKey{Device: "mlx5_0", Type: model.QP}, Value: 4},
				{Owner: 2, Key: model.ObjectKey{Device: "mlx5_0", Type: model.CQ}, Value: 3},
				{Owner: 1, Key: model.ObjectKey{Device: "mlx5_0", Type: model.DEVXObj}, Value: 5},
				{Owner: 0, Key: model.ObjectKey{Device: "mlx5_0", Type: model.QP}, Value: 3},
				{Owner: 1, Key: model.ObjectKey{Device: "gone_0", Type: model.QP}, Value: 1},
			},
			Verbs: []Share[model.VerbKey, model.Histogram]{
				{Owner: 2, Key: model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, Value: model.Histogram{Count: 4, Sum: 1e9}},
			},
			VerbErrors: []Share[model.VerbErrorKey, model.Count]{
				{Owner: 2, Key: model.VerbErrorKey{Device: "mlx5_0", Verb: "reg_mr", Errno: "ENOMEM"}, Value: 4},
				{Owner: 2, Key: model.VerbErrorKey{Device: "mlx5_0", Verb: "reg_mr", Errno: "EFAULT"}, Value: 2},
			},
		},
		RDMACgroups: []RDMACgroupShare{},
	}
	if d := cmp.Diff(want, got, cmpopts.IgnoreUnexported(Attribution{})); d != "" {
		t.Error(d)
	}
}

func TestAttributeNetlink(t *testing.T) {
	got := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{
		HCAs:      []model.HCA{{Name: "rxe0"}},
		Resources: []model.Resource{{Device: "rxe0", Type: model.QP, Count: 3}, {Device: "rxe0", Type: model.MR, Count: 2}},
		Holdings: []model.Holding{
			{Device: "rxe0", PID: 7, Cgroup: 1, Type: model.QP, Count: 1},
			{Device: "rxe0", PID: 8, Type: model.QP, Count: 1}, // with an unknown cgroup
			{Device: "rxe0", PID: 7, Cgroup: 1, Type: model.MR, Memory: model.UnknownMemory, Count: 1, Bytes: 65536},
			{Device: "rxe0", PID: 7, Cgroup: 1, Type: model.MR, Memory: model.ImplicitODPMemory, Count: 1},
		},
	}})
	want := []ObjectShare{
		{Owner: 1, Device: "rxe0", Type: model.QP, Method: MethodNetlink, Current: 1},
		{Owner: 0, Device: "rxe0", Type: model.QP, Method: MethodNetlink, Current: 2},
		{Owner: 1, Device: "rxe0", Type: model.MR, Method: MethodNetlink, Current: 2},
		{Owner: 0, Device: "rxe0", Type: model.MR, Method: MethodNetlink},
	}
	if d := cmp.Diff(want, got.Objects); d != "" {
		t.Error(d)
	}
	wantBytes := []RegisteredShare{
		{Owner: 1, Device: "rxe0", Memory: model.UnknownMemory, Bytes: 65536},
		{Owner: 1, Device: "rxe0", Memory: model.ImplicitODPMemory},
		{Owner: 0, Device: "rxe0", Memory: model.UnknownMemory},
	}
	if d := cmp.Diff(wantBytes, got.Registered); d != "" {
		t.Error(d)
	}
}

// TestRegistered: the memory of an owner's cgroups adds up. Without the probe's objects, its memory is not used.
func TestRegistered(t *testing.T) {
	f := facts{Entities: entities(), Snapshot: model.Snapshot{Objects: []model.Objects{}, Registered: []model.Registered{
		{Cgroup: 11, Device: "mlx5_0", Memory: model.HostMemory, Bytes: 5}, {Cgroup: 12, Device: "mlx5_0", Memory: model.HostMemory, Bytes: 7},
	}}}
	if d := cmp.Diff([]RegisteredShare{{Owner: 1, Device: "mlx5_0", Memory: model.HostMemory, Bytes: 12}}, attribute(f).Registered); d != "" {
		t.Error(d)
	}
	f.Objects = nil
	if got := attribute(f).Registered; got != nil {
		t.Error(got)
	}
}

// TestKernelUsers: a kernel module that uses an HCA is a workload. Its protection domains, connection manager ids and
// their queue pairs are taken from the unattributed share. Two modules of one service are one workload.
func TestKernelUsers(t *testing.T) {
	facts := facts{Entities: entities(), Snapshot: model.Snapshot{
		HCAs: []model.HCA{{Name: "mlx5_0"}, {Name: "mlx5_1"}},
		Resources: []model.Resource{
			{Device: "mlx5_0", Type: model.PD, Count: 9},
			{Device: "mlx5_0", Type: model.QP, Count: 5},
			{Device: "mlx5_1", Type: model.PD, Count: 3},
			{Device: "mlx5_1", Type: model.QP, Count: 1},
		},
		Objects: []model.Objects{
			{Cgroup: 1, Device: "mlx5_0", Type: model.PD, Current: 2}, {Cgroup: 1, Device: "mlx5_0", Type: model.QP, Current: 1},
		},
		Domains: []model.Domains{
			{Device: "mlx5_0", Count: 2, Used: 2},
			{Device: "mlx5_0", Module: "ib_core", Count: 1, Used: 1},
			{Device: "mlx5_0", Module: "nvme_rdma", Count: 3, Used: 1},
			{Device: "mlx5_0", Module: "rpcrdma", Count: 1, Used: 0}, // registered, but unused
			{Device: "mlx5_0", Module: "ib_ipoib", Count: 1, Used: 1},
			{Device: "mlx5_1", Module: "cifs", Count: 1, Used: 1},
			{Device: "mlx5_1", Module: "ksmbd", Count: 2, Used: 1},
		},
		KernelIDs: []model.KernelID{
			{Device: "mlx5_0", Module: "nvme_rdma", QPN: 17},
			{Device: "mlx5_0", Module: "nvme_rdma", QPN: 18},
			{Device: "mlx5_1", Module: "ksmbd"}, // a listener
		},
	}}
	got := attribute(facts)
	text := map[string]uint64{}
	for _, o := range got.Objects {
		text[fmt.Sprintf("%q %s %s %s", got.Owners[o.Owner].Workload, o.Device, o.Type, o.Method)] = o.Current
	}
	want := map[string]uint64{
		`"ml/train-0/main" mlx5_0 pd probe`: 2, `"kernel:nvme" mlx5_0 pd netlink`: 3, `"kernel:ipoib" mlx5_0 pd netlink`: 1,
		`"" mlx5_0 pd probe`: 3, `"kernel:smb" mlx5_1 pd netlink`: 3, `"" mlx5_1 pd probe`: 0,
		`"ml/train-0/main" mlx5_0 qp probe`: 1, `"kernel:nvme" mlx5_0 qp netlink`: 2, `"" mlx5_0 qp probe`: 2,
		`"" mlx5_1 qp probe`:                 1,
		`"kernel:nvme" mlx5_0 cm_id netlink`: 2, `"" mlx5_0 cm_id probe`: 0,
		`"kernel:smb" mlx5_1 cm_id netlink`: 1, `"" mlx5_1 cm_id probe`: 0,
	}
	if d := cmp.Diff(want, text); d != "" {
		t.Error(d)
	}
}

// The controller charges every ancestor: only the topmost cgroup of an owner counts, and an unattributed parent does
// not count.
func TestRDMACgroupsAreNotCountedTwice(t *testing.T) {
	e := entities()
	e[10] = identitytest.Entity{Workload: "slurm:42", Cgroup: "/system.slice/slurmstepd.scope/job_42"}
	charge := func(cgroup, n uint64) model.RDMACgroup {
		return model.RDMACgroup{Cgroup: model.CgroupID(cgroup), Device: "rxe0", Handles: n, Objects: 10 * n}
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
			got := attribute(facts{Snapshot: model.Snapshot{RDMACgroups: tt.facts}, Entities: e})
			if d := cmp.Diff(tt.want, got.RDMACgroups); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestInvalidNamesAreOneOwner(t *testing.T) {
	got := attribute(facts{Snapshot: model.Snapshot{
		Objects: []model.Objects{
			{Cgroup: 1, Device: "rxe0", Type: model.QP, Current: 1},
			{Cgroup: 2, Device: "rxe0", Type: model.QP, Current: 2},
		},
	}, Entities: map[model.CgroupID]identitytest.Entity{1: {Workload: "a\xff"}, 2: {Workload: "a\xfe"}}})
	want := []ObjectShare{{Owner: 1, Device: "rxe0", Type: model.QP, Method: MethodProbe, Current: 3}}
	if d := cmp.Diff(want, got.Objects); d != "" {
		t.Error(d)
	}
}

// FuzzInvariants checks for any facts that the shares add up to the device, and that counters do not fall when facts
// grow.
func FuzzInvariants(f *testing.F) {
	for seed := range uint64(50) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := randomSnapshot(r)
		owners, counters := identitytest.Table(s.Entities), &Counters{}
		before := attributeNext(s, owners, counters)
		checkSums(t, s, before)
		grow(r, &s)
		owners.Resolve(identitytest.Facts(s.Entities), nil)
		after := attributeNext(s, owners, counters)
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

func checkSums(t *testing.T, s facts, a Attribution) {
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
	totals := map[kind]uint64{}
	for _, d := range a.Devices {
		k := kind{d.Device, d.Type}
		totals[k] = d.Count
		if sums[k] != d.Count {
			t.Errorf("%v: shares add up to %d, the device has %d", k, sums[k], d.Count)
		}
		if !unowned[k] {
			t.Errorf("%v: no unattributed share", k)
		}
	}
	for _, d := range s.Resources {
		if got, ok := totals[kind{d.Device, d.Type}]; !ok || got < d.Count {
			t.Errorf("%s %s: the kernel counts %d, the total is %d", d.Device, d.Type, d.Count, got)
		}
	}
}

func cumulative(a Attribution) map[string]uint64 {
	m := map[string]uint64{}
	for _, o := range a.Objects {
		m[fmt.Sprint("created ", a.Owners[o.Owner], o.Device, o.Type)] = o.Created
	}
	for _, v := range a.Verbs {
		m[fmt.Sprint("verbs ", a.Owners[v.Owner], v.Key)] = v.Value.Count
	}
	for _, v := range a.VerbErrors {
		m[fmt.Sprint("errors ", a.Owners[v.Owner], v.Key)] = uint64(v.Value)
	}
	return m
}

func randomSnapshot(r *rand.Rand) facts {
	s := facts{Entities: map[model.CgroupID]identitytest.Entity{}}
	for id := range uint64(8) {
		if r.IntN(4) > 0 { // several cgroups share a workload
			s.Entities[model.CgroupID(id)] = identitytest.Entity{Workload: fmt.Sprint("w", r.IntN(4))}
		}
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
				Device: device(r), PID: 98 + r.IntN(10), Cgroup: model.CgroupID(r.Uint64N(10)), Type: objectType(r), Count: r.Uint64N(9),
			})
		}
		return s
	}
	s.Objects = []model.Objects{}
	for range r.IntN(40) {
		o := model.Objects{Cgroup: model.CgroupID(r.Uint64N(10)), Device: device(r), Type: objectType(r), Current: r.Uint64N(9)}
		s.Objects = append(s.Objects, o)
		s.Created = append(s.Created, created(o.Cgroup, o.Device, o.Type, r.Uint64N(99)))
		s.Verbs = append(s.Verbs, verbs(model.CgroupID(r.Uint64N(10)), device(r), "reg_mr", model.Histogram{Count: r.Uint64N(99)}))
		s.VerbErrors = append(s.VerbErrors, verbErrors(model.CgroupID(r.Uint64N(10)), device(r), "reg_mr", "ENOMEM", r.Uint64N(9)))
	}
	return s
}

// grow simulates time: counters grow, current values change, new cgroups appear.
func grow(r *rand.Rand, s *facts) {
	for i := range s.Objects {
		s.Created[i].Value += model.Count(r.Uint64N(9))
		s.Objects[i].Current = r.Uint64N(9)
		s.Verbs[i].Value.Count += r.Uint64N(9)
		s.VerbErrors[i].Value += model.Count(r.Uint64N(9))
	}
	for i := range s.Resources {
		s.Resources[i].Count = r.Uint64N(50)
	}
	if s.Objects != nil {
		o := model.Objects{Cgroup: 50, Device: device(r), Type: objectType(r), Current: 1}
		s.Objects, s.Created = append(s.Objects, o), append(s.Created, created(50, o.Device, o.Type, 1))
		s.Entities[50] = identitytest.Entity{Workload: "w0"}
	}
}

func device(r *rand.Rand) string { return fmt.Sprint("d", r.IntN(3)) }

func objectType(r *rand.Rand) model.ObjectType {
	return []model.ObjectType{model.QP, model.MR, model.DEVXObj}[r.IntN(3)]
}

func BenchmarkAttribute(b *testing.B) {
	s := facts{Snapshot: model.Snapshot{Objects: []model.Objects{}, Registered: []model.Registered{}}, Entities: map[model.CgroupID]identitytest.Entity{}}
	for d := range 10 {
		dev := fmt.Sprint("mlx5_", d)
		s.HCAs = append(s.HCAs, model.HCA{Name: dev})
		for _, typ := range []model.ObjectType{model.PD, model.CQ, model.QP, model.MR, model.Context} {
			s.Resources = append(s.Resources, model.Resource{Device: dev, Type: typ, Count: 5000})
			for id := range uint64(500) {
				s.Objects = append(s.Objects, model.Objects{Cgroup: model.CgroupID(id), Device: dev, Type: typ, Current: 3})
				s.Created = append(s.Created, created(model.CgroupID(id), dev, typ, 9))
			}
		}
	}
	for id := range uint64(500) {
		s.Entities[model.CgroupID(id)] = identitytest.Entity{Workload: fmt.Sprint("ns/pod-", id, "/c"), ContainerID: fmt.Sprint(id)}
	}
	owners, counters := identitytest.Table(s.Entities), &Counters{}
	b.ReportAllocs()
	for b.Loop() {
		attributeNext(s, owners, counters)
	}
}
