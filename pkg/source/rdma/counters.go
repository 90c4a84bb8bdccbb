// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"io/fs"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// What Options.QPCounters can be.
const (
	useCounters    = "use"
	manageCounters = "manage"
)

// maxLookups is how many queue pairs are asked for their creator in one read:
// each is a query of the firmware.
const maxLookups = 64

// Forget drops the totals of these cgroups.
func (s *Source) Forget(cgroups []uint64) { s.qpTotals.forget(cgroups) }

// countsQPs says whether the counters of queue pairs are read.
func (s *Source) countsQPs() bool {
	return (s.opt.QPCounters == useCounters || s.opt.QPCounters == manageCounters) && s.enabled && s.opt.CgroupOf != nil
}

// qpTraffic is what the counters of queue pairs told. devices are those there are.
func (s *Source) qpTraffic(devices []model.DeviceState) []model.Traffic {
	if !s.countsQPs() {
		return nil
	}
	there := make(map[string]bool, len(devices))
	for _, d := range devices {
		there[d.Device] = true
	}
	return s.qpTotals.facts(there)
}

// counterStates tells what is not as it was asked for.
func (s *Source) counterStates() []model.DeviceState {
	if mode := s.opt.QPCounters; (mode == useCounters || mode == manageCounters) && s.opt.CgroupOf == nil {
		return []model.DeviceState{{
			Source: s.Name(), Device: "qp-counters", State: model.StateUnsupported,
			Reason: "the cgroups of processes are not known: no queue pairs are bound to counters, and none are read",
		}}
	}
	s.managerMu.Lock()
	m := s.manager
	s.managerMu.Unlock()
	return m.states()
}

// boundCounters are the counters of one device. They belong to the goroutine that
// reads it.
type boundCounters struct {
	device   string
	totals   *qpTotals
	cgroupOf func(pid int) (uint64, error)

	stat    file // stands for the dump
	never   bool // this kernel has none
	primed  bool // what there was when it was first read is the past
	known   map[counterKey]*boundCounter
	round   uint64
	lookups int
	live    map[liveKey]bool // that counters counted in this round
}

type counterKey struct{ port, id uint32 }

// boundCounter is what is known of a counter.
type boundCounter struct {
	last   qpCounter
	tx, rx uint64            // that are in the book, or never will be
	owner  uint64            // cgroup, 0 while it is not known
	single bool              // all of its queue pairs are of one thread
	qps    map[uint32]uint64 // cgroups of queue pairs that were asked for
	round  uint64
}

func (s *Source) newBoundCounters(device string) *boundCounters {
	if !s.countsQPs() {
		return nil
	}
	return &boundCounters{
		device: device, totals: &s.qpTotals, cgroupOf: s.opt.CgroupOf,
		stat: file{name: "STAT_GET of queue pairs", fd: -1}, known: map[counterKey]*boundCounter{},
	}
}

// read brings the book up to date. What cannot be read is counted in t.
func (b *boundCounters) read(dial func() (*conn, error), index uint32, now, deadline time.Time, t *tally) {
	if b.never {
		return
	}
	if b.stat.pause.Waiting(now) {
		t.failed("", &b.stat, now)
		return
	}
	all, err := qpCounters(dial, index, deadline)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		b.never = true // before 5.3
		b.totals.setLive(b.device, nil, true)
		return
	}
	whole := err == nil
	q := &asker{dial: dial, index: index, deadline: deadline}
	defer q.close()
	b.round++
	b.lookups, b.live = 0, map[liveKey]bool{}
	for i := range all {
		if e := b.counter(q, &all[i]); err == nil {
			err = e
		}
	}
	b.totals.setLive(b.device, b.live, whole)
	if whole {
		b.primed = true
		for k, c := range b.known {
			if c.round != b.round {
				delete(b.known, k)
			}
		}
	}
	if err != nil {
		b.stat.failed(now, err)
		t.failed("", &b.stat, now)
		return
	}
	b.stat.succeeded()
}

// counter books what one counter counted since it was seen last.
func (b *boundCounters) counter(q *asker, e *qpCounter) error {
	k := counterKey{e.port, e.id}
	c := b.known[k]
	if c == nil || !c.continues(e) {
		c = &boundCounter{}
		if !b.primed {
			c.tx, c.rx = e.tx, e.rx
		}
		b.known[k] = c
	}
	c.round, c.last = b.round, *e
	// By PID alone, no type is told.
	c.single = e.mode == modeAuto && (c.single || e.pid != 0 || !e.byType)
	owner := b.owner(q, c)
	first := owner != c.owner
	c.owner = owner
	if owner == 0 {
		// What is of one thread is booked when that becomes known.
		if !c.single {
			c.tx, c.rx = e.tx, e.rx
		}
		return nil
	}
	return errors.Join(
		b.add(owner, model.Transmit, e.hasTx, &c.tx, e.tx, first),
		b.add(owner, model.Receive, e.hasRx, &c.rx, e.rx, first))
}

// add books what was counted, and the first time of an owner also nothing.
func (b *boundCounters) add(owner uint64, d model.Direction, has bool, booked *uint64, bytes uint64, first bool) error {
	if !has {
		return nil
	}
	k := liveKey{owner, qpKey{b.device, d}}
	b.live[k] = true
	if bytes <= *booked && !first {
		return nil
	}
	n := bytes - min(bytes, *booked)
	*booked = bytes
	return b.totals.add(k, n)
}

// continues says whether e is the same counter later on: numbers are used again.
// When it is not sure it is, so that nothing is booked twice. Only byte counters
// are compared, as others have 32 bits in hardware, and wrap.
func (c *boundCounter) continues(e *qpCounter) bool {
	l := &c.last
	if l.hasTx && e.hasTx && e.tx < l.tx || l.hasRx && e.hasRx && e.rx < l.rx || l.mode != e.mode || l.kernel != e.kernel {
		return false
	}
	if l.pid != 0 && e.pid != 0 {
		return l.pid == e.pid
	}
	return slices.ContainsFunc(e.qpns, func(n uint32) bool { return slices.Contains(l.qpns, n) })
}

// owner is the cgroup of the thread that a counter is of, as it was when it was
// seen first, or the one cgroup of all its queue pairs. It is 0 when that is not
// known, and for queue pairs of several cgroups.
func (b *boundCounters) owner(q *asker, c *boundCounter) uint64 {
	e := &c.last
	switch {
	case e.kernel:
		return 0
	case c.single && c.owner != 0:
		return c.owner
	case e.pid != 0:
		id, _ := b.cgroup(e.pid)
		return id
	}
	qpns := e.qpns
	if c.single {
		qpns = qpns[:min(1, len(qpns))]
	}
	asked := make(map[uint32]uint64, len(qpns))
	for _, n := range qpns {
		id, ok := c.qps[n]
		if !ok && b.lookups < maxLookups {
			b.lookups++
			id, ok = b.creator(q, e.port, n)
		}
		if ok {
			asked[n] = id
		}
	}
	c.qps = asked
	var owner uint64
	for i, n := range qpns {
		id := asked[n]
		if id == 0 || i > 0 && id != owner {
			return 0
		}
		owner = id
	}
	return owner
}

// creator is the cgroup of who made a queue pair, and whether that is for good.
func (b *boundCounters) creator(q *asker, port, qpn uint32) (id uint64, known bool) {
	pid, err := q.creator(port, qpn)
	if err != nil {
		return 0, slices.ContainsFunc(never, func(e error) bool { return errors.Is(err, e) })
	}
	return b.cgroup(pid)
}

// never are the errors of a kernel that will not tell later either: the object is
// gone, or it does not know the command.
var never = []error{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP}

// cgroup is 0 for a process that is gone, or has none, and when that cannot be known
// at present.
func (b *boundCounters) cgroup(pid uint32) (id uint64, known bool) {
	if pid == 0 || pid > math.MaxInt32 {
		return 0, true
	}
	id, err := b.cgroupOf(int(pid))
	if err != nil {
		return 0, errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return id, true
}

// asker asks for the creators of queue pairs on a socket that it opens when it
// is needed.
type asker struct {
	dial     func() (*conn, error)
	index    uint32
	deadline time.Time
	c        *conn
}

func (q *asker) creator(port, qpn uint32) (pid uint32, err error) {
	if q.c == nil {
		if q.c, err = q.dial(); err != nil {
			return 0, err
		}
	}
	return q.c.creator(q.index, port, qpn, q.deadline)
}

func (q *asker) close() {
	if q.c != nil {
		q.c.close()
	}
}
