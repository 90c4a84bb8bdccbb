// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// key tells the shares of one kind apart, in numbers: strings would have to be
// hashed whole for each fact.
type key struct {
	owner  int
	device int32
	what   int32 // object type, memory or verb
	errno  int32
}

// table is a list of shares that can be found by their key.
type table[S any] struct {
	rows  []S
	index map[key]int
	names map[string]int32
}

func newTable[S any](size int) *table[S] {
	return &table[S]{rows: make([]S, 0, size), index: make(map[key]int, size), names: map[string]int32{}}
}

func (t *table[S]) key(owner int, device, what, errno string) key {
	return key{owner: owner, device: t.number(device), what: t.number(what), errno: t.number(errno)}
}

func (t *table[S]) number(name string) int32 {
	if name == "" {
		return 0
	}
	n, ok := t.names[name]
	if !ok {
		n = int32(len(t.names) + 1)
		t.names[name] = n
	}
	return n
}

// at returns the share of k, which it adds as given when there is none yet.
// The pointer is good until the next call.
func (t *table[S]) at(k key, share S) *S {
	i, ok := t.index[k]
	if !ok {
		i = len(t.rows)
		t.index[k] = i
		t.rows = append(t.rows, share)
	}
	return &t.rows[i]
}

type objectTable = table[ObjectShare]

func objectAt(t *objectTable, owner int, device string, typ model.ObjectType) *ObjectShare {
	return t.at(t.key(owner, device, string(typ), ""),
		ObjectShare{Owner: owner, Device: device, Type: typ})
}

// probeObjects are the shares that the probe counted per cgroup.
func probeObjects(s model.Snapshot, o *owners) *objectTable {
	t := newTable[ObjectShare](len(s.Objects) + len(s.Resources))
	for _, f := range s.Objects {
		share := objectAt(t, o.ofCgroup(f.Cgroup), f.Device, f.Type)
		share.Current += f.Current
		share.Created += f.Created
	}
	return t
}

// heldObjects are the shares that netlink booked per process.
func heldObjects(s model.Snapshot, o *owners) *objectTable {
	t := newTable[ObjectShare](len(s.Holdings) + len(s.Resources))
	for _, f := range s.Holdings {
		objectAt(t, o.ofPID(f.PID), f.Device, f.Type).Current += f.Count
	}
	return t
}

// objectShares makes the shares of a device equal to its figure. What nobody
// owns is the remainder. Where the shares exceed the figure it is raised to
// them: the two are not read at the same instant, and some objects are hidden
// from the kernel's count (no_track) or of a type that it does not count.
func objectShares(t *objectTable, figures []model.Resource, m Method) ([]ObjectShare, []model.Resource) {
	sums := make(map[key]uint64, len(figures))
	for i := range t.rows {
		sums[t.key(nobody, t.rows[i].Device, string(t.rows[i].Type), "")] += t.rows[i].Current
	}
	devices := make([]model.Resource, 0, len(figures))
	counted := make(map[key]bool, len(figures))
	for _, f := range figures {
		k := t.key(nobody, f.Device, string(f.Type), "")
		if counted[k] {
			continue
		}
		counted[k], counted[t.key(nobody, f.Device, "", "")] = true, true
		rest := f.Count - min(f.Count, sums[k])
		objectAt(t, nobody, f.Device, f.Type).Current += rest
		devices = append(devices, model.Resource{Device: f.Device, Type: f.Type, Count: sums[k] + rest})
	}
	for i := range len(t.rows) {
		f := t.rows[i]
		k := t.key(nobody, f.Device, string(f.Type), "")
		if counted[k] || !counted[t.key(nobody, f.Device, "", "")] {
			continue
		}
		counted[k] = true
		objectAt(t, nobody, f.Device, f.Type)
		devices = append(devices, model.Resource{Device: f.Device, Type: f.Type, Count: sums[k]})
	}
	for i := range t.rows {
		t.rows[i].Method = m
	}
	if figures == nil {
		devices = nil
	}
	return t.rows, devices
}

func memoryAt(t *table[RegisteredShare], owner int, device string, m model.Memory) *RegisteredShare {
	return t.at(t.key(owner, device, string(m), ""),
		RegisteredShare{Owner: owner, Device: device, Memory: m})
}

func registeredShares(s model.Snapshot, o *owners) []RegisteredShare {
	if s.Registered == nil {
		return nil
	}
	t := newTable[RegisteredShare](len(s.Registered) + 2*len(s.HCAs))
	for _, f := range s.Registered {
		memoryAt(t, o.ofCgroup(f.Cgroup), f.Device, f.Memory).Bytes += f.Bytes
	}
	for _, d := range s.HCAs {
		memoryAt(t, nobody, d.Name, model.HostMemory)
		memoryAt(t, nobody, d.Name, model.GPUMemory)
	}
	return t.rows
}

// heldMemory cannot tell a GPU's memory from the host's: netlink gives the
// length of a region and not what is behind it.
func heldMemory(s model.Snapshot, o *owners) []RegisteredShare {
	if s.Holdings == nil {
		return nil
	}
	t := newTable[RegisteredShare](len(s.Holdings) + len(s.HCAs))
	for _, f := range s.Holdings {
		if f.Type == model.MR {
			memoryAt(t, o.ofPID(f.PID), f.Device, model.HostMemory).Bytes += f.Bytes
		}
	}
	for _, d := range s.HCAs {
		memoryAt(t, nobody, d.Name, model.HostMemory)
	}
	return t.rows
}

func verbShares(s model.Snapshot, o *owners) []VerbShare {
	t := newTable[VerbShare](len(s.Verbs))
	for i := range s.Verbs {
		f := &s.Verbs[i]
		owner := o.ofCgroup(f.Cgroup)
		t.at(t.key(owner, f.Device, f.Verb, ""),
			VerbShare{Owner: owner, Device: f.Device, Verb: f.Verb}).Duration.Add(f.Duration)
	}
	return t.rows
}

func verbErrorShares(s model.Snapshot, o *owners) []VerbErrorShare {
	t := newTable[VerbErrorShare](len(s.VerbErrors))
	for _, f := range s.VerbErrors {
		owner := o.ofCgroup(f.Cgroup)
		t.at(t.key(owner, f.Device, f.Verb, f.Errno),
			VerbErrorShare{Owner: owner, Device: f.Device, Verb: f.Verb, Errno: f.Errno}).Count += f.Count
	}
	return t.rows
}

// rdmaCgroupShares sums the charges of an owner's topmost cgroups: the
// controller charges a cgroup for all that lie below it. For the same reason
// a cgroup without an owner has no share: it may be the parent of those that
// have one.
func rdmaCgroupShares(s model.Snapshot, o *owners) []RDMACgroupShare {
	facts := slices.Clone(s.RDMACgroups)
	slices.SortStableFunc(facts, func(a, b model.RDMACgroup) int {
		return strings.Compare(s.Entities[a.Cgroup].Cgroup, s.Entities[b.Cgroup].Cgroup)
	})
	t := newTable[RDMACgroupShare](len(facts))
	tops := make(map[key][]string)
	for _, f := range facts {
		owner, path := o.ofCgroup(f.Cgroup), s.Entities[f.Cgroup].Cgroup
		if owner == nobody {
			continue
		}
		k := t.key(owner, f.Device, "", "")
		below := func(top string) bool { return top != "" && path != top && within(path, top) }
		if slices.ContainsFunc(tops[k], below) {
			continue
		}
		tops[k] = append(tops[k], path)
		share := t.at(k, RDMACgroupShare{Owner: owner, Device: f.Device})
		share.Handles += f.Handles
		share.Objects += f.Objects
	}
	return t.rows
}

// containerShares gives each container its owner, the one that its cgroups
// have.
func containerShares(s model.Snapshot, o *owners) []ContainerShare {
	if s.Containers == nil {
		return nil
	}
	out := make([]ContainerShare, len(s.Containers))
	for i := range s.Containers {
		c := &s.Containers[i]
		out[i] = ContainerShare{Owner: o.number(entityOf(c, model.Entity{})), Container: c}
	}
	return out
}

// label adds the labels of containers and pods to what is known of the owners,
// whose list is complete by now. A sandbox has those of its pod.
func (o *owners) label(s model.Snapshot, containers []ContainerShare) {
	pods := podsByUID(s.Pods)
	add := func(owner int, labels map[string]string) {
		if owner != nobody {
			info := &o.infos[owner-1]
			info.Labels = union(labels, info.Labels)
		}
	}
	addPod := func(namespace, pod string, labels map[string]string) {
		if owner, ok := o.byOwner[OwnerOf(model.Entity{Workload: namespace + "/" + pod, Namespace: namespace, Pod: pod})]; ok {
			add(owner, labels)
		}
	}
	for _, c := range containers {
		add(c.Owner, c.Labels)
		if p := pods[c.PodUID]; p != nil {
			add(c.Owner, p.Labels)
		}
		if c.Sandbox {
			addPod(c.Namespace, c.Pod, c.Labels)
		}
	}
	for i := range s.Pods {
		addPod(s.Pods[i].Namespace, s.Pods[i].Name, s.Pods[i].Labels)
	}
}
