// SPDX-License-Identifier: Apache-2.0

// Package rules tests deploy/prometheus: the rules with promtool, that every rule has a test that can fail, and that
// the files mention only exported metrics and labels. It is a separate module, because it needs Prometheus's parser and
// engine.
package rules

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

const (
	root        = "../../../deploy/prometheus"
	runbookBase = "https://github.com/accelscope/accelscope/blob/main/deploy/prometheus/runbooks/"
)

type rule struct {
	Record      string            `yaml:"record,omitempty"`
	Alert       string            `yaml:"alert,omitempty"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

type group struct {
	Name     string `yaml:"name"`
	Interval string `yaml:"interval,omitempty"`
	Rules    []rule `yaml:"rules"`
}

type ruleFile struct {
	Groups []group `yaml:"groups"`
}

type testFile struct {
	RuleFiles  []string    `yaml:"rule_files"`
	Evaluation string      `yaml:"evaluation_interval"`
	Order      []string    `yaml:"group_eval_order,omitempty"`
	Tests      []testGroup `yaml:"tests"`
}

type testGroup struct {
	Name     string `yaml:"name"`
	Interval string `yaml:"interval"`
	Series   []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []struct {
		Time     string      `yaml:"eval_time"`
		Name     string      `yaml:"alertname"`
		Expected []yaml.Node `yaml:"exp_alerts"`
	} `yaml:"alert_rule_test,omitempty"`
	Exprs []struct {
		Time     string      `yaml:"eval_time"`
		Expr     string      `yaml:"expr"`
		Expected []yaml.Node `yaml:"exp_samples"`
	} `yaml:"promql_expr_test,omitempty"`
}

func files(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("%s: no files (%v)", pattern, err)
	}
	return names
}

func load(t testing.TB, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// groups returns the groups of recording rules, on which others depend, and then the groups of alerts.
func groups(t testing.TB) []group {
	t.Helper()
	var all []group
	for _, name := range []string{"recording", "alerts"} {
		var f ruleFile
		load(t, filepath.Join(root, "rules", name+".yaml"), &f)
		all = append(all, f.Groups...)
	}
	return all
}

func rules(t testing.TB) []rule {
	t.Helper()
	var all []rule
	for _, g := range groups(t) {
		all = append(all, g.Rules...)
	}
	return all
}

func tests(t *testing.T) map[string]testFile {
	t.Helper()
	all := make(map[string]testFile)
	for _, name := range files(t, "tests/*.yaml") {
		var f testFile
		load(t, name, &f)
		all[name] = f
	}
	return all
}

func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "promtool", args...) //nolint:forbidigo // tests/tools/child is in another module
	cmd.SysProcAttr, cmd.WaitDelay = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}, 5*time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestCheck(t *testing.T) {
	if out, err := promtool(t, append([]string{"check", "rules"}, files(t, "rules/*.yaml")...)...); err != nil {
		t.Error(out)
	}
}

// TestUnit runs each file of tests with only the rules that it needs: promtool evaluates every rule at each minute of days. A file that
// reads which alerts fire needs all rules.
func TestUnit(t *testing.T) {
	dir, all := t.TempDir(), ruleFile{Groups: groups(t)}
	for name, f := range tests(t) {
		var used []string
		firing := false
		for _, g := range f.Tests {
			for _, a := range g.Alerts {
				used = append(used, a.Name)
			}
			for _, e := range g.Exprs {
				used = append(used, recorded.FindAllString(e.Expr, -1)...)
				firing = firing || strings.Contains(e.Expr, "ALERTS{")
			}
		}
		base := filepath.Base(name)
		t.Run(base, func(t *testing.T) {
			t.Parallel()
			path := name
			if !firing {
				path = needed(t, dir, base, all, f, used)
			}
			if out, err := promtool(t, "test", "rules", path); err != nil {
				t.Error(out)
			}
		})
	}
}

// TestOrder: every test file evaluates the groups in the order of the rule files. Without group_eval_order, promtool's
// order is random, and a rule may see another group's recording rules one evaluation late.
func TestOrder(t *testing.T) {
	var order []string
	for _, g := range groups(t) {
		order = append(order, g.Name)
	}
	for name, f := range tests(t) {
		if want := []string{"../rules/recording.yaml", "../rules/alerts.yaml"}; !slices.Equal(f.RuleFiles, want) {
			t.Errorf("%s: rule_files is %q, want %q", filepath.Base(name), f.RuleFiles, want)
		}
		if !slices.Equal(f.Order, order) {
			t.Errorf("%s: group_eval_order is %q, want %q", filepath.Base(name), f.Order, order)
		}
	}
}

// TestRulesHaveTests: every alert fires in a test and does not fire in another; every recording rule has a value in a
// test.
func TestRulesHaveTests(t *testing.T) {
	fires, silent, value := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range tests(t) {
		for _, g := range f.Tests {
			for _, a := range g.Alerts {
				if len(a.Expected) > 0 {
					fires[a.Name] = true
				} else {
					silent[a.Name] = true
				}
			}
			for _, e := range g.Exprs {
				if len(e.Expected) > 0 {
					value[recorded.FindString(e.Expr)] = true
				}
			}
		}
	}
	for _, r := range rules(t) {
		switch {
		case r.Record != "" && !value[r.Record]:
			t.Errorf("%s: no test has a value of it", r.Record)
		case r.Alert != "" && !fires[r.Alert]:
			t.Errorf("%s: fires in no test", r.Alert)
		case r.Alert != "" && !silent[r.Alert]:
			t.Errorf("%s: no test says when it does not fire", r.Alert)
		}
	}
}

var severities = []string{"critical", "warning", "info"}

var sections = []string{"## Meaning", "## Impact", "## Diagnosis", "## Mitigation", "## False positives"}

// TestDocumented: every alert has a severity, annotations, a runbook with all sections, and a line in the README or, with a
// verdict, in docs/verdicts.md; every runbook has an alert.
func TestDocumented(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	verdicts, err := os.ReadFile("../../../docs/verdicts.md")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, r := range rules(t) {
		name := r.Alert
		known[name] = true
		if name == "" {
			continue
		}
		severity := r.Labels["severity"]
		if !slices.Contains(severities, severity) {
			t.Errorf("%s: severity %q", name, severity)
		}
		judged := "- [`" + name + "`](../deploy/prometheus/runbooks/" + name + ".md): "
		if line := "| [`" + name + "`](runbooks/" + name + ".md) | " + severity + " |"; strings.Contains(string(readme), line) ==
			strings.Contains(string(verdicts), judged) {
			t.Errorf("want a line %q in README.md, or %q in docs/verdicts.md", line, judged)
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
			t.Errorf("%s: no summary, or no description", name)
		}
		if want := runbookBase + name + ".md"; r.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is not %s", name, want)
		}
		text, err := os.ReadFile(filepath.Join(root, "runbooks", name+".md"))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, s := range sections {
			if !strings.Contains(string(text), "\n"+s+"\n") {
				t.Errorf("runbooks/%s.md: no %q", name, s)
			}
		}
	}
	for _, f := range files(t, "runbooks/*.md") {
		if name := strings.TrimSuffix(filepath.Base(f), ".md"); !known[name] {
			t.Errorf("%s: there is no such alert", f)
		}
	}
}

// TestXIDs: the critical XIDs of the alerts and of gpu_problem are equal.
func TestXIDs(t *testing.T) {
	source, err := os.ReadFile("../../../pkg/source/nvidia/wire/xids.go")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`CriticalXIDs = \[\]uint64\{([0-9, ]+)\}`).FindSubmatch(source)
	if m == nil {
		t.Fatal("xids.go: no CriticalXIDs")
	}
	want := strings.ReplaceAll(string(m[1]), ", ", "|")
	n := 0
	for _, r := range rules(t) {
		if strings.Contains(r.Expr, "gpu_xid_last_timestamp_seconds{") {
			n++
			if !strings.Contains(r.Expr, `"`+want+`"`) {
				t.Errorf("%s: XIDs other than %s", r.Alert, want)
			}
		}
		if r.Alert == "GPUFault" && !strings.Contains(r.Expr, `"`+want+`|154|`) {
			t.Errorf("%s: XIDs other than %s and 154", r.Alert, want)
		}
	}
	if n != 2 {
		t.Errorf("%d alerts of XIDs", n)
	}
}
