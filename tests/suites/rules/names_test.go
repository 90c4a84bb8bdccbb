// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/suites/rules/reference"
)

// known returns the metrics of gen/metrics.md and the series of the recording rules.
func known(t *testing.T) reference.Reference {
	t.Helper()
	ref, err := reference.Read("../../../gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := ref.Record(filepath.Join(root, "rules/recording.yaml")); err != nil {
		t.Error(err)
	}
	return ref
}

// TestNames: rules, tests and documents mention only existing metrics and labels.
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
	// A scraped pod adds these labels to all series, even if they do not belong to a container.
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
