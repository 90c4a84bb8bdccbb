// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/inventory"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
)

// A sensor is the engine with its sources, and the exporter of what it reads.
type sensor struct {
	engine    *engine.Engine
	metrics   *metrics.Exporter
	hierarchy cgroup.Hierarchy // empty when cgroups are not read
	namespace string           // the cgroup that is the root of our cgroup namespace; empty for the host's
	peers     func() ([]model.Peer, error)
	uprobes   *uprobe.Gate // nil if no source needed it
	gpus      releaser     // nil when NVIDIA's GPUs are not read
	inventory *inventory.Inventory
	node      string
	recorder  *overview.Recorder // of rates and of the history; nil without pages
}

// newSensor makes the sources that are switched on. One that cannot be made is registered
// with the reason; only --strict makes that an error.
func newSensor(f sensorFlags, e eventFlags, m metricsFlags, log *zap.Logger) (*sensor, error) {
	parsed, err := f.parse()
	if err != nil {
		return nil, err
	}
	excludes, err := m.excluded()
	if err != nil {
		return nil, err
	}
	s := newServices(f, e, parsed, log)
	sources := s.sources()
	out := &sensor{
		engine: s.engine, peers: s.peers, gpus: s.gpus, uprobes: s.uprobes, inventory: s.inventory, node: nodeName(f.NodeName),
	}
	if s.cgroups != nil {
		out.hierarchy, out.namespace = s.cgroups.Hierarchy(), s.cgroups.Namespace()
	}
	for _, r := range sources {
		s.engine.Add(r)
	}
	s.engine.Start()
	v, revision := buildVersion()
	out.metrics = metrics.New(s.engine, metrics.Options{
		Compat: m.Compat, Excludes: excludes, Histograms: m.forms(), Version: v, Revision: revision,
		Node: out.node, Labels: f.Labels,
		Scope: f.containerScope(), Accelerated: &s.accelerated,
		ExcludesInterface: parsed.excludesInterface(), GPUDetail: f.GPUDetail == "full", AllStates: m.States == "all",
	})
	if f.Strict {
		for _, r := range sources {
			if r.Err != nil && !errors.Is(r.Err, model.ErrAbsent) {
				return nil, errors.Join(fmt.Errorf("--strict: %s: %w", r.Source.Name(), r.Err), out.Close())
			}
		}
	}
	return out, nil
}

// nodeName returns the name of the node: the given one, or the host name.
func nodeName(given string) string {
	name, _ := os.Hostname() // empty on an error
	return cmp.Or(given, name)
}

// problems lists the sources that are not ok, a line each.
func (s *sensor) problems() []string {
	var lines []string
	now := s.engine.Refresh()
	if now.Err != nil {
		lines = append(lines, now.Err.Error())
	}
	for _, st := range now.States {
		if st.State != model.StateOK {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", st.Source, st.State, withoutState(st.Reason, st.State)))
		}
	}
	return lines
}

// degraded returns the error of a source that should work and does not. A missing HCA is
// no error.
func (s *sensor) degraded() error {
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
func (s *sensor) Close() error {
	err := s.engine.Close()
	if s.uprobes != nil {
		err = errors.Join(err, s.uprobes.Close())
	}
	return errors.Join(err, s.inventory.Close())
}
