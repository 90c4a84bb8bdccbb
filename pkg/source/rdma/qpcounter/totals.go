// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
)

const maxRows = 1 << 16

// totals holds the bytes that queue pair counters counted for each cgroup. A counter ends
// with its last queue pair; its bytes stay until Forget drops the cgroup.
type totals struct {
	mu     sync.Mutex
	totals model.Totals[rowKey, model.Count, *model.Count]
	live   map[string]map[liveKey]uint64 // queue pairs of the rows with a live counter, by device
}

type rowKey struct {
	device    string
	direction model.Direction
}

type liveKey struct {
	cgroup model.CgroupID
	rowKey
}

func (t *totals) add(k liveKey, bytes uint64) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.Limit = maxRows
	if !t.totals.Add(k.cgroup, k.rowKey, model.Count(bytes)) {
		return nldev.ErrTooMany
	}
	return nil
}

// setLive sets the rows of a device that have a live counter. After an incomplete read the previous rows stay live.
func (t *totals) setLive(device string, live map[liveKey]uint64, complete bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[string]map[liveKey]uint64{}
	}
	if !complete {
		maps.Copy(live, t.live[device])
	}
	t.live[device] = live
}

// traffic returns the rows. A row without a live counter is resting: auto mode was switched off, its queue pairs ended,
// or they share a counter with queue pairs of other cgroups.
func (t *totals) traffic(there map[string]bool) []model.Traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.live, func(device string, _ map[liveKey]uint64) bool { return !there[device] })
	rows := t.totals.AppendTo(nil)
	all := make([]model.Traffic, 0, len(rows))
	for _, r := range rows {
		qps, live := t.live[r.Key.device][liveKey{r.Cgroup, r.Key}]
		all = append(all, model.Traffic{
			Cgroup: r.Cgroup, Device: r.Key.device, Method: model.MethodQPCounter, Direction: r.Key.direction, Bytes: uint64(r.Value),
			QPs: qps, Resting: !live,
		})
	}
	slices.SortFunc(all, func(a, b model.Traffic) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Direction, b.Direction))
	})
	return all
}

func (t *totals) forget(ids []model.CgroupID) {
	ended := make(map[model.CgroupID]bool, len(ids))
	for _, id := range ids {
		ended[id] = true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.totals.Forget(ended)
}
