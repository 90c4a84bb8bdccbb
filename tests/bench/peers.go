// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// The exporters by name, in the order of the table.
const (
	nodeExporter     = "node_exporter"
	nodeExporterLean = "node_exporter lean"
	rdmaExporter     = "rdma_exporter"
	floor            = "floor"
	floorGzip        = "floor gzip"
	accelscope       = "accelscope"
	before           = "before"   // another accelscope
	cadvisor         = "cAdvisor" // only for the growth of containers
)

// A current node_exporter: distributions' versions do not read hw_counters, and do half of the work.
const nodeExporterModule = "github.com/prometheus/node_exporter@v1.12.1"

// paths are the programs to measure; empty for a program that this machine lacks, or of ours that is built first.
type paths struct{ accelscope, before, nodeExporter, rdmaExporter, floor string }

// missing describes how to install them.
var missing = map[string]string{
	nodeExporter:     "install the Debian package prometheus-node-exporter",
	nodeExporterLean: "install the Debian package prometheus-node-exporter",
	rdmaExporter:     "name a binary of github.com/yuuki/rdma_exporter by -rdma-exporter",
}

// findNodeExporter builds node_exporter in the user's cache if permitted, otherwise it uses the distribution's.
func findNodeExporter(ctx context.Context, mayBuild bool) string {
	if cache, err := os.UserCacheDir(); err == nil && mayBuild {
		dir := filepath.Join(cache, "accelscope-bench", filepath.Base(nodeExporterModule))
		path := filepath.Join(dir, "node_exporter")
		if _, err := os.Stat(path); err == nil {
			return path
		}
		progress("building " + nodeExporterModule)
		cmd := child.Command(ctx, "go", "install", "-trimpath", "-ldflags=-s -w", nodeExporterModule)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir)
		msg, err := cmd.CombinedOutput()
		if err == nil {
			return path
		}
		progress("%v\n%s", err, msg)
	}
	for _, name := range []string{"prometheus-node-exporter", "node_exporter"} {
		if path, err := exec.LookPath(name); err == nil {
			progress("node_exporter is %s: if it is old it does not read hw_counters", path)
			return path
		}
	}
	return ""
}

// buildCadvisor builds cAdvisor from the neighboring module in the user's cache.
func buildCadvisor(ctx context.Context) (string, error) {
	const module = "github.com/accelscope/accelscope/tests/bench"
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir, err := child.Command(ctx, "go", "list", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", module, err)
	}
	path := filepath.Join(cache, "accelscope-bench", "cadvisor")
	if err := build(ctx, filepath.Join(strings.TrimSpace(string(dir)), "cadvisor"), ".", path+".linked"); err != nil {
		return "", err
	}
	return path, install(path+".linked", path)
}

// exporters are all exporters that can be measured. Our programs have the path "build:" and a package.
func exporters(use paths) []exporter {
	const module = "build:github.com/accelscope/accelscope"
	if use.accelscope == "" {
		use.accelscope = module + "/cmd/accelscope"
	}
	if use.floor == "" {
		use.floor = module + "/tests/bench/floor"
	}
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
	all := []exporter{
		{name: nodeExporter, path: use.nodeExporter, args: nodeExporterArgs()},
		{
			name: nodeExporterLean, path: use.nodeExporter, identity: true,
			args: nodeExporterArgs("--web.disable-exporter-metrics"),
		},
		{name: rdmaExporter, path: use.rdmaExporter, args: func(m fixtures.Manifest, addr string) []string {
			return []string{
				"--sysfs-root=" + m.SysFS(), "--listen-address=" + addr,
				"--no-collector.ethtool", "--no-collector.optional-counters",
			}
		}},
		{name: floor, path: use.floor, identity: true, args: floorArgs()},
		{name: floorGzip, path: use.floor, args: floorArgs("-gzip")},
		{name: accelscope, path: use.accelscope, args: func(m fixtures.Manifest, addr string) []string {
			return []string{
				"--path.sysfs=" + m.SysFS(), "--path.procfs=" + m.ProcFS(), "--path.cgroup=" + m.CgroupFS(),
				"--web.listen-address=" + addr,
				// Functions that the other exporters lack; see measurePods and measureGPUs. access is on, as users have it.
				"--no-collector.gpu", "--no-collector.container", "--no-collector.node", "--no-collector.runtime", "--no-collector.kubelet",
			}
		}},
	}
	if use.before != "" {
		all = append(all, exporter{name: before, path: use.before, args: all[len(all)-1].args})
	}
	return all
}
