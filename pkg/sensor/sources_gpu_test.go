// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestGPUConstructors compares the vendors that have a constructor with the rows that have a source.
func TestGPUConstructors(t *testing.T) {
	var made, rows []string
	for _, c := range gpuConstructors {
		made = append(made, c.vendor.Row().Source)
	}
	for _, v := range model.GPUVendors {
		if v.Source != "" {
			rows = append(rows, v.Source)
		}
	}
	slices.Sort(made)
	slices.Sort(rows)
	if !slices.Equal(made, rows) {
		t.Errorf("there are constructors for %v, and rows for %v", made, rows)
	}
}
