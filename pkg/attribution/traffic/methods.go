// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// The methods are indexes.
const (
	byPort = iota
	byQPCounter
	byUprobe
	bySurvey
	methods
)

var methodNames = [methods]model.Method{model.MethodPort, model.MethodQPCounter, model.MethodUprobe, model.MethodSurvey}

type row struct {
	rowKey
	now, last uint64
	reported  uint64 // the refresh that set now
	credited  uint64 // the refresh that set last; 0 for never
	began     uint64 // the first refresh of the row, if the method answered in the refresh before
	missed    int
	resting   bool     // all facts of the row rest
	account   *account // the account of the last credit
}

type rowKey struct {
	cgroup    model.CgroupID
	direction *direction
	method    int
}

// report records the bytes that methods report for cgroups since the last interval of their device.
func (l *Ledger) report(facts []model.Traffic) {
	l.before = l.answered
	if l.facts.DataPath != nil { // before it has counted bytes, it has no rows
		l.answered[byUprobe] = l.refresh
	}
	l.reported = l.reported[:0]
	var d *device
	for i := range facts {
		f := &facts[i]
		method, direction := slices.Index(methodNames[:], f.Method), slices.Index(directionNames[:], f.Direction)
		if method <= byPort || method == bySurvey || direction < 0 {
			continue
		}
		if d == nil || d.name != f.Device {
			d = l.devices[f.Device]
		}
		l.answered[method] = l.refresh
		key := rowKey{f.Cgroup, &d.directions[direction], method}
		r := l.rows[key]
		if r == nil {
			r = &row{rowKey: key}
			if l.before[method] != 0 && l.before[method] == l.refresh-1 {
				r.began = l.refresh
			}
			l.rows[key] = r
		}
		if r.reported != l.refresh {
			r.reported, r.now, r.missed, r.resting = l.refresh, 0, 0, true
			l.reported = append(l.reported, r)
		}
		r.now = plus(r.now, f.Bytes)
		r.resting = r.resting && f.Resting
	}
	for _, r := range l.reported {
		l.reportRow(r)
	}
}

func (l *Ledger) reportRow(r *row) {
	var a *account
	if owner := l.owners.Of(r.cgroup); owner != identity.Unattributed {
		if r.account == nil || r.account.closed || r.account.owner != owner {
			r.account = l.account(owner, r.direction, r.method)
		}
		a = r.account
		if a.reported != l.refresh {
			a.reported, a.report, a.valid, a.live = l.refresh, 0, false, false
		}
	}
	d := r.direction.device
	if !d.interval.ends {
		return
	}
	moved := r.now - r.last
	if r.now < r.last {
		moved = r.now
	}
	valid := a != nil && l.current(r, a.owner)
	r.last, r.credited = r.now, l.refresh
	if a == nil {
		d.unknownUse = d.unknownUse || moved > 0
	}
	if !valid {
		return
	}
	a.valid, a.live = true, a.live || !r.resting
	a.report = plus(a.report, moved)
}

// current reports whether the growth of a row belongs to this interval, or at least was not credited through another
// method. A row may be new, or its source may not have answered for a while, in which another method was used.
func (l *Ledger) current(r *row, owner identity.OwnerID) bool {
	if r.credited != 0 && r.credited >= r.direction.device.ended {
		return true
	}
	if r.credited == 0 && r.began > r.direction.device.ended {
		return true
	}
	if r.direction.exclusive > r.credited {
		return false
	}
	for m := range methods {
		if a := l.accounts[accountKey{owner, r.direction, m}]; m != r.method && a != nil && a.won > r.credited {
			return false
		}
	}
	return true
}
