// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"slices"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxTotals is how many sums of cgroups are kept.
const maxTotals = 1 << 16

// trafficBook keeps what the counters of queue pairs told of each cgroup. A
// counter goes with its last queue pair, what it told stays until the cgroup is
// forgotten.
type trafficBook struct {
	mu     sync.Mutex
	totals map[trafficKey]uint64
}

type trafficKey struct {
	cgroup    uint64
	device    string
	direction model.Direction
}

func (b *trafficBook) add(k trafficKey, bytes uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.totals[k]; !ok && len(b.totals) >= maxTotals {
		return errTooMany
	}
	if b.totals == nil {
		b.totals = map[trafficKey]uint64{}
	}
	b.totals[k] += bytes
	return nil
}

func (b *trafficBook) facts() []model.Traffic {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]model.Traffic, 0, len(b.totals))
	for k, n := range b.totals {
		all = append(all, model.Traffic{
			Cgroup: k.cgroup, Device: k.device, Method: model.MethodQPCounter, Direction: k.direction, Bytes: n,
		})
	}
	slices.SortFunc(all, func(a, b model.Traffic) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Direction, b.Direction))
	})
	return all
}

func (b *trafficBook) forget(cgroups []uint64) {
	gone := make(map[uint64]bool, len(cgroups))
	for _, id := range cgroups {
		gone[id] = true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.totals {
		if gone[k.cgroup] {
			delete(b.totals, k)
		}
	}
}
