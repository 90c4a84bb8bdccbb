// SPDX-License-Identifier: Apache-2.0

// Package traffic credits the bytes of devices to owners.
//
// A byte may be counted by several methods, and a device may have another owner at the next
// refresh. So what a device has moved since its last reading is credited once, separately
// for each direction:
//
//   - to the device's exclusive owner, by the counters of its port (see exclusiveOwner),
//     whatever other methods counted;
//   - else to each owner what hardware counters of its queue pairs report, and what uprobes
//     report beyond that (see choose);
//   - and the rest stays unattributed.
//
// So the shares of a device add up to its own counters, to the byte, from the first reading
// on: what it had moved before is unattributed. More than it has moved is never credited.
// Where the methods report more (posted and not yet sent) the smallest reports are credited
// first, and the excess waits until the device has moved more. The excess is dropped when
// its owner leaves the device, which sends nothing then.
//
// A device without counters has no unattributed share: reports are credited as they are.
// The same holds for a device that has counters and is not listed for long; when it comes
// back, these reports are part of what it has moved.
//
// Nothing that is credited is taken back, except when an owner expires: its bytes are
// unattributed then, and the sum stays.
package traffic

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// A Ledger keeps what is credited from one refresh to the next. The zero Ledger is ready; it
// is for one goroutine.
type Ledger struct {
	refresh uint64
	devices map[string]*device
	order   []*device // by name when sorted
	sorted  bool
	names   map[string]string // of the HCAs of virtual functions, by PCI address

	accounts map[accountKey]*account
	rows     map[rowKey]*row
	// answered is the last refresh in which a method reported anything, and before the one
	// before that.
	answered, before [methods]uint64
	unknownHCAs      uint64 // objects made on HCAs without a known name

	// The following are of one refresh.
	facts    *model.Snapshot
	owners   *identity.Table
	assigned []assigned
	given    map[string][]int // indexes into assigned, by device
	reported []*row
}

// assigned is a device that an owner was given.
type assigned struct {
	*attribution.DeviceShare
	owner identity.OwnerID
}

// A device is one HCA, or one virtual function whose HCA is not visible here, under the name
// that shares have.
type device struct {
	name   string
	listed bool // in this refresh
	hca    *model.HCA
	pci    string // of a virtual function that its physical function reports
	isVF   bool   // the counters are those that the physical function keeps of it

	read, last []byteCounter // now, and at the end of the last interval
	state      state
	reading    uint64 // number of the reading of VF statistics
	interval   interval
	moved      [directions]uint64
	// ended and endedBefore are the refreshes in which an interval ended last, and before.
	ended, endedBefore uint64

	managementQPs uint64 // queue pairs that the kernel has for itself
	users         map[identity.OwnerID]*use
	unknown       unknownUsers
	// unknownUse says that an unknown user may have used it in this interval, wasUnknown in
	// the one before.
	unknownUse, wasUnknown bool
	given                  identity.OwnerID // the owner that it is assigned to
	since                  uint64           // the refresh in which that began

	directions [directions]direction
}

// A direction is what a device sends, or what it receives.
type direction struct {
	device       *device
	counted      bool   // the device has counters of it
	unattributed uint64 // bytes
	exclusive    uint64 // the last refresh in which it had an exclusive owner
	accounts     []*account
}

// Settle credits what devices have moved up to this refresh. a has the objects and assigned
// devices of s.
func (l *Ledger) Settle(s *model.Snapshot, a *attribution.Attribution, owners *identity.Table) {
	if l.devices == nil {
		l.devices, l.names = map[string]*device{}, map[string]string{}
		l.accounts, l.rows = map[accountKey]*account{}, map[rowKey]*row{}
	}
	l.refresh++
	l.facts, l.owners, l.assigned, l.given = s, owners, l.assigned[:0], nil
	for i := range a.Assigned {
		l.assigned = append(l.assigned, assigned{&a.Assigned[i], a.ID(a.Assigned[i].Owner)})
	}
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
	l.sort()
	l.noteUse(s, a)
	l.noteAssigned()
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
	clear(l.assigned)
	l.facts, l.owners, l.given = nil, nil, nil
	for _, d := range l.order {
		d.hca = nil
	}
}

// device returns the device of a name, which it adds if there is none.
func (l *Ledger) device(name string) *device {
	d := l.devices[name]
	if d == nil {
		d = &device{name: name, users: map[identity.OwnerID]*use{}}
		for i := range d.directions {
			d.directions[i].device = d
		}
		l.devices[name] = d
		l.order = append(l.order, d)
		l.sorted = false
	}
	return d
}

func (l *Ledger) sort() {
	if !l.sorted {
		slices.SortFunc(l.order, func(a, b *device) int { return strings.Compare(a.name, b.name) })
		l.sorted = true
	}
}

// Shares returns all that is credited, device by device; nil if there are no devices. use
// returns the index of an owner.
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
					Bytes: plus(a.credited, a.free), Sampled: a.sampled,
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

// forgetRows drops the rows of cgroups that a source has forgotten. While a method does not
// answer at all its rows stay, and go on later.
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

// maxAbsent is how many devices are remembered that are gone and in which no owner has a
// share: one that comes back goes on where it was.
const maxAbsent = 256

func (l *Ledger) forgetDevices() {
	absent := func(d *device) bool {
		return !d.listed && len(d.directions[transmit].accounts)+len(d.directions[receive].accounts) == 0
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
