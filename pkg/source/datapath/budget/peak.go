// SPDX-License-Identifier: Apache-2.0

package budget

// peak is the highest value since forget was called twice.
type peak struct{ recent, before float64 }

func (p peak) highest() float64 { return max(p.recent, p.before) }

func (p peak) add(value float64) peak { return peak{max(p.recent, value), p.before} }

// forget makes the peaks forget what they had when it was called last.
func forget(peaks map[int]peak) {
	for pid, p := range peaks {
		peaks[pid] = peak{before: p.recent}
	}
}
