// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

const (
	reuseLookup = time.Second // how long a lookup is reused
	keepEnded   = time.Minute // how long the cgroup of a process is kept after its last fault
	maxLookups  = 1024
	// maxDrift is more than NTP corrects CLOCK_MONOTONIC against the clock of the kernel log.
	maxDrift     = 0.0005
	kernelThread = 0x00200000 // PF_KTHREAD in include/linux/sched.h
	exiting      = 0x00000004 // PF_EXITING
)

// ErrForeignPIDs reports that the PIDs in the kernel log and in procfs belong to different namespaces.
var ErrForeignPIDs = fmt.Errorf("the owners of faults are unknown: procfs is not that of the host's PID namespace: %w",
	model.ErrUnsupported)

// processes finds the cgroups of processes that caused a fault.
type processes struct {
	procfs string
	// cgroupOf returns the cgroup of a process, and lastCgroupOf the cgroup of a process that a GPU driver listed
	// lately. Both may be nil.
	cgroupOf     func(pid int) (model.CgroupID, error)
	lastCgroupOf func(pid int) (model.CgroupID, bool)
	looked       map[int]lookup
}

type lookup struct {
	cgroup model.CgroupID
	at     time.Time
}

// check reports whether procfs has the PIDs of the kernel log. Only in the initial PID namespace process 2 is a kernel
// thread.
func (p *processes) check() error {
	s, err := p.stat(2)
	if err != nil || s.Flags&kernelThread == 0 {
		return ErrForeignPIDs
	}
	return nil
}

// find returns the cgroup of a process, or 0 if unknown. The process may have ended. logged is the time of the fault
// since boot, see clock. A process with the reused PID of an earlier process is not returned.
func (p *processes) find(pid int, logged bounds, now time.Time) model.CgroupID {
	last, known := p.looked[pid]
	if known && now.Sub(last.at) < reuseLookup {
		return last.cgroup
	}
	s, err := p.stat(pid)
	ends := err == nil && s.Flags&exiting != 0 // cgroup v1 has moved it to the root
	if err == nil && !ends {
		id, err := p.lookUp(pid)
		if err != nil || !logged.after(s.Start) {
			return 0
		}
		p.remember(pid, lookup{id, now})
		return id
	}
	if known && now.Sub(last.at) < keepEnded {
		return last.cgroup
	}
	if p.lastCgroupOf != nil && !logged.earlier {
		if id, ok := p.lastCgroupOf(pid); ok {
			return id
		}
	}
	if ends && logged.after(s.Start) {
		if id, err := p.lookUp(pid); err == nil {
			return id
		}
	}
	return 0
}

func (p *processes) stat(pid int) (procfile.Stat, error) {
	return procfile.ReadStat(filepath.Join(p.procfs, strconv.Itoa(pid)))
}

func (p *processes) lookUp(pid int) (model.CgroupID, error) {
	if p.cgroupOf == nil {
		return 0, model.ErrUnsupported
	}
	return p.cgroupOf(pid)
}

func (p *processes) remember(pid int, l lookup) {
	if p.looked == nil || len(p.looked) >= maxLookups {
		p.looked = map[int]lookup{}
	}
	p.looked[pid] = l
}

func (p *processes) forget(ended map[model.CgroupID]bool) {
	for pid, l := range p.looked {
		if ended[l.cgroup] {
			delete(p.looked, pid)
		}
	}
}

type clock struct {
	wall                time.Time
	monotonic, boottime time.Duration
}

func now() clock {
	get := func(id int32) time.Duration {
		var ts unix.Timespec
		if unix.ClockGettime(id, &ts) != nil {
			return 0
		}
		return time.Duration(ts.Nano())
	}
	return clock{wall: time.Now(), monotonic: get(unix.CLOCK_MONOTONIC), boottime: get(unix.CLOCK_BOOTTIME)}
}

// bounds are the earliest and the latest time of a record since boot, including the time in suspend. NTP does not
// correct the clock of the kernel log.
type bounds struct {
	from, to time.Duration
	earlier  bool
}

// age returns the time since the record was logged, without the time in suspend.
func (c clock) age(r *record) time.Duration { return max(0, c.monotonic-r.sinceBoot) }

func (c clock) bounds(r *record, earlier bool) bounds {
	at, margin := c.boottime-c.age(r), time.Second+time.Duration(float64(c.boottime)*maxDrift)
	return bounds{from: at - margin, to: at + margin, earlier: earlier}
}

// after reports whether the record is later than a time since boot: certainly for a record from before the sensor
// started, because a PID may have been reused meanwhile; otherwise possibly.
func (b bounds) after(t time.Duration) bool {
	if b.earlier {
		return t < b.from
	}
	return t <= b.to
}
