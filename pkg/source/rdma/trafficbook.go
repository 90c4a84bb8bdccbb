// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"maps"
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
	live   map[string]map[trafficKey]bool // that counters count, by device
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

// counting says which totals the counters of a device count. What a read that broke
// off did not come to is as it was: the next one books it.
func (b *trafficBook) counting(device string, live map[trafficKey]bool, whole bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live == nil {
		b.live = map[string]map[trafficKey]bool{}
	}
	if !whole {
		maps.Copy(live, b.live[device])
	}
	b.live[device] = live
}

// facts are the totals. One that no counter counts at present rests: auto mode was
// switched off, its queue pairs are gone, or share a counter with those of others.
func (b *trafficBook) facts(there map[string]bool) []model.Traffic {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.live, func(device string, _ map[trafficKey]bool) bool { return !there[device] })
	all := make([]model.Traffic, 0, len(b.totals))
	for k, n := range b.totals {
		all = append(all, model.Traffic{
			Cgroup: k.cgroup, Device: k.device, Method: model.MethodQPCounter, Direction: k.direction, Bytes: n,
			Seen: model.Seen{Resting: !b.live[k.device][k]},
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
