// SPDX-License-Identifier: Apache-2.0

// Command layers checks that every depguard rule of .golangci.yml rejects an import: it runs golangci-lint on a module
// with this project's paths, in which a file breaks each rule. It also checks that the packages in the rules exist.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const module = "github.com/accelscope/accelscope/"

// A plant is a file that breaks a rule.
type plant struct{ file, imports string }

// plants has the rejected import of each rule: of a higher layer, so that the module has no import cycle.
var plants = map[string]plant{
	"hang":                    {"pkg/hang/planted.go", module + "pkg/model"},
	"child":                   {"pkg/child/planted.go", module + "pkg/hang"},
	"safely":                  {"pkg/safely/planted.go", module + "pkg/model"},
	"format":                  {"pkg/format/planted.go", module + "pkg/model"},
	"procfile":                {"pkg/procfile/planted.go", module + "pkg/model"},
	"mountinfo":               {"pkg/mountinfo/planted.go", module + "pkg/model"},
	"boundedfile":             {"pkg/boundedfile/planted.go", module + "pkg/model"},
	"drm":                     {"pkg/drm/planted.go", module + "pkg/engine"},
	"gpuuse":                  {"pkg/gpuuse/planted.go", module + "pkg/engine"},
	"hotplug":                 {"pkg/hotplug/planted.go", module + "pkg/model"},
	"netlink":                 {"pkg/netlink/planted.go", module + "pkg/model"},
	"model":                   {"pkg/model/planted.go", module + "pkg/identity"},
	"identity":                {"pkg/identity/planted.go", module + "pkg/attribution"},
	"attribution":             {"pkg/attribution/planted.go", module + "pkg/engine"},
	"traffic":                 {"pkg/attribution/traffic/planted.go", module + "pkg/engine"},
	"verdict":                 {"pkg/verdict/planted.go", module + "pkg/engine"},
	"inventory":               {"pkg/inventory/planted.go", module + "pkg/engine"},
	"placement":               {"pkg/placement/planted.go", module + "pkg/engine"},
	"hook":                    {"pkg/hook/planted.go", module + "pkg/engine"},
	"source":                  {"pkg/source/later/planted.go", module + "pkg/source/rdma"},
	"source-access":           {"pkg/source/access/planted.go", module + "pkg/engine"},
	"source-amdgpu":           {"pkg/source/amdgpu/planted.go", module + "pkg/engine"},
	"source-cgroup":           {"pkg/source/cgroup/planted.go", module + "pkg/engine"},
	"source-cgroup-slurm":     {"pkg/source/cgroup/slurm/planted.go", module + "pkg/engine"},
	"source-cgroup-test":      {"pkg/source/cgroup/planted_test.go", module + "pkg/source/rdma"},
	"source-collective":       {"pkg/source/collective/planted.go", module + "pkg/engine"},
	"source-collective-test":  {"pkg/source/collective/planted_test.go", module + "pkg/source/rdma"},
	"source-container":        {"pkg/source/container/planted.go", module + "pkg/engine"},
	"source-datapath":         {"pkg/source/datapath/planted.go", module + "pkg/engine"},
	"source-datapath-locate":  {"pkg/source/datapath/locate/planted.go", module + "pkg/engine"},
	"source-datapath-returns": {"pkg/source/datapath/returnprobe/planted.go", module + "pkg/engine"},
	"source-datapath-test":    {"pkg/source/datapath/planted_test.go", module + "pkg/source/rdma"},
	"source-drm":              {"pkg/source/drm/planted.go", module + "pkg/engine"},
	"source-fabric":           {"pkg/source/fabric/planted.go", module + "pkg/engine"},
	"source-link":             {"pkg/source/link/planted.go", module + "pkg/engine"},
	"source-link-test":        {"pkg/source/link/planted_test.go", module + "pkg/source/rdma"},
	"source-link-module":      {"pkg/source/link/module/planted.go", module + "pkg/model"},
	"source-gpumemory":        {"pkg/source/gpumemory/planted.go", module + "pkg/engine"},
	"source-gpumemory-test":   {"pkg/source/gpumemory/planted_test.go", module + "pkg/source/rdma"},
	"source-library":          {"pkg/source/library/planted.go", module + "pkg/engine"},
	"source-library-test":     {"pkg/source/library/planted_test.go", module + "pkg/source/rdma"},
	"source-kubelet":          {"pkg/source/kubelet/planted.go", module + "pkg/engine"},
	"source-node":             {"pkg/source/node/planted.go", module + "pkg/engine"},
	"source-nvidia":           {"pkg/source/nvidia/planted.go", module + "pkg/engine"},
	"source-nvidia-test":      {"pkg/source/nvidia/planted_test.go", module + "pkg/source/rdma"},
	"source-nvidia-nvml":      {"pkg/source/nvidia/nvml/planted.go", module + "pkg/engine"},
	"source-nvidia-nvml-test": {"pkg/source/nvidia/nvml/planted_test.go", module + "pkg/source/rdma"},
	"source-nvidia-wire":      {"pkg/source/nvidia/wire/planted.go", module + "pkg/engine"},
	"source-probe":            {"pkg/source/probe/planted.go", module + "pkg/engine"},
	"source-rdma":             {"pkg/source/rdma/planted.go", module + "pkg/engine"},
	"source-rdma-test":        {"pkg/source/rdma/nldev/planted_test.go", module + "pkg/source/pci"},
	"source-rdma-nldev":       {"pkg/source/rdma/nldev/planted.go", module + "pkg/engine"},
	"source-rdma-qpcounter":   {"pkg/source/rdma/qpcounter/planted.go", module + "pkg/engine"},
	"source-rdma-sysfs":       {"pkg/source/rdma/sysfs/planted.go", module + "pkg/engine"},
	"source-rdma-vf":          {"pkg/source/rdma/vf/planted.go", module + "pkg/engine"},
	"source-runtime":          {"pkg/source/runtime/planted.go", module + "pkg/engine"},
	"engine":                  {"pkg/engine/planted.go", module + "pkg/metrics"},
	"exposition":              {"pkg/exposition/planted.go", module + "pkg/metrics"},
	"metrics":                 {"pkg/metrics/planted.go", module + "pkg/api"},
	"event":                   {"pkg/event/planted.go", module + "pkg/api"},
	"api":                     {"pkg/api/planted.go", module + "pkg/top"},
	"overview":                {"pkg/overview/planted.go", module + "pkg/engine"},
	"fleet":                   {"pkg/fleet/planted.go", module + "pkg/model"},
	"matrix":                  {"pkg/fleet/matrix/planted.go", module + "pkg/engine"},
	"web":                     {"pkg/web/planted.go", module + "pkg/engine"},
	"fleet-page":              {"pkg/fleet/page/planted.go", module + "pkg/engine"},
	"pages":                   {"pkg/pages/planted.go", module + "pkg/engine"},
	"taint":                   {"pkg/taint/planted.go", module + "pkg/engine"},
	"cluster":                 {"pkg/taint/cluster/planted.go", module + "pkg/fleet"},
	"top":                     {"pkg/top/planted.go", module + "gen"},
	"config":                  {"pkg/config/planted.go", module + "pkg/engine"},
	"program":                 {"pkg/program/planted.go", module + "pkg/model"},
	"httpserver":              {"pkg/httpserver/planted.go", module + "pkg/engine"},
	"client":                  {"pkg/client/planted.go", module + "pkg/engine"},
	"ras":                     {"pkg/ras/planted.go", module + "pkg/engine"},
	"control":                 {"pkg/control/planted.go", module + "pkg/source/nvidia"},
	"doctor":                  {"pkg/doctor/planted.go", module + "pkg/metrics"},
	"sensor":                  {"pkg/sensor/planted.go", module + "pkg/top"},
	"cmd-accelscope":          {"cmd/accelscope/planted.go", module + "pkg/top"},
	"cmd-accelscope-health":   {"cmd/accelscope-health/planted.go", module + "pkg/config"},
	"cmd-accelscope-tool":     {"cmd/accelscope-tool/planted.go", module + "pkg/sensor"},
	"everywhere":              {"pkg/later/planted.go", module + "cmd/accelscope"},
}

// rules is the checked part of .golangci.yml.
type rules struct {
	Linters struct {
		Settings struct {
			Depguard struct {
				Rules map[string]struct {
					Files []string
					Allow []string
					Deny  []struct{ Pkg string }
				}
			}
		}
	}
}

func main() {
	linter := flag.String("linter", "golangci-lint", "golangci-lint to run")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if err := run(ctx, *linter); err != nil {
		fmt.Fprintln(os.Stderr, "layers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, linter string) error {
	const name = ".golangci.yml"
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	var config rules
	if err := yaml.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	dir, err := os.MkdirTemp("", "accelscope-layers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	if err := errors.Join(
		write(dir, name, string(text)),
		write(dir, "go.mod", "module "+strings.TrimSuffix(module, "/")+"\n\ngo 1.25\n"),
		write(dir, "gen/gen.go", goFile("gen", "")),
		write(dir, "cmd/accelscope/accelscope.go", goFile("accelscope", "")),
	); err != nil {
		return err
	}
	for _, p := range plants {
		if err := write(dir, p.file, goFile(path.Base(path.Dir(p.file)), p.imports)); err != nil {
			return err
		}
	}
	cmd := child.Command(ctx, linter, "run", "--enable-only", "depguard", "--max-same-issues", "0",
		"--max-issues-per-linter", "0", "--show-stats=false", "--uniq-by-line=false", "./...")
	cmd.Dir = dir
	out, err := cmd.CombinedOutput() // the status is that issues were found
	var failed []error
	if !strings.Contains(string(out), "(depguard)") || strings.Contains(string(out), "(typecheck)") {
		return fmt.Errorf("golangci-lint: %w:\n%s", err, out)
	}
	for rule, r := range config.Linters.Settings.Depguard.Rules {
		p, ok := plants[rule]
		if !ok {
			failed = append(failed, fmt.Errorf("no import is planted for the rule %s", rule))
			continue
		}
		found := regexp.MustCompile(regexp.QuoteMeta(p.file) + `:.*` +
			regexp.QuoteMeta(fmt.Sprintf("import '%s' is not allowed from list '%s'", p.imports, rule)))
		if !found.Match(out) {
			failed = append(failed, fmt.Errorf("the rule %s does not reject %s in %s", rule, p.imports, p.file))
		}
		named := r.Allow
		for _, d := range r.Deny {
			named = append(named, d.Pkg)
		}
		for _, pkg := range named {
			rest, ours := strings.CutPrefix(pkg+"/", module)
			if _, missing := os.Stat("./" + rest); ours && missing != nil {
				failed = append(failed, fmt.Errorf("the rule %s names %s: %w", rule, pkg, missing))
			}
		}
	}
	return errors.Join(failed...)
}

func write(dir, name, text string) error {
	name = filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o644)
}

// goFile is a file of a package with at most one import.
func goFile(name, imports string) string {
	text := "package " + strings.ReplaceAll(name, "-", "") + "\n"
	if imports != "" {
		text += fmt.Sprintf("\nimport _ %q\n", imports)
	}
	return text
}
