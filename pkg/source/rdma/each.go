// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"sync/atomic"

	"github.com/accelscope/accelscope/pkg/safely"
)

// each calls fn for 0 to n-1, at most inFlight at a time, and waits for all calls.
func each(n int, fn func(i int)) {
	var wg safely.Group
	var next atomic.Int64
	for range min(n, inFlight) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				fn(i)
			}
		})
	}
	wg.Wait()
}

// inFlight is the number of devices that are read at the same time.
const inFlight = 16
