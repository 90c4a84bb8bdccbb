// SPDX-License-Identifier: Apache-2.0

package amdgpu

import "time"

// A guard runs what may never return, for one process at a time, and not for one
// for which it has not returned. What has to wait in the kernel holds a thread each.
type guard struct {
	wait  time.Duration
	limit int
	out   map[int]chan struct{}
}

// run says whether f has run. When it has not, f may still do so, later.
func (g *guard) run(pid int, f func()) bool {
	for id, done := range g.out {
		select {
		case <-done:
			delete(g.out, id)
		default:
		}
	}
	if g.out[pid] != nil || len(g.out) >= g.limit {
		return false
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(g.wait)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		g.out[pid] = done
		return false
	}
}
