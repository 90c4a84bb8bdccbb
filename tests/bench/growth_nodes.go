// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/nvml"
)

// compared is the number of containers for which the sensor has goals beside cAdvisor; processesPerGPU that of the fake NVML.
const compared, processesPerGPU = pods * containersPerPod, 4

// growthExporters returns the exporters of the curves, cAdvisor among them, and the absolute path of the sensor.
func growthExporters(ctx context.Context, use []exporter) (all []exporter, sensor string, err error) {
	for _, e := range use {
		if e.name != accelscope {
			continue
		}
		if sensor, err = filepath.Abs(e.path); err != nil {
			return nil, "", err
		}
		path, err := buildCadvisor(ctx)
		if err != nil {
			return nil, "", err
		}
		return append(use, exporter{name: cadvisor, path: path, args: func(_ fixtures.Manifest, addr string) []string {
			return []string{"-web.listen-address=" + addr}
		}}), sensor, nil
	}
	return nil, "", errors.New("the curves are those of accelscope")
}

// growths are the nodes of the curves; short: as few as show that they work.
func growths(use []exporter, short bool) []growth {
	byName := map[string]exporter{}
	for _, e := range use {
		byName[e.name] = e
	}
	only := func(names ...string) (some []exporter) {
		for _, name := range names {
			if e, ok := byName[name]; ok {
				some = append(some, e)
			}
		}
		return some
	}
	all := []growth{
		{"containers", []int{10, 100, compared, 1000}, func(ctx context.Context, dir string, n int) (site, error) {
			return containerSite(ctx, dir, n, only(accelscope, cadvisor))
		}},
		{"ports", []int{1, 10, 138}, func(_ context.Context, dir string, n int) (site, error) {
			return portSite(dir, n, only(accelscope, nodeExporter, floor))
		}},
		{"GPUs", []int{1, 8, 16}, func(ctx context.Context, dir string, n int) (site, error) {
			return gpuSite(ctx, dir, n, byName[accelscope])
		}},
	}
	if short {
		for i := range all {
			all[i].points = all[i].points[:2]
		}
	}
	return all
}

// portSite is a fake node with n HCAs of one port: up to ten, then virtual functions of eight of these.
func portSite(dir string, n int, use []exporter) (site, error) {
	o := fixtures.Options{ComputeHCAs: min(n, 8), Seed: 1}
	o.StorageHCAs = min(n-o.ComputeHCAs, 2)
	o.VFs = n - o.ComputeHCAs - o.StorageHCAs
	m, err := fixtures.Write(filepath.Join(dir, "node"), o)
	s := site{Manifest: m, use: use}
	for _, h := range m.HCAs {
		s.shown = append(s.shown, `"`+h.Name+`"`)
	}
	return s, err
}

// gpuSite is a fake node with n GPUs of a fake NVML, which answers at once. No other exporter can read it.
func gpuSite(ctx context.Context, dir string, n int, sensor exporter) (site, error) {
	o := fixtures.Options{Containers: n, ProcsPerContainer: processesPerGPU, Seed: 1}
	m, err := fixtures.Write(filepath.Join(dir, "node"), o)
	if err != nil {
		return site{}, err
	}
	var users [][]int
	for _, c := range m.Containers {
		users = append(users, c.PIDs)
	}
	fake, err := nvml.Bench(ctx, dir, m.SysFS(), m.ProcFS(), n, func(s *nvml.Scenario) { s.Own(users) })
	if err != nil {
		return site{}, err
	}
	s := site{Manifest: m}
	for i := range n {
		s.shown = append(s.shown, nvml.UUID(i))
	}
	sensor.environment = fake.Environment
	sensor.args = func(m fixtures.Manifest, addr string) []string {
		return append([]string{
			"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(), "--web.listen-address=" + addr,
			"--no-collector.rdma", "--no-collector.probe", "--no-collector.container", "--no-collector.node", "--no-collector.runtime",
			"--no-collector.kubelet", "--no-collector.access", "--no-collector.kernellog",
		}, fake.Arguments...)
	}
	s.use = []exporter{sensor}
	return s, nil
}
