// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"cmp"
	"fmt"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/event"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/container"
	"github.com/accelscope/accelscope/pkg/source/kubelet"
	nodes "github.com/accelscope/accelscope/pkg/source/node"
	"github.com/accelscope/accelscope/pkg/source/runtime"
)

const (
	// kubeletDeadline is how long the kubelet may take; no scrape waits for it.
	kubeletDeadline = 10 * time.Second
	// deviceEvents is how old the shares may be from which the first use of a device is
	// known. Scrapes are as frequent, and a refresh for this alone costs as much.
	deviceEvents = 15 * time.Second
)

func (s *services) newCgroup() engine.Registration {
	o := cgroup.Options{
		Root: s.Cgroup, Procfs: s.Procfs, Passwd: s.onNode("etc/passwd"), Grace: s.Grace,
		Logger: s.log.Named("cgroup"), PathOf: model.PathLog(s.paths).PathOf, RankVariables: s.Env,
	}
	if s.workloads != nil {
		o.Marker = s.workloads
	}
	source, err := cgroup.New(o)
	s.cgroups = source
	return register("cgroup", source, err)
}

func (s *services) newRuntime() engine.Registration {
	root, run := s.Host, s.Run
	if len(s.sockets) > 0 { // a given path is one that this process sees
		root, run = "/", ""
	}
	o := runtime.Options{
		Sockets: s.sockets, Root: root, Run: run, Procfs: s.Procfs, Labels: s.readLabels(), Grace: s.Grace,
		Logger: s.log.Named("runtime"),
	}
	if s.cgroups != nil {
		o.CgroupOf = s.cgroups.OfContainer
	}
	source, err := runtime.New(o)
	s.runtimes = source
	return register("runtime", source, err)
}

// newContainer makes the source of containers; the RDMA source uses the network namespaces
// that it lists.
func (s *services) newContainer() engine.Registration {
	if s.cgroups == nil {
		return register("container", nil, fmt.Errorf("cgroups are not read: %w", model.ErrUnsupported))
	}
	hierarchy := s.cgroups.Hierarchy()
	o := container.Options{
		NamespacesOnly: s.containerScope() == metrics.ScopeNone,
		Procfs:         s.Procfs, Mount: hierarchy.Mount, V2: hierarchy.Controller == "",
		Groups: s.cgroups.Workloads, Logger: s.log.Named("container"),
	}
	if s.runtimes != nil {
		o.More = s.runtimes.Cgroups
	}
	if s.containerScope() == metrics.ScopeAccelerated {
		o.Wanted = func(id model.CgroupID) bool { return s.accelerated.Has(s.engine.Owners().OwnerOf(id)) }
	}
	source, err := container.New(o)
	if err == nil {
		s.namespaces = source
	}
	return register("container", source, err)
}

// containerScope returns the scope of the usage of containers. auto leaves workloads without an accelerator to the cAdvisor in the
// kubelet, where there is one.
func (f *Options) containerScope() metrics.Scope {
	switch {
	case !f.Containers:
		return metrics.ScopeNone
	case f.Scope != "auto":
		return metrics.Scope(f.Scope)
	case f.Kubelet && f.hasKubelet():
		return metrics.ScopeAccelerated
	}
	return metrics.ScopeAll
}

// hasKubelet reports whether a kubelet is configured, or has run on the node: it need not run yet.
func (f *Options) hasKubelet() bool {
	_, err := boundedfile.Below(f.Host, filepath.Dir(podResources))
	return err == nil || f.PodResources != "" || f.KubeletURL != ""
}

// podResources is the usual path of the socket PodResources on the node.
const podResources = "/var/lib/kubelet/pod-resources/kubelet.sock"

// onNode returns the path at which this process sees a path of the node. Symbolic links are followed, if the file exists.
func (f *Options) onNode(path string) string {
	if found, err := boundedfile.Below(f.Host, path); err == nil {
		return found
	}
	return filepath.Join(f.Host, path)
}

// kubeletOptions returns the options that are flags.
func (f *Options) kubeletOptions() kubelet.Options {
	o := kubelet.Options{
		Socket: f.PodResources, URL: f.KubeletURL, NodeIP: f.NodeIP,
		TokenFile: f.KubeletTokenFile, CAFile: f.KubeletCAFile, CertificateFile: f.KubeletCertFile,
		Insecure: f.KubeletInsecure, SendToken: f.KubeletSendToken,
	}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	o.TokenFile = cmp.Or(o.TokenFile, account+"token")
	if o.CAFile == "" && o.TokenFile == account+"token" {
		o.CAFile = account + "ca.crt"
	}
	if o.Socket == "" {
		o.Root, o.Socket = f.Host, podResources
	}
	o.CDI = []kubelet.CDIDir{{Root: f.Host, Path: "etc/cdi"}, {Root: f.Host, Path: "var/run/cdi"}}
	if f.Run != "" {
		o.CDI[1] = kubelet.CDIDir{Root: f.Run, Path: "cdi"}
	}
	return o
}

func (s *services) newKubelet() engine.Registration {
	o := s.kubeletOptions()
	o.Labels, o.Logger = s.readLabels(), s.log.Named("kubelet")
	source, err := kubelet.New(o)
	r := register("kubelet", source, err)
	r.Interval, r.Deadline = s.KubeletInterval, kubeletDeadline
	return r
}

func (s *services) newNode() engine.Registration {
	source, err := nodes.New(nodes.Options{
		Procfs: s.Procfs, Sysfs: s.Sysfs, Root: s.Host, Logger: s.log.Named("node"),
	})
	return register("node", source, err)
}

var errNoRuntime = fmt.Errorf("--events.otlp-endpoint needs the runtimes (--collector.runtime): %w", model.ErrUnsupported)

// newEvents makes the source that sends the events of the runtimes.
func (s *services) newEvents() engine.Registration {
	if s.runtimes == nil {
		return register("events", nil, errNoRuntime)
	}
	o := event.Options{NodeName: nodeName(s.NodeName), NodeIP: s.NodeIP, Version: s.Version.Number, Logger: s.log.Named("events")}
	s.fill(&o)
	o.Watch, o.Snapshot, o.Ready = s.runtimes.Watch, s.runtimes.Snapshot, s.runtimes.Ready()
	o.Shares = func() attribution.Attribution { return s.engine.Recent(deviceEvents).Shares }
	o.LinkFlaps = func() []model.LinkFlap { return s.engine.Recent(deviceEvents).Facts.LinkFlaps }
	o.HCAs = func() []model.HCA { return s.engine.Recent(deviceEvents).Facts.HCAs }
	source, err := event.New(o)
	return register("events", source, err)
}

// fill sets the options that are flags.
func (f *Options) fill(o *event.Options) {
	o.Endpoint, o.Insecure, o.QueueSize = f.Endpoint, f.Insecure, f.QueueSize
	o.CAFile, o.CertFile, o.KeyFile, o.HeadersFile = f.CAFile, f.CertFile, f.KeyFile, f.HeadersFile
}
