// SPDX-License-Identifier: Apache-2.0

// Package attribution computes what each owner has of every device: it joins the facts of
// cgroups with their owners. It is pure (no clock, no I/O, no logger); Counters alone keeps
// values from one refresh to the next.
//
// The shares of a device add up to the device's own figure. What has no known owner is the
// share of the zero Owner, which is always there, so that a missing share never has to be
// read as zero.
package attribution

import (
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Method is how a share was obtained.
type Method string

// The methods for objects: counted in the kernel by the probe, or listed by RDMA netlink for
// each process.
const (
	MethodProbe   Method = "probe"
	MethodNetlink Method = "netlink"
)

// Attribution is the shares of one refresh.
type Attribution struct {
	// Owners are the owners that have a share; the Owner fields below are indexes into it.
	// Owners[0] is the zero Owner.
	Owners []identity.Owner
	// Infos is what else is known of each owner but the zero one.
	Infos []Info

	// CounterShares are the counters that Counters keeps.
	CounterShares
	// Devices are the devices' own figures, for every device that the kernel counted: the
	// sum of the Objects of a device and type is its Count.
	Devices []model.Resource
	Objects []ObjectShare
	// Registered is nil if registered memory was not counted.
	Registered []RegisteredShare
	// RDMACgroups is what the rdma cgroup controller charged.
	RDMACgroups []RDMACgroupShare
	// Traffic is the bytes of the data path, see package traffic.
	Traffic  []TrafficShare
	Sampling []SamplingShare
	Budgets  []BudgetShare
	// Containers are all containers that runtimes and the kubelet list, with or without a
	// share of anything.
	Containers []ContainerShare
	// Assigned are the devices that workloads were given; nil if no source lists workloads.
	Assigned []DeviceShare
	// GPUs are the shares of GPUs, and GPUFigures what they add up to: one for each GPU of
	// the facts, in their order. DeviceHandles is the open files of device nodes.
	GPUs          []GPUShare
	GPUFigures    []GPUFigures
	DeviceHandles []DeviceHandleShare
	// Usages are what containers and jobs use of the node, Networks what their pods received
	// and sent.
	Usages   []UsageShare
	Networks []NetworkShare

	ids   []identity.OwnerID // of Owners
	index map[identity.OwnerID]int
}

// Info is what is known of an owner in addition to its labels.
type Info struct {
	Owner int
	identity.Info
}

// ObjectShare is what one owner holds of one object type on one device. Created is known
// with MethodProbe only.
type ObjectShare struct {
	Owner   int
	Device  string
	Type    model.ObjectType
	Method  Method
	Current uint64
	Created uint64
}

// RegisteredShare is the registered memory of one owner, in bytes.
type RegisteredShare struct {
	Owner  int
	Device string
	Memory model.Memory
	Bytes  uint64
}

// RDMACgroupShare is what the rdma cgroup controller charged to one owner.
type RDMACgroupShare struct {
	Owner   int
	Device  string
	Handles uint64
	Objects uint64
}

// ContainerShare is a container with its owner.
type ContainerShare struct {
	Owner int
	*model.Container
}

// Use returns the index of an owner in Owners, to which it is added at its first use.
func (a *Attribution) Use(id identity.OwnerID) int {
	if id == identity.Unattributed {
		return unattributed
	}
	n, ok := a.index[id]
	if !ok {
		n = len(a.ids)
		a.index[id] = n
		a.ids = append(a.ids, id)
	}
	return n
}

// ID returns the number of the owner at an index.
func (a *Attribution) ID(owner int) identity.OwnerID { return a.ids[owner] }

// AssignedOwners returns the owners of Assigned.
func (a *Attribution) AssignedOwners() []identity.OwnerID {
	ids := make([]identity.OwnerID, len(a.Assigned))
	for i := range a.Assigned {
		ids[i] = a.ids[a.Assigned[i].Owner]
	}
	return ids
}

// unattributed is the index of the zero Owner.
const unattributed = 0

// Attribute computes the shares of s, whose cgroups owners has resolved and whose counters c
// has credited. Objects come from the probe; without one (s.Objects is nil) they come from
// the Holdings of processes. traffic adds the shares of bytes.
func Attribute(s *model.Snapshot, owners *identity.Table, c *Counters, traffic func(*Attribution)) Attribution {
	a := Attribution{ids: []identity.OwnerID{identity.Unattributed}, index: map[identity.OwnerID]int{}}
	o := &users{owners, &a}
	objects := o.objects(s)
	a.Registered = o.registered(s)
	a.RDMACgroups = o.rdmaCgroups(s)
	a.Sampling = o.sampling(s)
	a.Containers = o.containers(s)
	a.Assigned = o.assigned(s)
	a.GPUs, a.GPUFigures = o.gpus(s)
	for _, t := range c.all {
		t.share(&a.CounterShares, owners, a.Use)
	}
	a.Objects, a.Devices = objects.settle(s, a.Created)
	a.Budgets = o.budgets(s)
	a.DeviceHandles = o.deviceHandles(s)
	a.Usages = o.usages(s)
	a.Networks = o.networks(s)
	traffic(&a)
	owners.Label(s)
	a.Owners = make([]identity.Owner, len(a.ids))
	a.Infos = make([]Info, 0, len(a.ids)-1)
	for i, id := range a.ids[1:] {
		a.Owners[i+1] = *owners.Owner(id)
		a.Infos = append(a.Infos, Info{i + 1, *owners.Info(id)})
	}
	return a
}

// users finds the owners of facts and adds them to an Attribution.
type users struct {
	*identity.Table
	a *Attribution
}

func (o *users) ofCgroup(id model.CgroupID) int        { return o.a.Use(o.Of(id)) }
func (o *users) ofContainer(c *model.Container) int    { return o.a.Use(o.OfContainer(c)) }
func (o *users) ofPod(namespace, name, uid string) int { return o.a.Use(o.OfPod(namespace, name, uid)) }
func (o *users) labels(owner int) *identity.Owner      { return o.Owner(o.a.ids[owner]) }

// containers gives each container its owner, which is that of its cgroups.
func (o *users) containers(s *model.Snapshot) []ContainerShare {
	if s.Containers == nil {
		return nil
	}
	out := make([]ContainerShare, len(s.Containers))
	for i := range s.Containers {
		c := &s.Containers[i]
		out[i] = ContainerShare{Owner: o.ofContainer(c), Container: c}
	}
	return out
}
