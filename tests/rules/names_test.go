// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/rules/reference"
)

// known is what gen/metrics.md says, and what the recording rules make of it.
func known(t *testing.T) reference.Reference {
	t.Helper()
	ref, err := reference.Read("../../gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	// What Prometheus makes of alerts has their labels.
	ofAlerts := []string{
		"alertname", "alertstate", "job", "instance", "device", "port", "workload", "source", "state",
		"guid", "switch", "uplink", "uplink_guid", "uplink_port",
	}
	ref["ALERTS"], ref["ALERTS_FOR_STATE"] = ofAlerts, ofAlerts
	for _, r := range rules(t) {
		if r.Record == "" {
			continue
		}
		// These may be there, of a pod that is scraped.
		labels, err := ref.Check(strings.ReplaceAll(r.Expr, "(port, namespace, pod, container)", "(port)"))
		if err != nil {
			t.Errorf("%s: %v", r.Record, err)
		}
		ref[r.Record] = labels
	}
	return ref
}

// TestNames: rules, tests and documents speak of metrics and labels that there are.
func TestNames(t *testing.T) {
	ref := known(t)
	check := func(where, expr string) []string {
		labels, err := ref.Check(expr)
		if err != nil {
			t.Errorf("%s: %v", where, err)
		}
		return labels
	}
	inText := regexp.MustCompile(`\$labels\.(\w+)`)
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		labels := check(r.Alert, r.Expr)
		for _, text := range r.Annotations {
			for _, m := range inText.FindAllStringSubmatch(text, -1) {
				if !slices.Contains(labels, m[1]) {
					t.Errorf("%s: it has no label %s", r.Alert, m[1])
				}
			}
		}
	}
	// A pod that is scraped has these labels on what is not of a container, too.
	ofTarget := regexp.MustCompile(`,namespace="accelscope",pod="[^"]*",container="accelscope"`)
	for name, f := range tests(t) {
		for _, g := range f.Tests {
			for _, s := range g.Series {
				check(filepath.Base(name)+": "+g.Name, ofTarget.ReplaceAllString(s.Series, ""))
			}
			for _, e := range g.Exprs {
				check(filepath.Base(name)+": "+g.Name, e.Expr)
			}
		}
	}
	ref["accelscope_workload_info"] = append(ref["accelscope_workload_info"], "label_team") // an example of --workload.labels
	queries := regexp.MustCompile("(?s)```promql\n(.*?)```")
	documents := slices.Concat(files(t, "runbooks/*.md"), files(t, "README.md"), files(t, "../../README.md"), files(t, "../../docs/*.md"))
	for _, file := range documents {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range queries.FindAllStringSubmatch(string(text), -1) {
			for query := range strings.SplitSeq(strings.TrimSpace(m[1]), "\n\n") {
				check(filepath.Base(file), query)
			}
		}
	}
}
