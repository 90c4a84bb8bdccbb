// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"bytes"
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// maxTasks limits the listed stuck tasks. The numbers of stuck tasks have no limit.
const maxTasks = 256

// builtIn is the name of drivers that are built into the kernel: their files name no module.
const builtIn = "built-in"

type use struct {
	cgroup uint64
	driver string
}

func at(uses map[use]*model.DriverUse, k *gen.GPUDriverDriverKey) *model.DriverUse {
	key := use{k.Cgroup, driverName(k)}
	u := uses[key]
	if u == nil {
		u = &model.DriverUse{Cgroup: model.CgroupID(k.Cgroup), Driver: key.driver}
		uses[key] = u
	}
	return u
}

func driverName(k *gen.GPUDriverDriverKey) string {
	var name []byte
	for _, c := range k.Driver {
		if c == 0 {
			break
		}
		name = append(name, byte(c))
	}
	if len(name) == 0 {
		return builtIn
	}
	return string(name)
}

func kindOf(k *gen.GPUDriverDriverKey) model.DriverCallKind {
	if k.Waits != 0 {
		return model.DriverWait
	}
	return model.DriverWork
}

func histogram(v *gen.GPUDriverDriverStat) model.Histogram {
	h := model.Histogram{Sum: v.SumNs, Buckets: v.Buckets}
	for _, n := range v.Buckets {
		h.Count += n
	}
	return h
}

// stuck adds the calls in progress to the uses of drivers and returns the stuck tasks, the oldest call of each driver
// first. It leaves out requests that wait on purpose.
func (s *Source) stuck(uses map[use]*model.DriverUse) ([]model.DriverTask, error) {
	now, wall := monotonic(), time.Now()
	type candidate struct {
		tid  uint32
		call gen.GPUDriverDriverCall
	}
	var long []candidate
	err := s.sensor.inProgress(func(tid uint32, call *gen.GPUDriverDriverCall) {
		if age(now, call) >= s.o.StuckAfter {
			long = append(long, candidate{tid, *call})
		} else if call.Key.Waits == 0 {
			u := at(uses, &call.Key)
			u.Oldest = max(u.Oldest, age(now, call))
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(long, func(a, b candidate) int { return cmp.Compare(a.call.StartNs, b.call.StartNs) })
	tasks, named := []model.DriverTask{}, nodePIDs(s.o.Procfs)
	for _, c := range long {
		lasts, holder, err := s.sensor.lasts(c.tid, &c.call)
		if err != nil {
			return nil, err
		}
		if !lasts || c.call.Key.Waits != 0 {
			continue
		}
		u := at(uses, &c.call.Key)
		u.Oldest = max(u.Oldest, age(now, &c.call))
		u.Stuck++
		if len(tasks) < maxTasks {
			t := s.describe(c.tid, &c.call, wall.Add(-age(now, &c.call)), named)
			if t.HolderPID, t.HolderTID = holder.pid, holder.tid; named && holder.tid != 0 {
				t.HolderProcess = readTask(s.o.Procfs, uint32(holder.tid), "comm")
			}
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

// monotonic returns the kernel's monotonic clock in nanoseconds, as the programs read it.
func monotonic() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // does not fail
	return uint64(ts.Nano())
}

func age(now uint64, call *gen.GPUDriverDriverCall) time.Duration {
	return time.Duration(now - min(now, call.StartNs))
}

// describe returns a stuck task. named: procfs has the PIDs that the programs see.
func (s *Source) describe(tid uint32, call *gen.GPUDriverDriverCall, since time.Time, named bool) model.DriverTask {
	t := model.DriverTask{
		Cgroup: model.CgroupID(call.Key.Cgroup), Driver: driverName(&call.Key), Request: call.Request,
		PID: int(call.Tgid), TID: int(tid), Since: since,
	}
	if named {
		t.Process = readTask(s.o.Procfs, tid, "comm")
		// "0": the task runs, or the sensor may not know (CAP_SYS_PTRACE).
		if t.Function = readTask(s.o.Procfs, tid, "wchan"); t.Function == "0" {
			t.Function = ""
		}
	}
	return t
}

// initialPIDs is the inode of the node's initial process namespace (PROC_PID_INIT_INO).
const initialPIDs = 0xEFFFFFFC

// nodePIDs reports whether procfs has the PIDs of the initial namespace, which the programs see.
func nodePIDs(procfs string) bool {
	var st unix.Stat_t
	return unix.Stat(filepath.Join(procfs, "self/ns/pid"), &st) == nil && st.Ino == initialPIDs
}

// readTask reads a file of a thread in procfs. It returns "" if the thread has ended or the file may not be read.
func readTask(procfs string, tid uint32, name string) string {
	text, err := boundedfile.ReadOnce(filepath.Join(procfs, strconv.Itoa(int(tid)), name), make([]byte, 256))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(bytes.TrimSpace(text)), "?")
}
