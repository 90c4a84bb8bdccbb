// SPDX-License-Identifier: Apache-2.0

package container

import (
	"math"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// ticks is USER_HZ, the number of units of cpuacct.stat per second, on all supported architectures.
const ticks = 100

// cpuV1 reads cpu.shares, cpu.cfs_period_us, cpu.cfs_quota_us and, if there is a quota, cpu.stat, in nanoseconds.
func (r *reader) cpuV1(dir int, u *model.Usage) {
	c := &u.CPU
	c.Shares = r.value(dir, "cpu.shares", 1)
	c.Period = r.value(dir, "cpu.cfs_period_us", 1)
	c.Quota = r.limit(dir, "cpu.cfs_quota_us")
	if !c.Quota.Known || math.IsInf(c.Quota.Value, 1) {
		return
	}
	r.fields(dir, "cpu.stat",
		field{"nr_periods", &c.Periods, 1}, field{"nr_throttled", &c.ThrottledPeriods, 1}, field{"throttled_time", &c.Throttled, 1e9})
}

// cpuacctV1 reads cpuacct.usage, in nanoseconds, and cpuacct.stat, in ticks.
func (r *reader) cpuacctV1(dir int, u *model.Usage) {
	u.CPU.Total = r.value(dir, "cpuacct.usage", 1e9)
	r.fields(dir, "cpuacct.stat", field{"user", &u.CPU.User, ticks}, field{"system", &u.CPU.System, ticks})
}

// memoryV1 reads the files of the memory controller. The files of swap and kernel memory exist only if the kernel
// accounts for them.
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
	r.fields(dir, "memory.stat",
		field{"pgfault", &m.Faults, 1},
		field{"pgmajfault", &m.MajorFaults, 1},
		field{"total_pgfault", &m.FaultsBelow, 1},
		field{"total_pgmajfault", &m.MajorFaultsBelow, 1},
		field{"total_rss", &m.RSS, 1},
		field{"total_cache", &m.Cache, 1},
		field{"total_swap", &m.Swap, 1},
		field{"total_mapped_file", &m.MappedFile, 1},
		field{"total_inactive_file", &inactive, 1},
	)
	m.WorkingSet = workingSet(m.Usage, inactive)
	r.fields(dir, "memory.oom_control", field{"oom_kill", &m.OOMKills, 1})
}

// workingSet computes the working set as the kubelet does.
func workingSet(usage, inactiveFile model.Optional) model.Optional {
	if !usage.Known || !inactiveFile.Known {
		return model.Optional{}
	}
	return model.Some(max(0, usage.Value-inactiveFile.Value))
}

// blkioV1 reads blkio.throttle.io_service_bytes and io_serviced, which count with every scheduler, including the
// cgroups below from Linux 4.17 on.
func (r *reader) blkioV1(dir int, u *model.Usage) {
	bytes := r.blkio(dir, u, "blkio.throttle.io_service_bytes", blkioBytes)
	operations := r.blkio(dir, u, "blkio.throttle.io_serviced", blkioOperations)
	if (bytes || operations) && u.IO == nil {
		u.IO = []model.DeviceIO{}
	}
}

// The names that the operations of blkio have in io.stat.
var (
	blkioBytes      = map[string]string{"Read": "rbytes", "Write": "wbytes", "Discard": "dbytes"}
	blkioOperations = map[string]string{"Read": "rios", "Write": "wios"}
)

func (r *reader) blkio(dir int, u *model.Usage, name string, names map[string]string) bool {
	b := r.file(dir, name+"_recursive")
	if b == nil {
		b = r.file(dir, name)
	}
	if b == nil {
		return false
	}
	var skipped boundedfile.Skipped
	parseBlkio(b, &skipped, func(major, minor uint32, operation string, v float64) {
		if to := ioValue(deviceIn(u, major, minor), names[operation]); to != nil {
			*to = model.Some(v)
		}
	})
	r.leaveOut(name, skipped)
	return true
}

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
