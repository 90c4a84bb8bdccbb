// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// queriesOf returns the words in the rules and dashboards, which include the names of metrics.
func queriesOf(t *testing.T) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	word := regexp.MustCompile(`[a-zA-Z_][a-zA-Z0-9_]*`)
	for _, pattern := range []string{"../../deploy/prometheus/rules/*.yaml", "../../deploy/grafana/*.json"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range word.FindAll(text, -1) {
				words[string(w)] = true
			}
		}
	}
	return words
}
