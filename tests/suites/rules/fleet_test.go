// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// fleetQueries returns the queries of the page of all nodes by name. Strings replace their placeholders.
func fleetQueries(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../../../pkg/fleet/queries.promql")
	if err != nil {
		t.Fatal(err)
	}
	queries := map[string]string{}
	for paragraph := range strings.SplitSeq(string(text), "\n\n") {
		name, query, ok := strings.Cut(strings.TrimSpace(paragraph), "\n")
		if ok && !strings.HasPrefix(query, "#") {
			queries[strings.TrimPrefix(name, "# ")] = regexp.MustCompile(`\$\w+`).ReplaceAllString(query, `"x"`)
		}
	}
	if len(queries) < 35 {
		t.Fatalf("only %d queries", len(queries))
	}
	return queries
}

// TestFleetQueries: the page of all nodes reads only existing metrics, labels and recording rules.
func TestFleetQueries(t *testing.T) {
	ref := known(t)
	for name, query := range fleetQueries(t) {
		if _, err := ref.Check(query); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ref.Check(`max by (nothing) (gpu_info)`); err == nil {
		t.Error("a label that does not exist is accepted")
	}
}
