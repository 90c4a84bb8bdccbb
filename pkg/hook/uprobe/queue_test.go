// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"fmt"
	"slices"
	"testing"
)

// TestQueue: owners take turns, in the order in which their operations came.
func TestQueue(t *testing.T) {
	var q queue
	for i, owners := range [][]uint64{{1}, {1}, {1}, {2, 1}, {3}, {2}, {}} {
		q.waiting = append(q.waiting, &Operation{Source: fmt.Sprint(i), Owners: owners})
	}
	var got []string
	for o := q.next(); o != nil; o = q.next() {
		got = append(got, o.Source)
	}
	if want := []string{"0", "3", "4", "6", "1", "5", "2"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if q.last != nil {
		t.Error("owners are kept while nothing waits")
	}
}
