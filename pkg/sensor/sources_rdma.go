// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"regexp"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath"
	"github.com/accelscope/accelscope/pkg/source/fabric"
	"github.com/accelscope/accelscope/pkg/source/pci"
	"github.com/accelscope/accelscope/pkg/source/probe"
	"github.com/accelscope/accelscope/pkg/source/rdma"
)

// rdmaOptions are the options that the RDMA source shares with the netlink client.
func (s *services) rdmaOptions() rdma.Options {
	return rdma.Options{
		QPCounters: s.QPCounters,
		Sysfs:      s.Sysfs, Procfs: s.Procfs, Include: s.include, Exclude: s.exclude, Logger: s.log.Named("rdma"),
	}
}

func (s *services) newRDMA() engine.Registration {
	o := s.rdmaOptions()
	o.Netlink, o.CgroupOf, o.Namespaces = s.netlink, s.cgroupOf(), s.namespaces.Namespaces
	o.Hotplug = s.hotplug
	o.Holdings = func() bool { return !s.objects.Counting() } // also while the probe does not count yet
	source, err := rdma.New(o)
	return register("rdma", source, err)
}

// pciInterval is how often the links of PCI functions are read.
const pciInterval = time.Minute

func (s *services) newPCI() engine.Registration {
	source, err := pci.New(pci.Options{Sysfs: s.Sysfs})
	r := register("pci", source, err)
	r.Interval = pciInterval
	return r
}

func (s *services) newProbe() engine.Registration {
	o := probe.Options{
		Sysfs: s.Sysfs, MaxEntries: s.MapEntries, MaxObjects: s.MaxObjects, Logger: s.log.Named("probe"),
		Subsystem: s.subsystem(), CgroupOf: s.cgroupOf(), OwnerOf: s.ownerOf(), Workloads: s.workloads, Paths: s.paths,
		BTFDir: s.BTFDir, Hotplug: s.hotplug,
	}
	if s.Tier != "auto" {
		o.Tier = s.Tier
	}
	if s.RDMA {
		objects := model.ObjectLister(s.netlink)
		o.Objects, o.ObjectCounts, o.DeviceNames = objects.Objects, objects.ObjectCounts, model.DeviceNamer(s.netlink).DeviceNames
	}
	source, err := probe.New(o)
	if err == nil {
		s.objects, s.peers = source, source.Peers
	}
	return register("probe", source, err)
}

func (s *services) newDataPath() engine.Registration {
	gate, err := s.gate()
	if err != nil {
		return register("datapath", nil, err)
	}
	o := datapath.Options{
		Gate:  gate,
		Sysfs: s.Sysfs, Procfs: s.Procfs, Chosen: chosen(s.selected, s.engine.Owners()), Logger: s.log.Named("datapath"),
		Subsystem: s.subsystem(), OwnerOf: s.ownerOf(), Workloads: s.workloads, MaxContexts: s.PathLimit,
		StallAfter: s.StallAfter, BTFDir: s.BTFDir, Hotplug: s.hotplug,
	}
	if s.DataPath == "survey" {
		o.Budget, o.SurveyLength, o.SurveyInterval = s.PathBudget, s.SurveyLength, s.SurveyInterval
	}
	if s.RDMA {
		o.DeviceNames = s.netlink.DeviceNames
	}
	o.Consent = s.consent
	source, err := datapath.New(o)
	if err == nil && s.DataPath == "survey" {
		s.survey = source.Survey
	}
	return register("datapath", source, err)
}

// probeLabel is a label or annotation of containers and pods. With the value "off", their processes get no probes.
const probeLabel = "accelscope.io/probe"

// consent returns whether the container or pod of a cgroup refuses probes. The owners have labels and annotations that change, of the last
// refresh; the runtimes have the labels of a container that was just created.
func (s *services) consent(id model.CgroupID) uprobe.Consent {
	value, known := s.engine.Owners().LabelOf(id, probeLabel)
	if !known && value == "" && s.cgroups != nil && s.runtimes != nil {
		if container := s.cgroups.ContainerOf(id); container == "" {
			known = true // no container, no label
		} else {
			value, known = s.runtimes.Label(container, probeLabel)
		}
	}
	switch {
	case value == "off":
		return uprobe.Refused
	case !known && s.runtimes != nil && s.runtimes.Serves():
		return uprobe.Awaited
	}
	return uprobe.Given
}

// readLabels are the labels and annotations of containers and pods that runtimes and the kubelet shall read.
func (s *services) readLabels() []string {
	if s.DataPath == "off" && !s.Allocations || slices.Contains(s.Labels, probeLabel) {
		return s.Labels
	}
	return append(slices.Clone(s.Labels), probeLabel)
}

// chosen reports whether the workload of a cgroup is selected, by its last known name.
func chosen(selected *regexp.Regexp, owners model.WorkloadNamer) func(model.CgroupID) bool {
	if selected == nil {
		return nil
	}
	return func(id model.CgroupID) bool {
		workload, known := owners.Workload(id)
		return known && selected.MatchString(workload)
	}
}

func (s *services) newFabric() engine.Registration {
	source, err := fabric.New(fabric.Options{
		Tools: s.FabricTools, Port: s.FabricPort, NodeNameMap: s.FabricNames, Parallel: s.FabricParallel,
		Interval: s.FabricInterval, Directory: s.Directory, Logger: s.log.Named("fabric"),
	})
	r := register("fabric", source, err)
	r.Interval, r.Deadline = s.FabricInterval, s.FabricInterval
	return r
}
