// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/engine"
)

// flagDefaults returns the default of each flag, or "", from the struct tags of pkg/config.
func flagDefaults(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../pkg/config/*.go")
	if err != nil {
		t.Fatal(err)
	}
	defaults, constants, variables := map[string]string{}, map[string]string{}, map[string]string{}
	text := func(e ast.Expr) string {
		switch e := e.(type) {
		case *ast.BasicLit:
			s, _ := strconv.Unquote(e.Value) // fails for a number
			return s
		case *ast.Ident:
			return constants[e.Name]
		}
		return ""
	}
	visit := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, v := range n.Values {
				constants[n.Names[i].Name] = text(v)
			}
		case *ast.KeyValueExpr: // of flagVars
			variables[text(n.Key)] = text(n.Value)
		case *ast.Field:
			if n.Tag != nil {
				tag := reflect.StructTag(text(n.Tag))
				defaults[tag.Get("name")] = tag.Get("default")
			}
		}
		return true
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, visit)
	}
	for name, value := range defaults {
		defaults[name] = os.Expand(value, func(v string) string { return variables[v] })
	}
	return defaults
}

// withDefaults returns the setup of a node with a kubelet and the default flags: enabled sources, and options of the
// exporter.
func withDefaults(t *testing.T, sources []engine.Registration) setup {
	t.Helper()
	defaults := flagDefaults(t)
	matches := func(flag string) func(string) bool {
		if defaults[flag] == "" {
			return nil
		}
		return regexp.MustCompile("^(?:" + defaults[flag] + ")$").MatchString
	}
	for _, flag := range []string{"metrics.compat", "metrics.histograms", "container.scope", "gpu.detail", "metrics.states"} {
		if defaults[flag] == "" {
			t.Fatalf("--%s has no default: %v", flag, defaults)
		}
	}
	forms := strings.Split(defaults["metrics.histograms"], ",")
	s := setup{
		Compat: strings.Split(defaults["metrics.compat"], ","), Node: "gpu01", Scope: Scope(defaults["container.scope"]),
		GPUDetail: defaults["gpu.detail"] == "full", AllStates: defaults["metrics.states"] == "all",
		Excludes:          matches("metrics.exclude"),
		ExcludesInterface: matches("collector.node.network-exclude"),
		Forms:             Forms{NoClassic: !slices.Contains(forms, "classic"), NoNative: !slices.Contains(forms, "native")},
	}
	if s.Scope == "auto" {
		s.Scope = ScopeAccelerated
	}
	if defaults["web.disable-exporter-metrics"] != "true" {
		s.Compat = append(s.Compat, Process)
	}
	// The source NAME belongs to the flag --collector.NAME.
	var known []string
	for _, r := range sources {
		name := r.Source.Name()
		if slices.Contains([]string{"nvidia", "amdgpu", "intel"}, name) {
			name = "gpu"
		}
		value, ok := defaults["collector."+name]
		if !ok {
			t.Errorf("there is no flag --collector.%s", name)
		}
		known = append(known, name)
		if value == "true" {
			s.Sources = append(s.Sources, r)
		}
	}
	for flag, value := range defaults {
		if name, ok := strings.CutPrefix(flag, "collector."); ok && value == "true" && !slices.Contains(known, name) {
			t.Errorf("the node lacks the source of --%s", flag)
		}
	}
	for flag, off := range map[string]string{
		"rdma.datapath": "off", "rdma.qp-counters": "off", "gpu.allocation-failures": "", "events.otlp-endpoint": "", "link.mlxlink": "",
		"link.module-lanes": "", "link.module-thresholds": "", "workload.labels": "",
	} {
		if value, ok := defaults[flag]; !ok || value != off {
			t.Errorf("--%s is %q by default: the node lacks its facts", flag, value)
		}
	}
	return s
}
