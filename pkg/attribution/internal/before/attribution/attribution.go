// SPDX-License-Identifier: Apache-2.0

// Package attribution turns facts into shares: it joins what cgroups did and
// what processes hold with the names of what runs there. It is pure (no clock,
// no I/O, no logger) and imports model only; a Ledger alone remembers anything.
//
// The shares of a device always add up to the device's own figure. What no one
// is known to own is the share of the zero Owner, which is always there, so
// that a missing share never has to be read as zero.
package attribution

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// Owner is the identity that everything attributed carries: the five identity
// labels. The cgroups of one workload (job steps, child cgroups) have the same
// Owner and are summed. The zero Owner is nobody. All strings are valid UTF-8.
type Owner struct {
	Workload    string
	Namespace   string
	Pod         string
	Container   string
	ContainerID string
}

// Method says how a share was obtained.
type Method string

// The methods for objects: counted in the kernel by the probe, or dumped
// through RDMA netlink and booked by process id.
const (
	MethodProbe   Method = "probe"
	MethodNetlink Method = "netlink"
)

// Attribution is the shares of one Snapshot. Their order follows that of the
// Snapshot's facts.
type Attribution struct {
	// Owners are those who have a share; the Owner fields below are indexes
	// into it. Owners[0] is the zero Owner.
	Owners []Owner
	// Infos is what else is known of each owner but the zero one.
	Infos []Info

	// Devices are the devices' own figures, for every device that the kernel
	// counted: the sum of the Objects of a device and type is its Count.
	Devices []model.Resource
	Objects []ObjectShare
	// Registered is nil when nobody counted registered memory.
	Registered []RegisteredShare
	Verbs      []VerbShare
	VerbErrors []VerbErrorShare
	// RDMACgroups is what the rdma cgroup controller charged.
	RDMACgroups []RDMACgroupShare
	// Traffic is the bytes of the data path (see Ledger), and what follows the rest
	// that is seen there; nil when not collected.
	Traffic          []TrafficShare
	WorkRequests     []WorkRequestShare
	CompletionErrors []CompletionErrorShare
	Completions      []CompletionShare
	Sampling         []SamplingShare
	Budgets          []BudgetShare
	// Containers are all that runtimes and the kubelet told of, with or without
	// a share of anything.
	Containers []ContainerShare
	// Assigned are the devices that workloads were given; nil when nobody told of
	// any workload.
	Assigned []DeviceShare
	// GPUs are the shares of GPUs, and GPUFigures what they add up to: one for each GPU
	// of the Snapshot, in its order. DeviceOpens and DeviceHandles are what owners do
	// with device nodes. Nil when not collected.
	GPUs          []GPUShare
	GPUFigures    []GPUFigures
	DeviceOpens   []DeviceOpenShare
	DeviceHandles []DeviceHandleShare
	// Usages are what containers and jobs use of the node, Networks what their
	// pods received and sent; nil when not collected.
	Usages   []UsageShare
	Networks []NetworkShare
}

// Info is what is known of an owner beyond its identity.
type Info struct {
	Owner   int
	PodUID  string
	Runtime string
	Image   string
	User    string
	Labels  map[string]string
	// Cgroup is the deepest cgroup that holds all cgroups of the owner.
	Cgroup string
}

// ObjectShare is what one owner holds of one object type on one device.
// Created is known with MethodProbe only.
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

// VerbShare is what one owner called of one verb.
type VerbShare struct {
	Owner    int
	Device   string
	Verb     string
	Duration model.Histogram
}

// VerbErrorShare is how often a verb returned one errno to one owner.
type VerbErrorShare struct {
	Owner  int
	Device string
	Verb   string
	Errno  string
	Count  uint64
}

// RDMACgroupShare is what the rdma cgroup controller charged to one owner.
type RDMACgroupShare struct {
	Owner   int
	Device  string
	Handles uint64
	Objects uint64
}

// ContainerShare is what is known of a container, with its owner.
type ContainerShare struct {
	Owner int
	*model.Container
}

// Attribute joins the facts of s, whose entities and containers have their
// names already (see Name and Containers). Cgroup ids without an entity belong to
// the zero Owner. Objects come from the probe; when there was none (s.Objects is
// nil) they come from the Holdings of processes. Traffic takes a Ledger.
func Attribute(s model.Snapshot) Attribution {
	return attribute(s, func(*Attribution, *owners) {})
}

// attribute lets book add the traffic.
func attribute(s model.Snapshot, book func(*Attribution, *owners)) Attribution {
	o := newOwners(s)
	a := Attribution{}
	if s.Objects != nil {
		a.Objects, a.Devices = objectShares(probeObjects(s, o), s.Resources, MethodProbe)
		a.Registered = registeredShares(s, o)
	} else {
		a.Objects, a.Devices = objectShares(heldObjects(s, o), s.Resources, MethodNetlink)
		a.Registered = heldMemory(s, o)
	}
	a.Verbs = verbShares(s, o)
	a.VerbErrors = verbErrorShares(s, o)
	a.RDMACgroups = rdmaCgroupShares(s, o)
	a.WorkRequests = workRequestShares(s, o)
	a.CompletionErrors = completionErrorShares(s, o)
	a.Completions = completionShares(s, o)
	a.Sampling = samplingShares(s, o)
	a.Budgets = budgetShares(s, o)
	a.Containers = containerShares(s, o)
	a.Assigned = deviceShares(s, o)
	a.GPUs, a.GPUFigures = gpuShares(s, o, a.Assigned)
	a.DeviceOpens = deviceOpenShares(s, o)
	a.DeviceHandles = deviceHandleShares(s, o)
	a.Usages = usageShares(s, o)
	a.Networks = networkShares(s, o)
	book(&a, o)
	o.label(s, a.Containers)
	a.Owners, a.Infos = o.list, o.infos
	return a
}
