// SPDX-License-Identifier: Apache-2.0

// Package traffic credits the bytes of devices to owners.
//
// Several methods may count the same byte, and the owner of a device may change between refreshes. So the bytes that a
// device moved since its last reading are credited once, separately for each direction:
//
//   - If the device has an exclusive owner (see exclusiveOwner), it gets all bytes of the port
//     counters, whatever other methods counted.
//   - Else each owner gets the bytes that the hardware counters of its queue pairs report, and
//     the bytes that uprobes report beyond them (see choose).
//   - The owners whose calls are counted in surveys only get a part of the rest, in proportion
//     to their last survey (see split.go).
//   - The remainder stays unattributed.
//
// So the shares of a device add up to its own counters, to the byte, from the first reading on; earlier bytes are
// unattributed. The credits never exceed what the device moved. If the methods report more (posted and not yet sent),
// the smallest reports are credited first, and the excess waits until the device has moved more. The excess is dropped
// when its owner stops using the device and sends nothing anymore.
//
// A device without counters has no unattributed share: reports are credited as they are. The same holds for a device
// with counters that is unlisted for long. When it comes back, these reports are part of the bytes it moved.
//
// A credit is final, except when an owner expires: its bytes become unattributed, and the sum stays the same.
package traffic

import (
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// A Ledger credits bytes and keeps the credits between refreshes. The zero Ledger is ready to
// use. It is not safe for concurrent use.
type Ledger struct {
	refresh uint64
	deviceList
	accounts accounts
	rows     map[rowKey]*row
	// answered is the last refresh in which a method reported anything, or its source had nothing to report; before is
	// the answer before that.
	answered, before [methods]uint64
	paused           pausedCalls
	objects          objectUses

	// The following fields are valid during one refresh.
	now      time.Time
	facts    *model.Snapshot
	owners   *identity.Table
	assigned assignments
	reported []*row
}

// A device is one HCA, or one virtual function without a visible HCA. name is the name in its shares.
type device struct {
	name   string
	listed bool // in this refresh
	hca    *model.HCA
	pci    string // set for a virtual function that its physical function reports
	isVF   bool   // the counters are the physical function's statistics

	read, last []byteCounter // now, and at the end of the last interval
	state      state
	reading    uint64 // sequence number of the VF statistics
	interval   interval
	moved      [directions]uint64
	// ended is the last refresh in which an interval ended, endedBefore the refresh in which the previous interval
	// ended.
	ended, endedBefore uint64

	users   map[identity.OwnerID]*use
	unknown unknownUsers
	// ipoib are the IPoIB interfaces at the last refresh.
	ipoib     []model.IPoIB
	ipoibRead bool
	missed    []*missed
	// unseen are the unattributed bytes of intervals in which no source counted objects.
	unseen struct {
		bytes     uint64
		untallied bool
	}
	// unknownUse reports that an unknown user may have used the device in this interval,
	// wasUnknown in the previous one.
	unknownUse, wasUnknown bool
	given                  identity.OwnerID // the owner that the device is assigned to
	since                  uint64           // the refresh that assigned it

	endedAt time.Time // end of the last interval
	counted time.Time // before the bytes of this interval's end were read
	surveys []survey  // the last survey of each cgroup and provider file
	covers  map[identity.OwnerID]cover
	// lapsed: some calls may have been uncounted in a part of this interval, and have no survey now.
	lapsed bool

	directions [directions]direction
}

// A direction is the sent or the received bytes of a device.
type direction struct {
	device       *device
	index        int
	counted      bool   // the device has counters for it
	unattributed uint64 // bytes
	exclusive    uint64 // the last refresh with an exclusive owner
	accounts     []*account

	past []period // the last intervals, the newest one last
	// surveyed is the end of the newest survey. The following fields compare the survey with what the device moved
	// during it.
	surveyed   time.Time
	comparable bool
	other      float64 // bytes per second that the surveyed owners did not move
}

// Settle credits the bytes that devices moved up to now. a has the objects and assigned devices of s.
func (l *Ledger) Settle(s *model.Snapshot, a *attribution.Attribution, owners *identity.Table, now time.Time) {
	if l.devices == nil {
		l.devices, l.names = map[string]*device{}, map[string]string{}
		l.accounts, l.rows = accounts{}, map[rowKey]*row{}
	}
	l.refresh++
	l.now, l.facts, l.owners, l.assigned = now, s, owners, assignments{owners: owners, shares: a}
	last := ""
	for i := range s.Traffic {
		if id := s.Traffic[i].Cgroup; i == 0 || id != s.Traffic[i-1].Cgroup {
			a.Use(owners.Of(id))
		}
		if name := s.Traffic[i].Device; i == 0 || name != last {
			l.device(name)
			last = name
		}
	}
	l.readCounters(s)
	slices.SortFunc(l.order, func(a, b *device) int { return strings.Compare(a.name, b.name) })
	l.objects.note(s, a, owners, &l.deviceList)
	l.noteAssigned()
	l.paused = l.noteSurveys(s, owners, l.paused)
	l.report(s.Traffic)
	for _, d := range l.order {
		if d.interval.ends {
			l.settle(d)
		}
	}
	if len(l.reported) < len(l.rows) {
		l.forgetRows()
	}
	l.forgetDevices()
	for _, a := range l.accounts {
		if a.round < owners.Inherited(a.owner) { // the owner had other labels
			a.since = time.Time{}
		}
	}
	l.facts, l.owners, l.assigned = nil, nil, assignments{}
	for _, d := range l.order {
		d.hca = nil
	}
}

// Shares returns all credited bytes, device by device, or nil without devices. use returns the index of an owner.
func (l *Ledger) Shares(use func(identity.OwnerID) int) []attribution.TrafficShare {
	if len(l.order) == 0 {
		return nil
	}
	out := make([]attribution.TrafficShare, 0, len(l.accounts)+directions*len(l.order))
	for _, d := range l.order {
		for i := range d.directions {
			w := &d.directions[i]
			for _, a := range w.accounts {
				out = append(out, attribution.TrafficShare{
					Owner: use(a.owner), Device: d.name, Method: methodNames[a.method], Direction: directionNames[i],
					Bytes: plus(a.credited, a.free), Since: a.since,
				})
			}
			if d.listed && w.counted {
				out = append(out, attribution.TrafficShare{
					Device: d.name, Method: model.MethodPort, Direction: directionNames[i], Bytes: w.unattributed,
				})
			}
		}
	}
	return out
}

// forgetRows drops the rows of cgroups that a source has forgotten. If a method does not answer at all, its rows stay.
func (l *Ledger) forgetRows() {
	for key, r := range l.rows {
		if r.reported == l.refresh || l.answered[key.method] != l.refresh {
			continue
		}
		if r.missed++; r.missed > maxMissedRefreshes {
			delete(l.rows, key)
		}
	}
}

// maxAbsent is how many unlisted devices without shares are remembered. A remembered device continues its totals when
// it returns.
const maxAbsent = 256

func (l *Ledger) forgetDevices() {
	absent := func(d *device) bool {
		return !d.listed && len(d.directions[transmit].accounts)+len(d.directions[receive].accounts)+len(d.missed) == 0
	}
	n := 0
	for _, d := range l.order {
		if absent(d) {
			n++
		}
	}
	if n <= maxAbsent {
		return
	}
	for key := range l.rows {
		if absent(key.direction.device) {
			delete(l.rows, key)
		}
	}
	l.order = slices.DeleteFunc(l.order, func(d *device) bool {
		if absent(d) {
			delete(l.devices, d.name)
			return true
		}
		return false
	})
}
