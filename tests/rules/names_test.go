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

// known returns the metrics of gen/metrics.md and the series of the recording rules.
func known(t *testing.T) reference.Reference {
	t.Helper()
	ref, err := reference.Read("../../gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	// The series that Prometheus makes of alerts have the labels of the alerts.
	ofAlerts := []string{
		"alertname", "alertstate", "job", "instance", "device", "port", "workload", "container_id", "source", "state",
		"guid", "switch", "uplink", "uplink_guid", "uplink_port",
	}
	ref["ALERTS"], ref["ALERTS_FOR_STATE"] = ofAlerts, ofAlerts
	for _, r := range rules(t) {
		if r.Record == "" {
			continue
		}
		// A rule that keeps its value reads its own series. The first part of its name lists their labels.
		level, _, _ := strings.Cut(r.Record, ":")
		ref[r.Record] = []string{"job"}
		for label := range strings.SplitSeq(level, "_") {
			if ref[r.Record] = append(ref[r.Record], label); label == "workload" {
				ref[r.Record] = append(ref[r.Record], "namespace", "pod", "container", "container_id")
			}
		}
		labels, err := ref.Check(ofPod.Replace(r.Expr))
		if err != nil {
			t.Errorf("%s: %v", r.Record, err)
		}
		ref[r.Record] = labels
	}
	return ref
}

// ofPod leaves out the labels that a scraped pod may add, where a rule aggregates over them.
var ofPod = strings.NewReplacer("(port, namespace, pod, container)", "(port)", "(namespace, pod, container)", "()")

// TestNames: rules, tests and documents mention only metrics and labels that exist.
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
	// A scraped pod adds these labels also to series that do not belong to a container.
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
