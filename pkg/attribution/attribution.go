// SPDX-License-Identifier: Apache-2.0

// Package attribution computes each owner's share of every device from the facts of cgroups. It is pure (no clock, no
// I/O, no logger); only Counters keeps values between refreshes.
//
// The shares of a device add up to the device's own total. The zero Owner always exists and has the share without a
// known owner, so that a missing share does not have to be read as 0.
package attribution

import (
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Method is how a share was obtained.
type Method string

// The methods for objects: counted in the kernel by the probe, or listed by RDMA netlink for each process.
const (
	MethodProbe   Method = "probe"
	MethodNetlink Method = "netlink"
)

// Attribution holds the shares of one refresh.
type Attribution struct {
	// Owners are the owners with a share. The Owner fields below are indexes into Owners; Owners[0] is the zero Owner.
	Owners []identity.Owner
	// Infos are the details of each owner except the zero Owner.
	Infos []Info

	CounterShares
	// Devices are the kernel's totals of devices. Count is the sum of the Objects of a device and type.
	Devices []model.Resource
	Objects []ObjectShare
	// Registered is nil if registered memory was not counted.
	Registered []RegisteredShare
	// RDMACgroups are the charges of the rdma cgroup controller.
	RDMACgroups []RDMACgroupShare
	// Traffic lists the bytes of the data path, see package traffic.
	Traffic  []TrafficShare
	Coverage []CoverageShare
	// Missed are the bytes that Traffic lacks for some time, see CoverageShare.
	Missed  []MissedShare
	Budgets []BudgetShare
	// Outstanding are the work requests that wait for a completion; nil if not traced.
	Outstanding []OutstandingShare
	// Containers are all containers of runtimes and the kubelet, with or without a share.
	Containers []ContainerShare
	// Assigned are the devices that are assigned to workloads; nil if no source lists workloads.
	Assigned []DeviceShare
	// GPUs are the shares of GPUs. GPUFigures are their sums, one for each GPU of the snapshot, in the same order.
	// DeviceHandles counts the open files of device nodes.
	GPUs          []GPUShare
	GPUFigures    []GPUFigures
	DeviceHandles []DeviceHandleShare
	// Energy is the energy of GPUs by owner; nil if the users of no GPU are known.
	Energy []EnergyShare
	// CPUEnergy is the energy of CPUs and their memory by owner; nil if not measured, or if no usage is read.
	CPUEnergy []CPUEnergyShare
	// FaultTotals are the logged faults of devices, FaultShares the faults of GPUs by owner, FaultHistory the last
	// faults. Nil if the kernel log is not read.
	FaultTotals  []FaultTotal
	FaultShares  []FaultShare
	FaultHistory []FaultRecord
	// DriverShares are the GPU driver ioctls in progress, DriverTasks the tasks in one ioctl for long. Nil if ioctls
	// are not measured.
	DriverShares []DriverShare
	DriverTasks  []DriverTask
	// Communicators are the ranks of communicators, CollectiveGaps what launches are not counted. Nil if launches are not counted.
	Communicators  []CommunicatorShare
	CollectiveGaps []CollectiveGapShare
	// Usages are the node resources of containers and jobs, Networks the bytes and packets of pods.
	Usages   []UsageShare
	Networks []NetworkShare

	ids   []identity.OwnerID // of Owners
	index map[identity.OwnerID]int
}

// Info is the details of an owner that are not labels.
type Info struct {
	Owner int
	identity.Info
}

// ObjectShare is an owner's number of objects of a type on a device. Only MethodProbe has Created.
type ObjectShare struct {
	Owner   int
	Device  string
	Type    model.ObjectType
	Method  Method
	Current uint64
	Created uint64
	Since   time.Time // of Created, see Share
}

// RegisteredShare is the registered memory of one owner, in bytes.
type RegisteredShare struct {
	Owner  int
	Device string
	Memory model.Memory
	Bytes  uint64
}

// RDMACgroupShare is the rdma cgroup controller's charge of one owner.
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

// Use returns the index of an owner in Owners. It adds the owner if necessary.
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

// ID returns the ID of the owner at an index.
func (a *Attribution) ID(owner int) identity.OwnerID { return a.ids[owner] }

// AssignedOwners returns the owners of Assigned.
func (a *Attribution) AssignedOwners() []identity.OwnerID {
	ids := make([]identity.OwnerID, len(a.Assigned))
	for i := range a.Assigned {
		ids[i] = a.ids[a.Assigned[i].Owner]
	}
	return ids
}

const unattributed = 0

// Attribute computes the shares of s. Before, owners has resolved the cgroups of s and c has credited its counters.
// Objects come from the probe or, if s.Objects is nil, from the Holdings of processes. traffic adds the byte shares and
// their coverage.
func Attribute(s *model.Snapshot, owners *identity.Table, c *Counters, traffic func(*Attribution)) Attribution {
	a := Attribution{ids: []identity.OwnerID{identity.Unattributed}, index: map[identity.OwnerID]int{}}
	o := &users{owners, &a, model.ByFunction(s.HCAs), c.IdleToNobody}
	objects := o.objects(s)
	a.Registered = o.registered(s)
	a.RDMACgroups = o.rdmaCgroups(s)
	a.Outstanding = o.outstanding(s)
	a.Containers = o.containers(s)
	a.Assigned = o.assigned(s)
	a.GPUs, a.GPUFigures = o.gpus(s)
	a.Energy = o.energy(s, &c.energy)
	a.CPUEnergy = o.cpuEnergy(s, &c.cpuEnergy)
	use := a.Use
	for _, t := range c.all {
		t.share(&a.CounterShares, owners, use)
	}
	a.Objects, a.Devices = objects.settle(s, a.Created)
	a.FaultTotals, a.FaultShares, a.FaultHistory = o.faults(s, &c.faults)
	a.Budgets = o.budgets(s)
	a.DeviceHandles = o.deviceHandles(s)
	a.DriverShares, a.DriverTasks = o.driverShares(s), o.driverTasks(s)
	a.Communicators, a.CollectiveGaps = o.communicators(s), o.collectiveGaps(s)
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

type users struct {
	*identity.Table
	a            *Attribution
	functions    map[string]*model.HCA // HCAs by the PCI address of their function
	idleToNobody bool
}

func (o *users) ofCgroup(id model.CgroupID) int        { return o.a.Use(o.Of(id)) }
func (o *users) ofContainer(c *model.Container) int    { return o.a.Use(o.OfContainer(c)) }
func (o *users) ofPod(namespace, name, uid string) int { return o.a.Use(o.OfPod(namespace, name, uid)) }
func (o *users) labels(owner int) *identity.Owner      { return o.Owner(o.a.ids[owner]) }

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
