// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/inventory"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/drm"
	"github.com/accelscope/accelscope/pkg/source/probe"
	"github.com/accelscope/accelscope/pkg/source/rdma"
	"github.com/accelscope/accelscope/pkg/source/runtime"
)

// services is what sources use of each other. Constructors set it in the order of
// dependencies: each uses what the ones before it have set. The service of a source that is
// not there answers that nothing is known.
type services struct {
	Options
	parsedFlags
	log *zap.Logger

	engine    *engine.Engine
	inventory *inventory.Inventory
	hotplug   *hotplug.Watcher // nil: sources list devices every few seconds
	paths     *probe.PathLog   // the probe writes it, the cgroup source reads it
	netlink   *rdma.Netlink
	// workloads is written by the cgroup source and read by BPF programs; nil if no BPF program is used.
	workloads *hook.Workloads
	gate      func() (*uprobe.Gate, error) // made when a source needs it
	uprobes   *uprobe.Gate                 // nil if none needed it

	// accelerated is written by the exporter and read by the source of containers.
	accelerated metrics.Accelerated

	cgroups    *cgroup.Source  // nil if cgroups are not read
	runtimes   *runtime.Source // nil if runtimes are not read
	namespaces model.NamespaceLister
	objects    model.ObjectCounter
	holders    model.DeviceHolders
	dri        *drm.Source // has the cards of the GPUs of all vendors
	faults     model.FaultLog
	peers      func() ([]model.Peer, error)
	survey     func([]model.CgroupID) // surveys processes on suspicion; nil: no calls are counted in surveys
	gpus       control.Releaser       // nil if NVIDIA's GPUs are not read
}

func newServices(o Options, parsed parsedFlags) *services {
	s := &services{Options: o, parsedFlags: parsed, log: o.Logger}
	s.inventory = inventory.New(inventory.Options{
		Dir: o.StateDir, Host: o.Host, Procfs: o.Procfs, Sysfs: o.Sysfs, ReadOnly: o.ReadOnly, Unwatched: parsed.excludesHCA,
		Logger: s.log.Named("inventory"),
	})
	s.engine = engine.New(engine.Options{
		Inventory: s.inventory, StallAfter: o.JobStall, IdleToNobody: s.IdleEnergy == "nobody", Logger: s.log,
	})
	s.paths = &probe.PathLog{}
	s.gate = sync.OnceValues(s.newGate)
	s.netlink = rdma.NewNetlink(s.rdmaOptions())
	s.namespaces, s.objects, s.holders, s.faults = unknown{}, unknown{}, unknown{}, unknown{}
	s.peers = noPeers(fmt.Errorf("the kernel is not probed (--no-collector.probe): %w", model.ErrUnsupported))
	return s
}

// sources makes the sources that are switched on, in the order in which they are registered:
// if two sources report the same fact, the later source wins, and states are listed in this order.
func (s *services) sources() []engine.Registration {
	defer hook.Hold()() // all sources with BPF programs need the same types and functions of the kernel
	var list []engine.Registration
	add := func(on bool, name string, construct func() engine.Registration) {
		if on {
			list = append(list, made(name, construct))
		}
	}
	if s.CgroupTree && (s.Probe || s.Access || s.GPUDriver || s.DataPath != "off") {
		s.workloads = s.newWorkloads()
	}
	add(s.CgroupTree, "cgroup", s.newCgroup)
	add(s.Runtime, "runtime", s.newRuntime)
	add(s.containerScope() != metrics.ScopeNone || s.RDMA && s.cgroups != nil, "container", s.newContainer)
	var probed []engine.Registration // made before rdma, which uses it, and registered after it
	if s.Probe {
		r := made("probe", s.newProbe)
		if r.Err != nil {
			s.peers = noPeers(r.Err)
		}
		probed = append(probed, r)
	}
	add(s.RDMA, "rdma", s.newRDMA)
	add(s.PCI, "pci", s.newPCI)
	add(s.Link, "link", s.newLink)
	list = append(list, probed...)
	add(s.DataPath != "off", "datapath", s.newDataPath)
	add(s.Access, "access", s.newAccess)
	add(s.Allocations, "gpumemory", s.newGPUMemory)
	add(s.Collective, "collective", s.newCollective)
	var logged []engine.Registration // made before the GPUs, which use it, and registered after them
	if s.KernelLog {
		logged = append(logged, made("kernellog", s.newKernelLog))
	}
	if s.GPU {
		list = append(list, s.newGPUs()...)
	}
	add(s.GPUDriver, "gpudriver", s.newGPUDriver)
	list = append(list, logged...)
	add(s.Kubelet, "kubelet", s.newKubelet)
	add(s.Fabric, "fabric", s.newFabric)
	add(s.Node, "node", s.newNode)
	add(s.Endpoint != "", "events", s.newEvents)
	return list
}

// newWorkloads makes the maps in which the cgroup source marks cgroups. Without permission the sources with programs fail, and have
// the reason.
func (s *services) newWorkloads() *hook.Workloads {
	workloads, err := probe.NewWorkloads()
	if err != nil {
		s.log.Debug("BPF programs count by cgroup, not by workload", zap.Error(err))
		return nil
	}
	return workloads
}

// newGate makes what attaches and detaches the uprobes of all sources.
func (s *services) newGate() (gate *uprobe.Gate, err error) {
	s.uprobes, err = uprobe.New(uprobe.Options{
		Limit: s.AttachLimit, MaxMappings: s.MaxMappings,
		BPFFS:  []string{"/sys/fs/bpf", filepath.Join(s.Procfs, "1/root/sys/fs/bpf")},
		Logger: s.log.Named("uprobe"),
	})
	return s.uprobes, err
}

// ownerOf returns how to find for whom programs count what a cgroup does, nil if cgroups are not read.
func (s *services) ownerOf() func(model.CgroupID) (workload, share model.CgroupID) {
	if s.cgroups == nil {
		return nil
	}
	return model.OwnerResolver(s.cgroups).OwnerOf
}

// cgroupOf returns how to find the cgroup of a process, nil if cgroups are not read.
func (s *services) cgroupOf() func(pid int) (model.CgroupID, error) {
	if s.cgroups == nil {
		return nil
	}
	return model.CgroupResolver(s.cgroups).CgroupOf
}

// subsystem returns the cgroup v1 controller whose cgroups BPF programs count by, empty for
// cgroup v2.
func (s *services) subsystem() string {
	if s.cgroups == nil {
		return ""
	}
	return s.cgroups.Hierarchy().Controller
}

// unknown replaces the services of absent sources.
type unknown struct{}

func (unknown) Counting() bool                { return false }
func (unknown) Namespaces() []model.Namespace { return nil }
func (unknown) Holders() ([]int, bool)        { return nil, false }

func (unknown) FirstFault(model.FaultDriver, []string, time.Time) (string, bool) { return "", false }
func (unknown) Nonfatal(model.FaultDriver, string, string, time.Time) bool       { return false }

// made makes a source. If its constructor panics, the source has failed, and the others are made.
func made(name string, construct func() engine.Registration) (r engine.Registration) {
	if err := safely.Try(func() { r = construct() }); err != nil {
		return register(name, nil, fmt.Errorf("making the source: %w", err))
	}
	return r
}

// register keeps the name of a source that could not be made.
func register(name string, source engine.Source, err error) engine.Registration {
	if err != nil {
		return engine.Registration{Source: unmade(name), Err: err}
	}
	return engine.Registration{Source: source}
}

// unmade is the name of a source that could not be made.
type unmade string

func (u unmade) Name() string { return string(u) }

func (u unmade) Read(context.Context) (model.Snapshot, error) { return model.Snapshot{}, nil }

func (u unmade) Close() error { return nil }
