// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/event"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/access"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/container"
	"github.com/accelscope/accelscope/pkg/source/datapath"
	"github.com/accelscope/accelscope/pkg/source/drm"
	"github.com/accelscope/accelscope/pkg/source/fabric"
	"github.com/accelscope/accelscope/pkg/source/kubelet"
	nodes "github.com/accelscope/accelscope/pkg/source/node"
	"github.com/accelscope/accelscope/pkg/source/probe"
	"github.com/accelscope/accelscope/pkg/source/rdma"
	"github.com/accelscope/accelscope/pkg/source/runtime"
)

const (
	// kubeletDeadline is how long the kubelet may take, which nobody waits for.
	kubeletDeadline = 10 * time.Second
	// deviceEvents is how old the figures may be that tell of a first use of a
	// device: scrapes are as frequent, and reading for this alone costs as much.
	deviceEvents = 15 * time.Second
)

// A sensor is the engine with its sources, and the exporter of what it reads.
type sensor struct {
	engine    *engine.Engine
	metrics   *metrics.Exporter
	hierarchy cgroup.Hierarchy // empty when cgroups are not read
	namespace string           // where our own cgroup namespace begins; empty when it is the host's
	peers     func(context.Context) ([]model.Peer, error)
}

// parsedFlags are the flags of a sensor that have a form.
type parsedFlags struct {
	include, exclude, selected *regexp.Regexp
	sockets                    []runtime.Socket
}

func (f sensorFlags) parse() (p parsedFlags, err error) {
	if p.include, err = matchName("--collector.rdma.device-include", f.DeviceInclude); err != nil {
		return p, err
	}
	if p.exclude, err = matchName("--collector.rdma.device-exclude", f.DeviceExclude); err != nil {
		return p, err
	}
	if p.selected, err = matchName("--rdma.datapath-select", f.PathSelect); err != nil {
		return p, err
	}
	// Without an interval these would be read while somebody scrapes.
	if f.KubeletInterval <= 0 {
		return p, fmt.Errorf("--kubelet.interval=%s: want more than 0", f.KubeletInterval)
	}
	if f.FabricInterval <= 0 {
		return p, fmt.Errorf("--fabric.interval=%s: want more than 0", f.FabricInterval)
	}
	p.sockets, err = parseSockets(f.Sockets)
	return p, err
}

// newSensor makes the sources that are switched on. One that cannot be made is
// registered with the reason; only --strict makes that an error.
func newSensor(f sensorFlags, e eventFlags, compat []string, log *zap.Logger) (*sensor, error) {
	parsed, err := f.parse()
	if err != nil {
		return nil, err
	}
	node := nodeName(f.NodeName)
	v, revision := buildVersion()

	s := &sensor{peers: noPeers(fmt.Errorf("the kernel is not probed (--no-collector.probe): %w", model.ErrUnsupported))}
	s.engine = engine.New(engine.Options{Logger: log})
	var sources []engine.Registration
	add := func(name string, source engine.Source, err error) {
		sources = append(sources, register(name, source, err))
	}
	var groups *cgroup.Source
	var devices *rdma.Source
	var probes *probe.Source
	var runtimes *runtime.Source
	var containers *container.Source
	// A source asks another through a function, which finds it when it is asked:
	// that is at the first read, and all of them are made before.
	if f.CgroupTree {
		groups, err = cgroup.New(cgroup.Options{
			Root: f.Cgroup, Procfs: f.Procfs, Passwd: filepath.Join(f.Host, "etc/passwd"), Grace: f.Grace,
			Logger: log.Named("cgroup"),
			PathOf: func(id uint64) (string, bool) {
				if probes == nil {
					return "", false
				}
				return probes.CgroupPath(id)
			},
		})
		add("cgroup", groups, err)
		if err == nil {
			s.hierarchy, s.namespace = groups.Hierarchy(), groups.Namespace()
		}
	}
	if f.Runtime {
		root, run := f.Host, f.Run
		if len(parsed.sockets) > 0 { // whoever names a path means the one that we see
			root, run = "/", ""
		}
		runtimes, err = runtime.New(runtime.Options{
			Sockets: parsed.sockets, Root: root, Run: run, Procfs: f.Procfs, Labels: f.Labels, Grace: f.Grace,
			Logger: log.Named("runtime"),
		})
		add("runtime", runtimes, err)
	}
	// RDMA needs the namespaces that containers are in.
	switch {
	case !f.Containers && !f.RDMA:
	case groups == nil:
		if f.Containers {
			add("container", nil, fmt.Errorf("cgroups are not read: %w", model.ErrUnsupported))
		}
	default:
		o := container.Options{
			NamespacesOnly: !f.Containers,
			Procfs:         f.Procfs, Mount: s.hierarchy.Mount, V2: s.hierarchy.Controller == "",
			Groups: groups.Workloads, Logger: log.Named("container"),
		}
		if runtimes != nil {
			o.More = runtimes.Cgroups
		}
		containers, err = container.New(o)
		add("container", containers, err)
	}
	if f.RDMA {
		o := rdma.Options{
			QPCounters: f.QPCounters,
			Sysfs:      f.Sysfs, Procfs: f.Procfs, Include: parsed.include, Exclude: parsed.exclude, Netlink: true,
			Logger: log.Named("rdma"),
			// Not counting yet is not counting.
			Holdings: func() bool { return probes == nil || !probes.Counting() },
			Namespaces: func() []model.Namespace {
				if containers == nil {
					return nil
				}
				return containers.Namespaces()
			},
		}
		if groups != nil {
			o.CgroupOf = groups.CgroupOf
		}
		devices, err = rdma.New(o)
		add("rdma", devices, err)
	}
	if f.Probe {
		o := probe.Options{
			Sysfs: f.Sysfs, MaxEntries: f.MapEntries, MaxObjects: f.MaxObjects, Logger: log.Named("probe"),
		}
		if f.Tier != "auto" {
			o.Tier = f.Tier
		}
		if groups != nil {
			o.Subsystem, o.CgroupOf = groups.Subsystem(), groups.CgroupOf
		}
		if devices != nil {
			o.Objects, o.DeviceNames = devices.Objects, devices.DeviceNames
		}
		probes, err = probe.New(o)
		add("probe", probes, err)
		if s.peers = noPeers(err); err == nil {
			s.peers = probes.Peers
		}
	}
	if f.DataPath != "off" {
		o := datapath.Options{
			Sysfs: f.Sysfs, Procfs: f.Procfs, Chosen: chosen(parsed.selected, s.engine.Owners()), Logger: log.Named("datapath"),
		}
		if f.DataPath == "budget" {
			o.Budget = f.PathBudget
		}
		if groups != nil {
			o.Subsystem = groups.Subsystem()
		}
		if devices != nil {
			o.DeviceNames = devices.DeviceNames
		}
		path, err := datapath.New(o)
		add("datapath", path, err)
	}
	sources = append(sources, gpuSources(f, groups, log)...)
	if f.Kubelet {
		r := register(newKubelet(f, log.Named("kubelet")))
		r.Interval, r.Deadline = f.KubeletInterval, kubeletDeadline
		sources = append(sources, r)
	}
	if f.Fabric {
		r := register(newFabric(f.fabricFlags, log.Named("fabric")))
		r.Interval, r.Deadline = f.FabricInterval, f.FabricInterval
		sources = append(sources, r)
	}
	if f.Node {
		source, err := nodes.New(nodes.Options{
			Procfs: f.Procfs, Sysfs: f.Sysfs, Root: f.Host, Logger: log.Named("node"),
		})
		add("node", source, err)
	}
	if e.Endpoint != "" {
		events, err := newEvents(e, runtimes, s.engine, event.Options{
			NodeName: node, NodeIP: f.NodeIP, Version: v, Logger: log.Named("events"),
		})
		add("events", events, err)
	}

	for _, r := range sources {
		s.engine.Add(r)
	}
	s.engine.Start()
	s.metrics = metrics.New(s.engine, metrics.Options{
		Compat: compat, Version: v, Revision: revision, Node: node, Labels: f.Labels,
	})
	if f.Strict {
		for _, r := range sources {
			if r.Err != nil && !errors.Is(r.Err, model.ErrAbsent) {
				return nil, errors.Join(fmt.Errorf("--strict: %s: %w", r.Source.Name(), r.Err), s.Close())
			}
		}
	}
	return s, nil
}

// gpuSources make what reads GPUs and counts who opens them; groups may be nil.
func gpuSources(f sensorFlags, groups *cgroup.Source, log *zap.Logger) []engine.Registration {
	var sources []engine.Registration
	var cgroupOf func(int) (uint64, error)
	var subsystem string
	if groups != nil {
		cgroupOf, subsystem = groups.CgroupOf, groups.Subsystem()
	}
	var opens *access.Source
	var err error
	if f.Access {
		o := access.Options{
			Sysfs: f.Sysfs, Procfs: f.Procfs, Subsystem: subsystem, MaxEntries: f.MapEntries, Interval: f.GPUInterval,
			Logger: log.Named("access"),
		}
		if f.Tier == "fentry" || f.Tier == "kprobe" {
			o.Tier = f.Tier
		}
		opens, err = access.New(o)
		sources = append(sources, register("access", opens, err))
	}
	if !f.GPU {
		return sources
	}
	dri, err := drm.New(drm.Options{Sysfs: f.Sysfs})
	sources = append(sources, register("drm", dri, err))
	o := gpuOptions{flags: f, cgroupOf: cgroupOf}
	if opens != nil {
		o.holders = opens.Holders
	}
	for _, c := range gpuConstructors {
		name := c.vendor.Row().Source
		o.log = log.Named(name)
		source, err := c.make(o)
		sources = append(sources, register(name, source, err))
	}
	return sources
}

func newKubelet(f sensorFlags, log *zap.Logger) (string, engine.Source, error) {
	o := kubelet.Options{
		Socket: f.PodResources, URL: f.KubeletURL, NodeIP: f.NodeIP,
		TokenFile: f.KubeletTokenFile, CAFile: f.KubeletCAFile, Insecure: f.KubeletInsecure, Labels: f.Labels, Logger: log,
	}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	o.TokenFile = cmp.Or(o.TokenFile, account+"token")
	if o.CAFile == "" && o.TokenFile == account+"token" {
		o.CAFile = account + "ca.crt"
	}
	if o.Socket == "" {
		o.Socket = filepath.Join(f.Host, "var/lib/kubelet/pod-resources/kubelet.sock")
	}
	kube, err := kubelet.New(o)
	return "kubelet", kube, err
}

func newFabric(f fabricFlags, log *zap.Logger) (string, engine.Source, error) {
	s, err := fabric.New(fabric.Options{
		Tools: f.FabricTools, Port: f.FabricPort, NodeNameMap: f.FabricNames, Parallel: f.FabricParallel,
		Interval: f.FabricInterval, Logger: log,
	})
	return "fabric", s, err
}

var errNoRuntime = fmt.Errorf("--events.otlp-endpoint needs the runtimes (--collector.runtime): %w", model.ErrUnsupported)

// newEvents makes what sends events; runtimes is where they come from.
func newEvents(
	f eventFlags, runtimes *runtime.Source, e *engine.Engine, o event.Options,
) (engine.Source, error) {
	if runtimes == nil {
		return nil, errNoRuntime
	}
	f.fill(&o)
	o.Watch, o.Snapshot, o.Ready = runtimes.Watch, runtimes.Snapshot, runtimes.Ready()
	o.Shares = func() attribution.Attribution {
		return e.Recent(deviceEvents).Shares
	}
	return event.New(o)
}

// fill sets what flags say of o.
func (f eventFlags) fill(o *event.Options) {
	o.Endpoint, o.Insecure, o.QueueSize = f.Endpoint, f.Insecure, f.QueueSize
	o.CAFile, o.CertFile, o.KeyFile, o.HeadersFile = f.CAFile, f.CertFile, f.KeyFile, f.HeadersFile
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

// parseSockets reads the values of --runtime.socket.
func parseSockets(values []string) ([]runtime.Socket, error) {
	var sockets []runtime.Socket
	for _, v := range values {
		s, err := runtime.ParseSocket(v)
		if err != nil {
			return nil, fmt.Errorf("--runtime.socket=%s: %w", v, err)
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

// nodeName is the name of the node: the one that was given, or the host's.
func nodeName(given string) string {
	if given != "" {
		return given
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
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

// matchName compiles an anchored expression; none is nil.
func matchName(flag, expr string) (*regexp.Regexp, error) {
	if expr == "" {
		return nil, nil
	}
	re, err := regexp.Compile("^(?:" + expr + ")$")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return re, nil
}

// refresh reads everything once.
func (s *sensor) refresh() { s.engine.Refresh() }

// problems tells the sources that are not ok, a line each.
func (s *sensor) problems() []string {
	var lines []string
	for _, st := range s.engine.Refresh().States {
		if st.State != model.StateOK {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", st.Source, st.State, st.Reason))
		}
	}
	return lines
}

// degraded is the error of a sensor with a source that should work and does
// not. That there is no HCA is not one.
func (s *sensor) degraded() error {
	for _, st := range s.engine.Refresh().States {
		if st.State != model.StateOK && st.State != model.StateAbsent {
			return fmt.Errorf("%s is %s: %s", st.Source, st.State, st.Reason)
		}
	}
	return nil
}

// Close releases everything, the last source first.
func (s *sensor) Close() error { return s.engine.Close() }
