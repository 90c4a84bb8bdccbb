// SPDX-License-Identifier: Apache-2.0

// Package sensor assembles the sensor: it turns flags into sources, and serves what they read over HTTP.
package sensor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/inventory"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/program"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/runtime"
)

// Options are the flags of the sensor, and what the program knows of its process.
type Options struct {
	config.RunCommand
	Released error // why NVIDIA's library is not opened; nil if it may be
	ReadOnly bool  // nothing is written to the state directory
	Version  program.Version
	// Directory is for temporary files; empty: systemd made no such directory.
	Directory string
	// APIServer is the URL of the API server of Kubernetes, empty outside a pod.
	APIServer string
	Logger    *zap.Logger
}

// A Sensor is the engine with its sources, and the exporter of what it reads.
type Sensor struct {
	engine    *engine.Engine
	metrics   *metrics.Exporter
	hierarchy cgroup.Hierarchy // empty when cgroups are not read
	namespace string           // the cgroup that is the root of our cgroup namespace; empty for the host's
	peers     func() ([]model.Peer, error)
	runtimes  *runtime.Source  // nil if runtimes are not read
	uprobes   *uprobe.Gate     // nil if no source needed it
	gpus      control.Releaser // nil when NVIDIA's GPUs are not read
	inventory *inventory.Inventory
	node      string
	hotplug   *hotplug.Watcher   // nil if its sockets could not be opened
	recorder  *overview.Recorder // of rates and, with pages, of the history; nil until Run
}

// New makes the sources that are switched on. One that cannot be made is registered
// with the reason; only --strict makes that an error.
func New(o Options) (*Sensor, error) {
	parsed, err := o.parse()
	if err != nil {
		return nil, err
	}
	excludes, err := o.excluded()
	if err != nil {
		return nil, err
	}
	s := newServices(o, parsed)
	if s.hotplug, err = hotplug.Open(o.Sysfs, o.Procfs, o.Logger.Named("hotplug")); err != nil {
		o.Logger.Warn("devices are listed every few seconds: the kernel's announcements are not received", zap.Error(err))
	}
	sources := s.sources()
	out := &Sensor{
		engine: s.engine, peers: s.peers, gpus: s.gpus, uprobes: s.uprobes, inventory: s.inventory, node: nodeName(o.NodeName),
		hotplug: s.hotplug, runtimes: s.runtimes,
	}
	if s.cgroups != nil {
		out.hierarchy, out.namespace = s.cgroups.Hierarchy(), s.cgroups.Namespace()
	}
	for _, r := range sources {
		s.engine.Add(r)
	}
	s.engine.Start()
	out.metrics = metrics.New(s.engine, metrics.Options{
		Compat: o.Compat, Excludes: excludes, Histograms: o.forms(), Version: o.Version.Number, Revision: o.Version.Revision,
		Node: out.node, Labels: o.Labels,
		Scope: o.containerScope(), Accelerated: &s.accelerated,
		ExcludesInterface: parsed.excludesInterface(), GPUDetail: o.GPUDetail == "full", AllStates: o.States == "all",
	})
	if o.Strict {
		for _, r := range sources {
			if r.Err != nil && !errors.Is(r.Err, model.ErrAbsent) {
				return nil, errors.Join(fmt.Errorf("--strict: %s: %w", r.Source.Name(), r.Err), out.Close())
			}
		}
	}
	return out, nil
}

// Engine returns the engine, which reads the sources.
func (s *Sensor) Engine() *engine.Engine { return s.engine }

// AwaitRuntimes waits until the container runtimes have answered once, at most 5 s: a runtime without an answer yet has not failed.
func (s *Sensor) AwaitRuntimes(ctx context.Context) {
	if s.runtimes == nil {
		return
	}
	select {
	case <-s.runtimes.Ready():
	case <-ctx.Done():
	}
}

// Cgroups returns how cgroups are read, and the cgroup that is the root of our cgroup namespace, "" for the host's.
func (s *Sensor) Cgroups() (h cgroup.Hierarchy, namespace string) { return s.hierarchy, s.namespace }

// nodeName returns the name of the node: the given one, or the host name.
func nodeName(given string) string {
	name, _ := os.Hostname() // empty on an error
	return cmp.Or(given, name)
}

// problems lists the sources that are not ok, a line each.
func (s *Sensor) problems() []string {
	var lines []string
	now := s.engine.Refresh()
	if now.Err != nil {
		lines = append(lines, now.Err.Error())
	}
	for _, st := range now.States {
		if st.State != model.StateOK {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", st.Source, st.State, model.WithoutState(st.Reason, st.State)))
		}
	}
	return lines
}

// degraded returns the error of a source that should work and does not. A missing HCA is
// no error.
func (s *Sensor) degraded() error {
	now := s.engine.Refresh()
	if now.Err != nil {
		return now.Err
	}
	for _, st := range now.States {
		if st.State != model.StateOK && st.State != model.StateAbsent {
			return fmt.Errorf("%s is %s: %s", st.Source, st.State, st.Reason)
		}
	}
	return nil
}

// Close closes all sources, and writes the inventory.
func (s *Sensor) Close() error {
	err := s.engine.Close()
	if s.uprobes != nil {
		err = errors.Join(err, s.uprobes.Close())
	}
	if s.hotplug != nil {
		s.hotplug.Close()
	}
	return errors.Join(err, s.inventory.Close())
}
