// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"errors"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
)

// TestFullQPTotals: existing rows grow when the limit is reached. A new row is an error until
// Forget drops a cgroup.
func TestFullQPTotals(t *testing.T) {
	var all totals
	key := func(cgroup int) liveKey { return liveKey{model.CgroupID(cgroup), rowKey{"mlx5_0", model.Transmit}} }
	for i := range maxRows {
		if err := all.add(key(i+1), 1); err != nil {
			t.Fatalf("row %d: %v", i+1, err)
		}
	}
	if err := all.add(key(maxRows+1), 1); !errors.Is(err, nldev.ErrTooMany) {
		t.Errorf("one too many: %v", err)
	}
	if err := all.add(key(7), 4); err != nil {
		t.Errorf("one that has a row: %v", err)
	}
	rows := all.traffic(nil)
	if len(rows) != maxRows || rows[6].Cgroup != 7 || rows[6].Bytes != 5 {
		t.Errorf("%d rows, %+v among them", len(rows), rows[6])
	}
	all.forget([]model.CgroupID{9})
	if err := all.add(key(maxRows+1), 1); err != nil {
		t.Errorf("with room again: %v", err)
	}
}
