// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestXIDsAreBounded(t *testing.T) {
	x := NewXIDs()
	x.Listen("GPU-a")
	for code := range uint64(10 * maxXIDs) {
		x.Add("GPU-a", code+1, time.Now())
	}
	x.Add("GPU-a", 1, time.Now())
	got := x.Of("GPU-a")
	var sum, first uint64
	for _, c := range got {
		sum += c.Count
		if c.Code == 1 {
			first = c.Count
		}
	}
	if len(got) != maxXIDs+1 || sum != 10*maxXIDs+1 || first != 2 ||
		!slices.IsSortedFunc(got, func(a, b model.XID) int { return int(a.Code) - int(b.Code) }) {
		t.Errorf("%d codes, %d XIDs", len(got), sum)
	}
}
