// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// missed is what may be missing in the bytes of one owner on a device: unattributed bytes of intervals in which the
// owner used the device. It never falls, and ends with the owner.
type missed struct {
	owner     identity.OwnerID
	bytes     uint64 // at most
	any       bool
	unlimited bool // more may be missing: the device did not count all bytes

	// The interval that ended in this refresh. Its bytes are missing unless other methods count all bytes of the owner;
	// Coverage decides this later.
	pending          uint64
	waits, untallied bool
	// gap reports that other methods did not count all bytes at some refresh since this interval began. judged is the
	// last refresh in which this was known.
	gap    bool
	judged uint64
}

func (m *missed) add(bytes uint64, unlimited bool) {
	m.bytes, m.any, m.unlimited = plus(m.bytes, bytes), true, m.unlimited || unlimited
}

// end ends the interval that waits for Coverage.
func (m *missed) end(gap bool) {
	if m.waits && gap {
		m.add(m.pending, m.untallied)
	}
	m.pending, m.waits, m.untallied, m.gap = 0, false, false, false
}

func (d *device) missedOf(owner identity.OwnerID) *missed {
	i := slices.IndexFunc(d.missed, func(m *missed) bool { return m.owner == owner })
	if i < 0 {
		i = len(d.missed)
		d.missed = append(d.missed, &missed{owner: owner})
	}
	return d.missed[i]
}

// miss records the unattributed bytes of an interval for all owners that may have moved them. With an exclusive owner
// no bytes are unattributed, but the device may not have counted all. While no source counts objects, the bytes wait
// for the owners of the first interval with objects.
func (d *device) miss(bytes uint64, exclusive, seesObjects bool) {
	if d.interval.before {
		bytes = 0
	}
	bytes, untallied := plus(bytes, d.unseen.bytes), d.interval.untallied || d.unseen.untallied
	d.unseen.bytes, d.unseen.untallied = 0, false
	switch {
	case bytes == 0 && !untallied:
		return
	case !seesObjects && !exclusive:
		d.unseen.bytes, d.unseen.untallied = bytes, untallied
		return
	}
	note := func(owner identity.OwnerID) {
		m := d.missedOf(owner)
		if exclusive {
			m.add(bytes, untallied) // the ledger drops what other methods report of such an interval
			return
		}
		m.pending, m.waits, m.untallied = plus(m.pending, bytes), true, m.untallied || untallied
	}
	given := d.given
	for id, u := range d.users {
		if u.active || u.wasActive || u.held || id == given {
			note(id)
		}
		if id == given {
			given = identity.Unattributed
		}
	}
	if given != identity.Unattributed {
		note(given)
	}
}

// Missed implements attribution.PortLedger.
func (l *Ledger) Missed(owner identity.OwnerID, device string, gaps []model.Gap) bool {
	d := l.devices[device]
	if d == nil {
		return false
	}
	m := d.missedOf(owner)
	m.judged = l.refresh
	m.gap = m.gap || len(gaps) > 0
	if d.ended == l.refresh {
		m.end(m.gap)
		// Queue pairs that are not connected yet move nothing. The calls of queue pairs that were connected since are
		// counted from the first call on.
		m.gap = slices.ContainsFunc(gaps, func(g model.Gap) bool { return g != model.GapNotSeen })
	}
	return m.any
}

// MissedShares returns the owners with missing bytes, device by device, after Coverage. use returns the index of an owner.
func (l *Ledger) MissedShares(use func(identity.OwnerID) int) []attribution.MissedShare {
	var out []attribution.MissedShare
	for _, d := range l.order {
		for _, m := range d.missed {
			if d.ended == l.refresh && m.judged != l.refresh {
				// The owner no longer uses the device. Its bytes are complete if they were complete at the preceding
				// refresh, its last one.
				m.end(m.gap || m.judged == 0 || m.judged+1 != l.refresh)
			}
			if m.any {
				out = append(out, attribution.MissedShare{Owner: use(m.owner), Device: d.name, Bytes: m.bytes, Unlimited: m.unlimited})
			}
		}
	}
	return out
}

// mergeMissed moves the missing bytes of one owner to another.
func (d *device) mergeMissed(m identity.Merge) {
	i := slices.IndexFunc(d.missed, func(of *missed) bool { return of.owner == m.From })
	if i < 0 {
		return
	}
	from := d.missed[i]
	d.missed = slices.Delete(d.missed, i, i+1)
	to := d.missedOf(m.To)
	if from.any {
		to.add(from.bytes, from.unlimited)
	}
	to.pending, to.waits, to.untallied = max(to.pending, from.pending), to.waits || from.waits, to.untallied || from.untallied
	to.gap, to.judged = to.gap || from.gap, max(to.judged, from.judged)
}
