// SPDX-License-Identifier: Apache-2.0

package identity

import "github.com/accelscope/accelscope/pkg/model"

// maxMissedRefreshes is for how many refreshes an owner is kept without a known cgroup.
const maxMissedRefreshes = 10

// Forget drops cgroups.
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

// Expire returns the owners that are absent for more than maxMissedRefreshes refreshes: they
// have no known cgroup, no assigned device, and are no pod with such an owner. Their labels
// stay while a refresh lists them. Expire is called once at the end of each refresh.
func (t *Table) Expire(assigned []OwnerID) []OwnerID {
	t.mu.Lock()
	defer t.mu.Unlock()
	present := make([]bool, len(t.owners))
	for _, id := range assigned {
		present[id] = true
	}
	pods := map[Owner]bool{} // of owners that are present
	for id, o := range t.owners {
		if o != nil && (present[id] || o.cgroups > 0) {
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
