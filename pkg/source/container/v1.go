// SPDX-License-Identifier: Apache-2.0

package container

import (
	"math"

	"github.com/accelscope/accelscope/pkg/model"
)

// ticks is the number of units of cpuacct.stat in a second (USER_HZ), the same on all supported
// architectures.
const ticks = 100

// cpuV1 reads cpu.shares, cpu.cfs_period_us, cpu.cfs_quota_us and, if there is a quota, cpu.stat,
// in nanoseconds.
func (r *reader) cpuV1(dir int, u *model.Usage) {
	c := &u.CPU
	c.Shares = r.value(dir, "cpu.shares", 1)
	c.Period = r.value(dir, "cpu.cfs_period_us", 1)
	c.Quota = r.limit(dir, "cpu.cfs_quota_us")
	if !c.Quota.Known || math.IsInf(c.Quota.Value, 1) {
		return
	}
	r.pairs(dir, "cpu.stat", func(key []byte, v float64) {
		switch string(key) {
		case "nr_periods":
			c.Periods = model.Some(v)
		case "nr_throttled":
			c.ThrottledPeriods = model.Some(v)
		case "throttled_time":
			c.Throttled = model.Some(v / 1e9)
		}
	})
}

// cpuacctV1 reads cpuacct.usage, in nanoseconds, and cpuacct.stat, in ticks.
func (r *reader) cpuacctV1(dir int, u *model.Usage) {
	u.CPU.Total = r.value(dir, "cpuacct.usage", 1e9)
	r.pairs(dir, "cpuacct.stat", func(key []byte, v float64) {
		switch string(key) {
		case "user":
			u.CPU.User = model.Some(v / ticks)
		case "system":
			u.CPU.System = model.Some(v / ticks)
		}
	})
}

// memoryV1 reads the files of the memory controller. Those of swap and of kernel memory exist only
// if the kernel accounts for them.
func (r *reader) memoryV1(dir int, u *model.Usage) {
	m := &u.Memory
	m.Usage = r.value(dir, "memory.usage_in_bytes", 1)
	m.Peak = r.value(dir, "memory.max_usage_in_bytes", 1)
	m.LimitHits = r.value(dir, "memory.failcnt", 1)
	m.Kernel = r.value(dir, "memory.kmem.usage_in_bytes", 1)
	m.Limit = r.limit(dir, "memory.limit_in_bytes")
	m.SwapLimit = r.limit(dir, "memory.memsw.limit_in_bytes")
	m.Reservation = r.limit(dir, "memory.soft_limit_in_bytes")
	inactive := model.Optional{}
	r.pairs(dir, "memory.stat", func(key []byte, v float64) {
		switch string(key) {
		case "pgfault":
			m.Faults = model.Some(v)
		case "pgmajfault":
			m.MajorFaults = model.Some(v)
		case "total_pgfault":
			m.FaultsBelow = model.Some(v)
		case "total_pgmajfault":
			m.MajorFaultsBelow = model.Some(v)
		case "total_rss":
			m.RSS = model.Some(v)
		case "total_cache":
			m.Cache = model.Some(v)
		case "total_swap":
			m.Swap = model.Some(v)
		case "total_mapped_file":
			m.MappedFile = model.Some(v)
		case "total_inactive_file":
			inactive = model.Some(v)
		}
	})
	m.WorkingSet = workingSet(m.Usage, inactive)
	r.pairs(dir, "memory.oom_control", func(key []byte, v float64) {
		if string(key) == "oom_kill" {
			m.OOMKills = model.Some(v)
		}
	})
}

// workingSet computes the working set as the kubelet does.
func workingSet(usage, inactiveFile model.Optional) model.Optional {
	if !usage.Known || !inactiveFile.Known {
		return model.Optional{}
	}
	return model.Some(max(0, usage.Value-inactiveFile.Value))
}

// blkioV1 reads blkio.throttle.io_service_bytes and io_serviced, which count with every scheduler,
// including the cgroups below if the kernel supports it (4.17).
func (r *reader) blkioV1(dir int, u *model.Usage) {
	bytes := r.blkio(dir, u, "blkio.throttle.io_service_bytes", func(d *model.DeviceIO, op string) *model.Optional {
		switch op {
		case "Read":
			return &d.ReadBytes
		case "Write":
			return &d.WriteBytes
		case "Discard":
			return &d.DiscardBytes
		}
		return nil
	})
	operations := r.blkio(dir, u, "blkio.throttle.io_serviced", func(d *model.DeviceIO, op string) *model.Optional {
		switch op {
		case "Read":
			return &d.Reads
		case "Write":
			return &d.Writes
		}
		return nil
	})
	if (bytes || operations) && u.IO == nil {
		u.IO = []model.DeviceIO{}
	}
}

func (r *reader) blkio(dir int, u *model.Usage, name string, place func(*model.DeviceIO, string) *model.Optional) bool {
	b := r.file(dir, name+"_recursive")
	if b == nil {
		b = r.file(dir, name)
	}
	if b == nil {
		return false
	}
	ok := parseBlkio(b, func(major, minor uint32, operation string, v float64) {
		if to := place(deviceIn(u, major, minor), operation); to != nil {
			*to = model.Some(v)
		}
	})
	if !ok {
		r.bad(name, b)
	}
	return true
}

// deviceIn finds a device, or adds it. The list is short.
func deviceIn(u *model.Usage, major, minor uint32) *model.DeviceIO {
	for i := range u.IO {
		if d := &u.IO[i]; d.Major == major && d.Minor == minor {
			return d
		}
	}
	u.IO = append(u.IO, model.DeviceIO{Major: major, Minor: minor})
	return &u.IO[len(u.IO)-1]
}

// pids reads pids.current and pids.max, in both versions.
func (r *reader) pids(dir int, u *model.Usage) {
	u.Threads = r.value(dir, "pids.current", 1)
	u.ThreadsMax = r.limit(dir, "pids.max")
}
