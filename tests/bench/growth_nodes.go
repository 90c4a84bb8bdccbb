// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// compared is the number of containers for which the sensor has goals relative to cAdvisor; processesPerGPU belongs to
// the fake NVML.
const compared, processesPerGPU = pods * containersPerPod, 4

// growthExporters returns the exporters of the curves, with cAdvisor.
func growthExporters(ctx context.Context, use []exporter) ([]exporter, error) {
	if !slices.ContainsFunc(use, func(e exporter) bool { return e.name == accelscope }) {
		return nil, errors.New("the curves are those of accelscope")
	}
	path, err := buildCadvisor(ctx)
	return append(use, exporter{name: cadvisor, path: path, args: func(_ fixtures.Manifest, addr string) []string {
		return []string{"-web.listen-address=" + addr}
	}}), err
}

// growths are the nodes of the curves.
func growths(use []exporter) []growth {
	only := func(names ...string) (some []exporter) {
		for _, e := range use {
			if slices.Contains(names, e.name) {
				some = append(some, e)
			}
		}
		return some
	}
	return []growth{
		{"containers", []int{10, 100, compared, 1000}, func(ctx context.Context, dir string, n int) (site, error) {
			return containerSite(ctx, dir, n, only(accelscope, cadvisor))
		}},
		{"ports", []int{1, 10, 138}, func(_ context.Context, dir string, n int) (site, error) {
			return portSite(dir, n, only(accelscope, nodeExporter, floor))
		}},
		{"GPUs", []int{1, 8, 16}, func(ctx context.Context, dir string, n int) (site, error) {
			return gpuSite(ctx, dir, n, only(accelscope), only(nodeExporter, floor))
		}},
	}
}

// portSite is a fake node with n one-port HCAs: up to ten, then virtual functions of eight of these.
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

// gpuSite is a fake node with n GPUs of a fake NVML, which answers at once, and no HCA. The others read no GPUs.
func gpuSite(ctx context.Context, dir string, n int, use, others []exporter) (site, error) {
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
	s := site{Manifest: m, blind: others}
	for i := range n {
		s.shown = append(s.shown, nvml.UUID(i))
	}
	for _, e := range use {
		e.environment = fake.Environment
		e.args = func(m fixtures.Manifest, addr string) []string {
			return append([]string{
				"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(), "--web.listen-address=" + addr,
				"--no-collector.rdma", "--no-collector.probe", "--no-collector.container", "--no-collector.node", "--no-collector.runtime",
				"--no-collector.kubelet", "--no-collector.access", "--no-collector.kernellog",
			}, fake.Arguments...)
		}
		s.use = append(s.use, e)
	}
	return s, nil
}
