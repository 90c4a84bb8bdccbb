// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"path/filepath"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// The exporters by name, in the order of the table.
const (
	nodeExporter     = "node_exporter"
	nodeExporterLean = "node_exporter lean"
	rdmaExporter     = "rdma_exporter"
	floor            = "floor"
	floorGzip        = "floor gzip"
	accelscope       = "accelscope"
)

// missing says how to get a program that the bench does not build.
var missing = map[string]string{
	nodeExporter:     "install the Debian package prometheus-node-exporter",
	nodeExporterLean: "install the Debian package prometheus-node-exporter",
	rdmaExporter:     "name a binary by -rdma-exporter",
}

// exporters are all that can be measured. The path is "build:" and a package
// for our own programs, empty for one that this machine lacks.
func exporters(rdmaExporterPath string) []exporter {
	const module = "build:github.com/accelscope/accelscope"
	nodeExporterArgs := func(extra ...string) func(fixtures.Manifest, string) []string {
		return func(m fixtures.Manifest, addr string) []string {
			return append([]string{
				"--collector.disable-defaults", "--collector.infiniband",
				"--path.sysfs=" + m.SysFS(), "--web.listen-address=" + addr,
			}, extra...)
		}
	}
	floorArgs := func(extra ...string) func(fixtures.Manifest, string) []string {
		return func(m fixtures.Manifest, addr string) []string {
			return append([]string{"-path.sysfs=" + m.SysFS(), "-web.listen-address=" + addr}, extra...)
		}
	}
	nodeExporterPath := find("prometheus-node-exporter", "node_exporter")
	return []exporter{
		{name: nodeExporter, path: nodeExporterPath, args: nodeExporterArgs()},
		{
			name: nodeExporterLean, path: nodeExporterPath, identity: true,
			args: nodeExporterArgs("--web.disable-exporter-metrics"),
		},
		{name: rdmaExporter, path: rdmaExporterPath, args: func(m fixtures.Manifest, addr string) []string {
			return []string{
				"--sysfs-root=" + m.SysFS(), "--listen-address=" + addr,
				"--no-collector.ethtool", "--no-collector.optional-counters",
			}
		}},
		{name: floor, path: module + "/tests/bench/floor", identity: true, args: floorArgs()},
		{name: floorGzip, path: module + "/tests/bench/floor", args: floorArgs("-gzip")},
		{name: accelscope, path: module + "/cmd/accelscope", args: func(m fixtures.Manifest, addr string) []string {
			return []string{
				"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(),
				"--web.listen-address=" + addr,
			}
		}},
	}
}

// find returns the path of the first program that there is.
func find(names ...string) string {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			if path, err = filepath.EvalSymlinks(path); err == nil {
				return path
			}
		}
	}
	return ""
}
