// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxQPTotals is how many sums of cgroups are kept.
const maxQPTotals = 1 << 16

// qpTotals is the bytes that counters of queue pairs counted for each cgroup. A counter goes
// with its last queue pair; its bytes stay until the cgroup is forgotten.
type qpTotals struct {
	mu     sync.Mutex
	totals model.Totals[qpKey, model.Count, *model.Count]
	live   map[string]map[liveKey]bool // that counters count now, by device
}

type qpKey struct {
	device    string
	direction model.Direction
}

type liveKey struct {
	cgroup model.CgroupID
	qpKey
}

func (t *qpTotals) add(k liveKey, bytes uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.Limit = maxQPTotals
	if !t.totals.Add(k.cgroup, k.qpKey, model.Count(bytes)) {
		return errTooMany
	}
	return nil
}

// setLive notes what the counters of a device count. After a read that was not whole the
// rest is as before: the next read adds it.
func (t *qpTotals) setLive(device string, live map[liveKey]bool, whole bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[string]map[liveKey]bool{}
	}
	if !whole {
		maps.Copy(live, t.live[device])
	}
	t.live[device] = live
}

// facts returns the sums. A sum that no counter counts at present rests: auto mode was
// switched off, its queue pairs are gone, or they share a counter with those of others.
func (t *qpTotals) facts(there map[string]bool) []model.Traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.live, func(device string, _ map[liveKey]bool) bool { return !there[device] })
	rows := t.totals.AppendTo(nil)
	all := make([]model.Traffic, 0, len(rows))
	for _, r := range rows {
		all = append(all, model.Traffic{
			Cgroup: r.Cgroup, Device: r.Key.device, Method: model.MethodQPCounter, Direction: r.Key.direction, Bytes: uint64(r.Value),
			Seen: model.Seen{Resting: !t.live[r.Key.device][liveKey{r.Cgroup, r.Key}]},
		})
	}
	slices.SortFunc(all, func(a, b model.Traffic) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Direction, b.Direction))
	})
	return all
}

func (t *qpTotals) forget(ids []model.CgroupID) {
	gone := make(map[model.CgroupID]bool, len(ids))
	for _, id := range ids {
		gone[id] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.Forget(gone)
}
