// SPDX-License-Identifier: Apache-2.0

package drm

// Counter is a cumulative value that the kernel may briefly report lower.
type Counter struct {
	Value uint64
	low   bool // the last reading was lower than Value
}

// Next returns the counter after a reading, and its growth. After a lower reading it keeps the higher value. A second
// lower reading is a reset, for example because a client or process number was reused.
func (c Counter) Next(value uint64) (Counter, uint64) {
	switch {
	case value >= c.Value:
		return Counter{Value: value}, value - c.Value
	case !c.low:
		return Counter{Value: c.Value, low: true}, 0
	}
	return Counter{Value: value}, 0
}
