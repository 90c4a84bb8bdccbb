// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"testing"
)

// TestManySlowFiles: on a node with maxSlow slow files, no further file is probed, whoever brings it.
func TestManySlowFiles(t *testing.T) {
	b := newBreaker()
	for i := range uint64(maxSlow) {
		if err := b.check(i, []uint64{i + 1}); err != nil {
			t.Fatalf("with %d slow files: %v", i, err)
		}
		b.open(i, []uint64{i + 1}, errors.New("slow"))
	}
	if err := b.check(maxSlow, []uint64{maxSlow + 1}); !errors.Is(err, ErrRefused) {
		t.Errorf("with %d slow files: %v", maxSlow, err)
	}
}
