// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// A Ledger books the traffic of devices on their owners, refresh by refresh. It
// remembers what it was told last, as a byte may be seen by several methods, and
// as a device may have another owner at the next refresh. The zero Ledger is
// ready; it is for one goroutine.
//
// What a device has moved since the last refresh is booked once, in each
// direction for itself:
//
//   - on the one owner whose alone the device was, by the counters of its port
//     (see sole), whatever other methods saw of it;
//   - else on each owner what its hardware counters of queue pairs tell, and what its
//     uprobes tell beyond that (see choose);
//   - and what is left on the zero owner.
//
// So the shares of a device add up to its figure, to the byte, from the first
// sight on: what it had moved by then is the zero owner's, too. More than it has
// moved is never booked. Where the methods see more (it was posted and is not yet
// sent) the smallest claims are met first, and the excess waits until the device
// has moved more than is claimed anew. It is dropped when its owner leaves the
// device, for nothing is sent then. What is on its way at the moment when a better
// method takes over is all that both may see.
//
// A device without counters has no zero owner, and there claims are booked as they
// are; so they are when a device that has counters is not told of for long, and are
// part of what it has moved when it comes back.
//
// Nothing that is booked is taken back, but when an owner leaves: the zero owner
// then has its shares, and the sum stays. A container that gets another name keeps
// what it has.
type Ledger struct {
	refresh uint64
	meters  map[string]*meter
	order   []*meter // by name when sorted
	sorted  bool
	names   map[string]string // of the HCAs of virtual functions, by PCI address

	holders  map[Owner]*holder
	accounts map[accountKey]*account
	rows     map[rowKey]*row
	// answered is the last refresh in which a method told anything, and the one
	// before.
	answered, before [methods]uint64
	unplaced         uint64 // objects made on HCAs that are not known
	probed           uint64 // the last refresh in which the objects of owners were known

	// The following are of one refresh.
	facts    *model.Snapshot
	o        *owners
	byNumber []*holder
	assigned []DeviceShare
	given    map[string][]int // which of assigned are of a device
	told     []*row
}

// A holder is an owner from one refresh to the next.
type holder struct {
	Owner
	info   Info
	number int // in this refresh, nobody when it is not told of
	absent int // refreshes without it
	since  uint64
	claims bool // its container id is a claim, and no proof
}

// A meter is one HCA, or one virtual function out of sight, under the name that
// shares have.
type meter struct {
	name string
	told bool // in this refresh
	hca  *model.HCA
	pci  string // of a virtual function that its physical one tells of
	out  bool   // the figures are those of the physical function

	read, figures  []figure // now, and when they were taken last
	bound          bool     // it has figures
	look           uint64   // that read them, of a physical function
	stale          bool     // there was none since
	missing        int      // refreshes without all of them
	due            bool     // an interval ends: it can be booked
	first          bool     // not all of what moved is of this interval
	begins         bool     // it had no figures
	moved          [directions]uint64
	booked, before uint64 // the refreshes in which an interval ended last, and before that

	management          uint64 // queue pairs that the kernel has for itself
	users               map[*holder]*use
	strangers           strangers
	strange, wasStrange bool   // somebody unknown may have used it in this interval, or the one before
	given               Owner  // whose it is by what was given away
	since               uint64 // the refresh in which that became so

	ways [directions]way
}

// A way is one direction of a device.
type way struct {
	meter    *meter
	counted  bool   // the device has figures of it
	nobody   uint64 // the share of the zero owner
	alone    uint64 // the refresh in which it was somebody's alone last
	accounts []*account
}

// Attribute is Attribute with traffic. It is called once for each refresh, in
// their order.
func (l *Ledger) Attribute(s model.Snapshot) Attribution {
	a := attribute(s, func(a *Attribution, o *owners) { l.book(&s, a, o) })
	for _, h := range l.holders {
		if h.number != nobody {
			h.info = a.Infos[h.number-1]
		}
	}
	l.facts, l.o, l.byNumber, l.assigned, l.given = nil, nil, nil, nil, nil
	for _, d := range l.order {
		d.hca = nil
	}
	return a
}

func (l *Ledger) book(s *model.Snapshot, a *Attribution, o *owners) {
	if l.meters == nil {
		l.meters, l.names = map[string]*meter{}, map[string]string{}
		l.holders, l.accounts, l.rows = map[Owner]*holder{}, map[accountKey]*account{}, map[rowKey]*row{}
	}
	l.refresh++
	l.facts, l.o, l.assigned = s, o, a.Assigned
	last := ""
	for i := range s.Traffic {
		if id := s.Traffic[i].Cgroup; i == 0 || id != s.Traffic[i-1].Cgroup {
			o.ofCgroup(id)
		}
		if name := s.Traffic[i].Device; i == 0 || name != last {
			l.meter(name)
			last = name
		}
	}
	l.byNumber = make([]*holder, len(o.list))
	for _, h := range l.holders {
		h.number = o.byOwner[h.Owner]
		if h.number != nobody {
			l.byNumber[h.number] = h
		}
	}
	l.follow()
	l.look(s)
	l.sort()
	l.noteUse(s, a)
	l.noteGiven()
	l.claim(s.Traffic)
	for _, d := range l.order {
		if d.due {
			l.settle(d)
		}
	}
	l.takeLeave()
	a.Traffic = l.shares()
}

// meter finds that of a device by its name, or adds it.
func (l *Ledger) meter(name string) *meter {
	d := l.meters[name]
	if d == nil {
		d = &meter{name: name, users: map[*holder]*use{}}
		for i := range d.ways {
			d.ways[i].meter = d
		}
		l.meters[name] = d
		l.order = append(l.order, d)
		l.sorted = false
	}
	return d
}

func (l *Ledger) sort() {
	if !l.sorted {
		slices.SortFunc(l.order, func(a, b *meter) int { return strings.Compare(a.name, b.name) })
		l.sorted = true
	}
}

// holder is the owner with this number.
func (l *Ledger) holder(number int) *holder {
	if number < len(l.byNumber) && l.byNumber[number] != nil {
		return l.byNumber[number]
	}
	owner := l.o.list[number]
	h := l.holders[owner]
	if h == nil {
		h = &holder{Owner: owner, since: l.refresh}
		l.holders[owner] = h
	}
	h.number = number
	for len(l.byNumber) <= number {
		l.byNumber = append(l.byNumber, nil)
	}
	l.byNumber[number] = h
	return h
}

// named is an owner by its name, who need not have been told of.
func (l *Ledger) named(owner Owner) *holder {
	if n, ok := l.o.byOwner[owner]; ok {
		return l.holder(n)
	}
	e := model.Entity{
		Workload: owner.Workload, Namespace: owner.Namespace, Pod: owner.Pod, Container: owner.Container,
		ContainerID: owner.ContainerID,
	}
	if h := l.holders[owner]; h != nil {
		e.PodUID, e.Runtime, e.Image, e.User = h.info.PodUID, h.info.Runtime, h.info.Image, h.info.User
		e.Cgroup = h.info.Cgroup
	}
	n := l.o.number(e)
	if h := l.holders[owner]; h != nil {
		l.o.infos[n-1].Labels = h.info.Labels
	}
	return l.holder(n)
}

// shares are all that is booked, device by device. Nil when there is nothing to
// tell of.
func (l *Ledger) shares() []TrafficShare {
	if len(l.order) == 0 && l.facts.Traffic == nil {
		return nil
	}
	out := make([]TrafficShare, 0, len(l.accounts)+directions*len(l.order))
	for _, d := range l.order {
		for i := range d.ways {
			w := &d.ways[i]
			for _, a := range w.accounts {
				if a.holder.number == nobody {
					l.named(a.holder.Owner)
				}
				out = append(out, TrafficShare{
					Owner: a.holder.number, Device: d.name, Method: methodNames[a.method], Direction: directionNames[i],
					Bytes: plus(a.booked, a.free), Sampled: a.sampled,
				})
			}
			if d.told && w.counted {
				out = append(out, TrafficShare{
					Device: d.name, Method: model.MethodPort, Direction: directionNames[i], Bytes: w.nobody,
				})
			}
		}
	}
	return out
}
