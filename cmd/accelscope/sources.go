// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/collector"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/probe"
	"github.com/accelscope/accelscope/pkg/source/rdma"
)

// A sensor is the sources and the collector that reads them.
type sensor struct {
	collector *collector.Collector
	hierarchy cgroup.Hierarchy // empty when cgroups are not read
}

// newSensor makes the sources that are switched on. One that cannot be made is
// registered with the reason; only --strict makes that an error.
func newSensor(f sensorFlags, compat []string, log *zap.Logger) (*sensor, error) {
	include, err := matchName("device-include", f.DeviceInclude)
	if err != nil {
		return nil, err
	}
	exclude, err := matchName("device-exclude", f.DeviceExclude)
	if err != nil {
		return nil, err
	}

	s := &sensor{}
	var sources []collector.Registration
	var groups *cgroup.Source
	var devices *rdma.Source
	var probes *probe.Source
	if f.CgroupTree {
		groups, err = cgroup.New(cgroup.Options{
			Root: f.Cgroup, Procfs: f.Procfs, Grace: f.Grace, Logger: log.Named("cgroup"),
			// probes is set before the first read, which is the first to ask.
			PathOf: func(id uint64) (string, bool) {
				if probes == nil {
					return "", false
				}
				return probes.CgroupPath(id)
			},
		})
		sources = append(sources, register("cgroup", groups, err))
		if err == nil {
			s.hierarchy = groups.Hierarchy()
		}
	}
	if f.RDMA {
		devices, err = rdma.New(rdma.Options{
			Sysfs: f.Sysfs, Include: include, Exclude: exclude, Netlink: true, Logger: log.Named("rdma"),
			// Not counting yet is not counting: probes is set before the first read.
			Holdings: func() bool { return probes == nil || !probes.Counting() },
		})
		sources = append(sources, register("rdma", devices, err))
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
		sources = append(sources, register("probe", probes, err))
	}

	v, revision := buildVersion()
	s.collector = collector.New(collector.Options{
		Sources: sources, Compat: compat, Version: v, Revision: revision, Logger: log,
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

// register keeps the name of a source that could not be made.
func register(name string, source collector.Source, err error) collector.Registration {
	if err != nil {
		return collector.Registration{Source: unmade(name), Err: err}
	}
	return collector.Registration{Source: source}
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
		return nil, fmt.Errorf("--collector.rdma.%s: %w", flag, err)
	}
	return re, nil
}

// refresh reads everything once.
func (s *sensor) refresh() { s.collector.States() }

// problems tells the sources that are not ok, a line each.
func (s *sensor) problems() []string {
	var lines []string
	for _, st := range s.collector.States() {
		if st.State != model.StateOK {
			lines = append(lines, fmt.Sprintf("%s: %s: %s", st.Source, st.State, st.Reason))
		}
	}
	return lines
}

// degraded is the error of a sensor with a source that should work and does
// not. That there is no HCA is not one.
func (s *sensor) degraded() error {
	for _, st := range s.collector.States() {
		if st.State != model.StateOK && st.State != model.StateAbsent {
			return fmt.Errorf("%s is %s: %s", st.Source, st.State, st.Reason)
		}
	}
	return nil
}

// Close releases everything, the last source first.
func (s *sensor) Close() error { return s.collector.Close() }
