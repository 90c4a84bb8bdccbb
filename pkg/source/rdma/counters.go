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
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// The values of Options.QPCounters.
const (
	useCounters    = "use"
	manageCounters = "manage"
)

// maxLookups bounds the creator lookups in one read. Each lookup queries the firmware.
const maxLookups = 64

// Forget drops the totals of these cgroups.
func (s *Source) Forget(cgroups []model.CgroupID) { s.qpTotals.forget(cgroups) }

func (s *Source) countsQPs() bool {
	return (s.opt.QPCounters == useCounters || s.opt.QPCounters == manageCounters) && s.enabled && s.opt.CgroupOf != nil
}

// qpTraffic returns the bytes that queue pair counters of these devices counted.
func (s *Source) qpTraffic(devices []model.DeviceState) []model.Traffic {
	if !s.countsQPs() {
		return nil
	}
	there := make(map[string]bool, len(devices))
	for _, d := range devices {
		there[d.Device] = true
	}
	return s.qpTotals.traffic(there)
}

// counterStates returns the states of queue pair counters that do not work as configured.
func (s *Source) counterStates() []model.DeviceState {
	if mode := s.opt.QPCounters; (mode == useCounters || mode == manageCounters) && s.opt.CgroupOf == nil {
		return []model.DeviceState{{
			Source: s.Name(), Device: "qp-counters", State: model.StateUnsupported,
			Reason: "the cgroups of processes are unknown: no queue pairs are bound to counters and no counters are read",
		}}
	}
	s.managerMu.Lock()
	m := s.manager
	s.managerMu.Unlock()
	return m.states()
}

// boundCounters holds the queue pair counters of one device. It belongs to the goroutine that
// reads the device.
type boundCounters struct {
	device   string
	totals   *qpTotals
	cgroupOf func(pid int) (model.CgroupID, error)

	stat    sysfs.Attempt // backoff state of the dump
	never   bool          // the kernel has no queue pair counters
	primed  bool          // the first read ended: bytes counted before it are not credited
	known   map[counterKey]*boundCounter
	round   uint64
	lookups int
	live    map[liveKey]uint64 // queue pairs of the rows that a counter updated in this round
}

type counterKey struct{ port, id uint32 }

type boundCounter struct {
	last   nldev.QPCounter
	tx, rx uint64                    // bytes already credited, or never to be credited
	owner  model.CgroupID            // 0 while unknown
	single bool                      // one thread created all queue pairs of the counter
	qps    map[uint32]model.CgroupID // known cgroups of queue pairs
	round  uint64
}

func (s *Source) newBoundCounters(device string) *boundCounters {
	if !s.countsQPs() {
		return nil
	}
	return &boundCounters{
		device: device, totals: &s.qpTotals, cgroupOf: s.opt.CgroupOf,
		stat: sysfs.Attempt{Name: "STAT_GET of queue pairs"}, known: map[counterKey]*boundCounter{},
	}
}

// read credits the bytes counted since the last read. It looks up creators on c and records failures in t.
func (b *boundCounters) read(c *nldev.Conn, dial func() (*nldev.Conn, error), index uint32, now, deadline time.Time, t *sysfs.Tally) {
	if b.never {
		return
	}
	if b.stat.Waiting(now) {
		t.Count("", &b.stat, now)
		return
	}
	all, err := nldev.QPCounters(dial, index, deadline)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		b.never = true // kernels before 5.3
		b.totals.setLive(b.device, nil, true)
		return
	}
	complete := err == nil
	q := creatorLookup{c, index, deadline}
	b.round++
	b.lookups, b.live = 0, map[liveKey]uint64{}
	for i := range all {
		if e := b.counter(q, &all[i]); err == nil {
			err = e
		}
	}
	b.totals.setLive(b.device, b.live, complete)
	if complete {
		b.primed = true
		for k, c := range b.known {
			if c.round != b.round {
				delete(b.known, k)
			}
		}
	}
	if b.stat.Done(now, err); err != nil {
		t.Count("", &b.stat, now)
	}
}

// counter credits the bytes that one counter counted since the last read.
func (b *boundCounters) counter(q creatorLookup, e *nldev.QPCounter) error {
	k := counterKey{e.Port, e.ID}
	c := b.known[k]
	if c == nil || !c.continues(e) {
		c = &boundCounter{}
		if !b.primed {
			c.tx, c.rx = e.Tx, e.Rx
		}
		b.known[k] = c
	}
	c.round, c.last = b.round, *e
	// Only a counter bound by PID has no queue pair type.
	c.single = e.Mode == nldev.ModeAuto && (c.single || e.PID != 0 || !e.ByType)
	owner := b.owner(q, c)
	first := owner != c.owner
	c.owner = owner
	if owner == 0 {
		// The bytes of one thread are credited when its cgroup becomes known.
		if !c.single {
			c.tx, c.rx = e.Tx, e.Rx
		}
		return nil
	}
	return errors.Join(
		b.add(owner, model.Transmit, e.HasTx, &c.tx, e.Tx, e.QPNs, first),
		b.add(owner, model.Receive, e.HasRx, &c.rx, e.Rx, e.QPNs, first))
}

// add credits newly counted bytes. The first call for an owner creates a row even for 0 bytes.
func (b *boundCounters) add(
	owner model.CgroupID, d model.Direction, has bool, credited *uint64, bytes uint64, qpns []uint32, first bool,
) error {
	if !has {
		return nil
	}
	k := liveKey{owner, qpKey{b.device, d}}
	b.live[k] += uint64(len(qpns))
	if bytes <= *credited && !first {
		return nil
	}
	n := bytes - min(bytes, *credited)
	*credited = bytes
	return b.totals.add(k, n)
}

// continues reports whether e is the same counter: the kernel reuses counter numbers. In doubt it returns true, so that
// no byte is credited twice. It compares only byte counters: other counters have 32 bits in hardware and wrap.
func (c *boundCounter) continues(e *nldev.QPCounter) bool {
	l := &c.last
	if l.HasTx && e.HasTx && e.Tx < l.Tx || l.HasRx && e.HasRx && e.Rx < l.Rx || l.Mode != e.Mode || l.Kernel != e.Kernel {
		return false
	}
	if l.PID != 0 && e.PID != 0 {
		return l.PID == e.PID
	}
	return slices.ContainsFunc(e.QPNs, func(n uint32) bool { return slices.Contains(l.QPNs, n) })
}

// owner returns the cgroup of the thread of a counter, as first seen, or the common cgroup of all its queue pairs. It
// returns 0 if the cgroup is unknown or the queue pairs belong to several cgroups.
func (b *boundCounters) owner(q creatorLookup, c *boundCounter) model.CgroupID {
	e := &c.last
	switch {
	case e.Kernel:
		return 0
	case c.single && c.owner != 0:
		return c.owner
	case e.PID != 0:
		id, _ := b.cgroup(e.PID)
		return id
	}
	qpns := e.QPNs
	if c.single {
		qpns = qpns[:min(1, len(qpns))]
	}
	asked := make(map[uint32]model.CgroupID, len(qpns))
	for _, n := range qpns {
		id, ok := c.qps[n]
		if !ok && b.lookups < maxLookups {
			b.lookups++
			id, ok = b.creator(q, e.Port, n)
		}
		if ok {
			asked[n] = id
		}
	}
	c.qps = asked
	var owner model.CgroupID
	for i, n := range qpns {
		id := asked[n]
		if id == 0 || i > 0 && id != owner {
			return 0
		}
		owner = id
	}
	return owner
}

// creator returns the cgroup of the process that created a queue pair. known reports that the
// result is final.
func (b *boundCounters) creator(q creatorLookup, port, qpn uint32) (id model.CgroupID, known bool) {
	pid, err := q.c.Creator(q.index, port, qpn, q.deadline)
	if err != nil {
		return 0, slices.ContainsFunc(finalErrors, func(e error) bool { return errors.Is(err, e) })
	}
	return b.cgroup(pid)
}

// finalErrors are errors after which a retry is useless: the object no longer exists, or the kernel does not support
// the command.
var finalErrors = []error{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP}

// cgroup returns the cgroup of a process. It returns 0 if the process ended, has no cgroup, or
// cannot be read now; known reports that the result is final.
func (b *boundCounters) cgroup(pid uint32) (id model.CgroupID, known bool) {
	if pid == 0 || pid > math.MaxInt32 {
		return 0, true
	}
	id, err := b.cgroupOf(int(pid))
	if err != nil {
		return 0, errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return id, true
}

type creatorLookup struct {
	c        *nldev.Conn
	index    uint32
	deadline time.Time
}
