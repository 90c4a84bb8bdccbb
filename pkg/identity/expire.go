// SPDX-License-Identifier: Apache-2.0

package identity

import "github.com/accelscope/accelscope/pkg/model"

// maxMissedRefreshes is the number of refreshes for which an owner without a known cgroup is
// kept.
const maxMissedRefreshes = 10

// Forget removes cgroups that have ended.
func (t *Table) Forget(ids []model.CgroupID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		if c := t.cgroups[id]; c != nil {
			t.owners[c.owner].cgroups--
			delete(t.cgroups, id)
		}
	}
}

// Expire returns the owners that were absent for more than maxMissedRefreshes refreshes: they have no known cgroup, no
// assigned device, are no kernel user of this refresh, and are not the pod of a present owner. Their labels stay as
// long as a refresh lists them. Expire is called once at the end of each refresh.
func (t *Table) Expire(assigned []OwnerID) []OwnerID {
	t.mu.Lock()
	defer t.mu.Unlock()
	present := make([]bool, len(t.owners))
	for _, id := range assigned {
		present[id] = true
	}
	pods := map[Owner]bool{} // of present owners
	for id, o := range t.owners {
		if o != nil && (present[id] || o.cgroups > 0 || o.info.Runtime == kernelRuntime && o.seen == t.round) {
			present[id] = true
			if o.labels.Pod != "" {
				pods[podOf(&o.labels)] = true
			}
		}
	}
	var expired []OwnerID
	for i, o := range t.owners {
		id := OwnerID(i)
		switch {
		case id == Unattributed || o == nil:
		case present[i] || o.labels.Pod != "" && o.labels.Container == "" && pods[podOf(&o.labels)]:
			o.missed, o.expired = 0, false
		case o.expired:
			if o.seen != t.round {
				t.remove(id)
			}
		default:
			if o.missed++; o.missed > maxMissedRefreshes {
				o.expired = true
				expired = append(expired, id)
			}
		}
	}
	return expired
}

func podOf(o *Owner) Owner { return Owner{Namespace: o.Namespace, Pod: o.Pod} }
