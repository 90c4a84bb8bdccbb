// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCommitted: the committed dashboards are equal to the generated ones.
func TestCommitted(t *testing.T) {
	files, err := filepath.Glob("../../../../deploy/grafana/*.json")
	if err != nil {
		t.Fatal(err)
	}
	dashboards := all()
	if len(files) != len(dashboards) {
		t.Errorf("%d files, %d dashboards", len(files), len(dashboards))
	}
	for name, d := range dashboards {
		want, err := d.encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join("../../../../deploy/grafana", name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s is not what its table makes of it: go run ./tests/tools/dashboards/generate", name)
		}
	}
}
