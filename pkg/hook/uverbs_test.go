// SPDX-License-Identifier: Apache-2.0

package hook

import "testing"

// TestRanges: the device numbers of uverbs devices, by major.
func TestRanges(t *testing.T) {
	const fixed, dynamic = 231 << 20, 506 << 20
	for _, c := range []struct {
		numbers     []uint32
		first, last [2]uint32
		fails       bool
	}{
		{nil, [2]uint32{}, [2]uint32{}, false},
		{[]uint32{fixed + 193}, [2]uint32{fixed + 193}, [2]uint32{fixed + 193}, false},
		{[]uint32{dynamic + 1, fixed + 195, fixed, dynamic}, [2]uint32{fixed, dynamic}, [2]uint32{fixed + 195, dynamic + 1}, false},
		{[]uint32{1 << 20, 2 << 20, 3 << 20}, [2]uint32{}, [2]uint32{}, true},
	} {
		first, last, err := ranges(c.numbers)
		if (err != nil) != c.fails || err == nil && (first != c.first || last != c.last) {
			t.Errorf("%v: %v, %v, %v", c.numbers, first, last, err)
		}
	}
}
