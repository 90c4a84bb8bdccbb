// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// adoptedTypes are the types of objects that RDMA netlink lists and that are adopted.
var adoptedTypes = []model.ObjectType{model.PD, model.CQ, model.QP, model.MR, model.Context, model.SRQ, model.CMID}

// The interval between adoptions of one type. It doubles if an adoption follows the previous as early as allowed (for
// example with a full map), fails, or changes nothing: a dump of queue pairs costs a firmware command per queue pair.
const (
	reconcileInterval    = time.Minute
	maxReconcileInterval = time.Hour
)

// adoption is the state of the adoption of one type of object.
type adoption struct {
	lost     uint64 // objects of the type, at the last adoption
	at       time.Time
	interval time.Duration // the shortest time until the next adoption
	failed   bool
	differs  bool // a comparison found a difference
}

func (a adoption) due(now time.Time, lost uint64) bool {
	return (a.failed || a.differs || a.lost != lost) && now.Sub(a.at) >= a.interval
}

func (a adoption) next(now time.Time, lost uint64, changed, failed bool) adoption {
	n := adoption{lost: lost, at: now, interval: reconcileInterval, failed: failed}
	first := a.at.IsZero()
	if failed || !first && (!changed || now.Sub(a.at) < 2*a.interval) {
		n.interval = min(2*max(a.interval, reconcileInterval), maxReconcileInterval)
	}
	return n
}

func (r *reconciler) dueTypes(now time.Time) []model.ObjectType {
	if r.objects == nil {
		return nil
	}
	var due []model.ObjectType
	lost := r.lost()
	for _, t := range adoptedTypes {
		if r.adoptions[t].due(now, lost[t]) {
			due = append(due, t)
		}
	}
	return due
}

// lost returns the number of objects of each type that did not fit into the map, plus the programs skipped at the last
// read, which may have been of any type. An object with a missed return is not lost: the programs count at the entry.
func (r *reconciler) lost() map[model.ObjectType]uint64 {
	r.mu.Lock()
	skipped := r.skipped
	r.mu.Unlock()
	var full [gen.ObjectsObjectTypeTYPES]uint64
	_ = r.objects.Coll.Variables[gen.ObjectsVarObjectsFull].Get(&full)
	lost := make(map[model.ObjectType]uint64, len(adoptedTypes))
	for _, t := range adoptedTypes {
		code, _ := typeCode(t)
		lost[t] = skipped + full[code]
	}
	return lost
}
