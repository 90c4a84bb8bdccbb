// SPDX-License-Identifier: Apache-2.0

package rdma

import "sync"

// each calls fn for 0 to n-1, at most inFlight at a time, and waits for all of them.
func each(n int, fn func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, inFlight)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			fn(i)
			<-slots
		})
	}
	wg.Wait()
}

// inFlight is the number of devices that are read at the same time.
const inFlight = 16
