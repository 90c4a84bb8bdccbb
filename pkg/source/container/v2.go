// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bytes"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// cpuV2 reads cpu.stat, in microseconds, cpu.max and cpu.weight. Without the controller a cgroup has only cpu.stat,
// with the times.
func (r *reader) cpuV2(dir int, u *model.Usage) {
	c := &u.CPU
	r.fields(dir, "cpu.stat",
		field{"usage_usec", &c.Total, 1e6},
		field{"user_usec", &c.User, 1e6},
		field{"system_usec", &c.System, 1e6},
		field{"nr_periods", &c.Periods, 1},
		field{"nr_throttled", &c.ThrottledPeriods, 1},
		field{"throttled_usec", &c.Throttled, 1e6},
	)
	if b := r.file(dir, "cpu.max"); b != nil {
		quota, period, _ := bytes.Cut(b, []byte{' '})
		q, ok := limit(quota)
		p, ok2 := number(period)
		if ok && ok2 {
			c.Quota, c.Period = model.Some(q), model.Some(p)
		} else {
			r.bad("cpu.max", b)
		}
	}
	if weight := r.value(dir, "cpu.weight", 1); weight.Known && weight.Value >= 1 && weight.Value <= 10000 {
		c.Shares = model.Some(sharesOf(weight.Value))
	}
}

// sharesOf converts a weight (1 to 10000) to shares (2 to 262144) as cAdvisor does.
func sharesOf(weight float64) float64 {
	return float64(2 + (uint64(weight)-1)*262142/9999)
}

// memoryV2 reads the files of the memory controller. Older kernels lack memory.peak (5.19), and the field kernel in
// memory.stat (5.18).
func (r *reader) memoryV2(dir int, u *model.Usage) {
	m := &u.Memory
	m.Usage = r.value(dir, "memory.current", 1)
	if !m.Usage.Known && r.gone {
		return
	}
	m.Peak = r.value(dir, "memory.peak", 1)
	m.Swap = r.value(dir, "memory.swap.current", 1)
	m.Limit = r.limit(dir, "memory.max")
	m.SwapLimit = r.limit(dir, "memory.swap.max")
	m.Reservation = r.limit(dir, "memory.min")
	inactive := model.Optional{}
	r.fields(dir, "memory.stat",
		field{"anon", &m.RSS, 1},
		field{"file", &m.Cache, 1},
		field{"file_mapped", &m.MappedFile, 1},
		field{"inactive_file", &inactive, 1},
		field{"kernel", &m.Kernel, 1},
		field{"pgfault", &m.Faults, 1},
		field{"pgmajfault", &m.MajorFaults, 1},
	)
	m.FaultsBelow, m.MajorFaultsBelow = m.Faults, m.MajorFaults
	m.WorkingSet = workingSet(m.Usage, inactive)
	r.fields(dir, "memory.events", field{"max", &m.LimitHits, 1}, field{"oom_kill", &m.OOMKills, 1})
}

// ioV2 reads io.stat.
func (r *reader) ioV2(dir int, u *model.Usage) {
	if b := r.file(dir, "io.stat"); b != nil {
		var skipped boundedfile.Skipped
		u.IO = parseIO(b, &skipped)
		r.leaveOut("io.stat", skipped)
	}
}
