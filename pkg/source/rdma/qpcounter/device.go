// SPDX-License-Identifier: Apache-2.0

package qpcounter

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

// maxLookups is the maximum number of creator lookups in one read. Each lookup queries the
// firmware.
const maxLookups = 64

// Device holds the queue pair counters of one device. It belongs to the goroutine that
// reads the device.
type Device struct {
	device   string
	totals   *totals
	cgroupOf func(pid int) (model.CgroupID, error)

	stat    sysfs.Attempt // backoff state of the dump
	never   bool          // the kernel does not support them
	primed  bool          // the first read ended: bytes counted before it are not credited
	known   map[counterKey]*counter
	round   uint64
	lookups int
	live    map[liveKey]uint64 // queue pairs of the rows that a counter updated in this round
}

type counterKey struct{ port, id uint32 }

// counter is the state of one counter.
type counter struct {
	last   nldev.QPCounter
	tx, rx uint64                    // bytes already credited, or never to be credited
	owner  model.CgroupID            // cgroup, 0 while unknown
	single bool                      // one thread created all of its queue pairs
	qps    map[uint32]model.CgroupID // cgroups of queue pairs, as looked up
	round  uint64
}

// Read credits the bytes counted since the last read of the device with a netlink index. It dumps the counters on a socket
// of dial, looks up creators on c, and records failures in t.
func (d *Device) Read(c *nldev.Conn, dial nldev.Dialer, index uint32, now, deadline time.Time, t *sysfs.Tally) {
	if d.never {
		return
	}
	if d.stat.Waiting(now) {
		t.Count("", &d.stat, now)
		return
	}
	all, err := nldev.QPCounters(dial, index, deadline)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		d.never = true // kernels before 5.3
		d.totals.setLive(d.device, nil, true)
		return
	}
	complete := err == nil
	q := creatorLookup{c, index, deadline}
	d.round++
	d.lookups, d.live = 0, map[liveKey]uint64{}
	for i := range all {
		if e := d.counter(q, &all[i]); err == nil {
			err = e
		}
	}
	d.totals.setLive(d.device, d.live, complete)
	if complete {
		d.primed = true
		for k, c := range d.known {
			if c.round != d.round {
				delete(d.known, k)
			}
		}
	}
	if d.stat.Done(now, err); err != nil {
		t.Count("", &d.stat, now)
	}
}

// counter credits the bytes that one counter counted since the last read.
func (d *Device) counter(q creatorLookup, e *nldev.QPCounter) error {
	k := counterKey{e.Port, e.ID}
	c := d.known[k]
	if c == nil || !c.continues(e) {
		c = &counter{}
		if !d.primed {
			c.tx, c.rx = e.Tx, e.Rx
		}
		d.known[k] = c
	}
	c.round, c.last = d.round, *e
	// A counter bound by PID only has no queue pair type.
	c.single = e.Mode == nldev.ModeAuto && (c.single || e.PID != 0 || !e.ByType)
	owner := d.owner(q, c)
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
		d.add(owner, model.Transmit, e.HasTx, &c.tx, e.Tx, e.QPNs, first),
		d.add(owner, model.Receive, e.HasRx, &c.rx, e.Rx, e.QPNs, first))
}

// add credits newly counted bytes. The first call for an owner creates a row even for 0 bytes.
func (d *Device) add(
	owner model.CgroupID, direction model.Direction, has bool, credited *uint64, bytes uint64, qpns []uint32, first bool,
) error {
	if !has {
		return nil
	}
	k := liveKey{owner, rowKey{d.device, direction}}
	d.live[k] += uint64(len(qpns))
	if bytes <= *credited && !first {
		return nil
	}
	n := bytes - min(bytes, *credited)
	*credited = bytes
	return d.totals.add(k, n)
}

// continues reports whether e is the same counter, as the kernel reuses counter numbers. In
// doubt it returns true, so that no byte is credited twice. Only byte counters are compared:
// other counters have 32 bits in hardware and wrap.
func (c *counter) continues(e *nldev.QPCounter) bool {
	l := &c.last
	if l.HasTx && e.HasTx && e.Tx < l.Tx || l.HasRx && e.HasRx && e.Rx < l.Rx || l.Mode != e.Mode || l.Kernel != e.Kernel {
		return false
	}
	if l.PID != 0 && e.PID != 0 {
		return l.PID == e.PID
	}
	return slices.ContainsFunc(e.QPNs, func(n uint32) bool { return slices.Contains(l.QPNs, n) })
}

// owner returns the cgroup of the thread of a counter, as first seen, or the common cgroup of
// all its queue pairs. It returns 0 if the cgroup is unknown or the queue pairs belong to
// several cgroups.
func (d *Device) owner(q creatorLookup, c *counter) model.CgroupID {
	e := &c.last
	switch {
	case e.Kernel:
		return 0
	case c.single && c.owner != 0:
		return c.owner
	case e.PID != 0:
		id, _ := d.cgroup(e.PID)
		return id
	}
	qpns := e.QPNs
	if c.single {
		qpns = qpns[:min(1, len(qpns))]
	}
	asked := make(map[uint32]model.CgroupID, len(qpns))
	for _, n := range qpns {
		id, ok := c.qps[n]
		if !ok && d.lookups < maxLookups {
			d.lookups++
			id, ok = d.creator(q, e.Port, n)
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
func (d *Device) creator(q creatorLookup, port, qpn uint32) (id model.CgroupID, known bool) {
	pid, err := q.c.Creator(q.index, port, qpn, q.deadline)
	if err != nil {
		return 0, slices.ContainsFunc(finalErrors, func(e error) bool { return errors.Is(err, e) })
	}
	return d.cgroup(pid)
}

// finalErrors lists errors after which a retry is useless: the object no longer exists, or the
// kernel does not support the command.
var finalErrors = []error{unix.ENOENT, unix.EINVAL, unix.EOPNOTSUPP}

// cgroup returns the cgroup of a process. It returns 0 if the process ended, has no cgroup, or
// cannot be read now; known reports that the result is final.
func (d *Device) cgroup(pid uint32) (id model.CgroupID, known bool) {
	if pid == 0 || pid > math.MaxInt32 {
		return 0, true
	}
	id, err := d.cgroupOf(int(pid))
	if err != nil {
		return 0, errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return id, true
}

// creatorLookup looks up creators of the queue pairs of a device.
type creatorLookup struct {
	c        *nldev.Conn
	index    uint32
	deadline time.Time
}
