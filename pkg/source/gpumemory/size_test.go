// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestRoom: 1,000 workloads that call all functions of a library have room in the map, and so has one in its share.
func TestRoom(t *testing.T) {
	of := map[model.Vendor]int{}
	for _, api := range apis {
		of[api.Vendor]++
	}
	for vendor, n := range of {
		if 1000*n > defaultMaxEntries || n > defaultMaxEntries/share {
			t.Errorf("a workload has %d entries for %s, the map has %d", n, vendor, defaultMaxEntries)
		}
	}
	if len(of) != 2 {
		t.Errorf("%d vendors", len(of))
	}
}
