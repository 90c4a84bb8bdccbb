// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cpuTime reads the CPU clock of all threads of a process, including ended threads, exact to the nanosecond:
// /proc/PID/stat counts ticks of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	const processClock = 2 // CPUCLOCK_SCHED of a process, encoded as in clock_getcpuclockid(3)
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|processClock), &ts); err != nil {
		return 0, fmt.Errorf("CPU clock of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// children returns a process's child processes: the sensor's children have NVIDIA's library open. They may end at any
// time.
func children(pid int) ([]int, error) {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, list := range lists {
		b, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for field := range bytes.FieldsSeq(b) {
			child, err := strconv.Atoi(string(field))
			if err != nil {
				return nil, err
			}
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// totalTime is cpuTime of a process and its children. Ended children's times are in ticks of 10 ms.
func totalTime(pid int) (time.Duration, error) {
	pids, err := children(pid)
	if err != nil {
		return 0, err
	}
	total, err := cpuTime(pid)
	if err != nil {
		return 0, err
	}
	for _, p := range pids {
		if t, err := cpuTime(p); err == nil {
			total += t
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	const user, system, tick = 13, 14, 10 * time.Millisecond // cutime and cstime, counted from the state
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, i := range []int{user, system} {
		ticks, err := strconv.Atoi(string(fields[i]))
		if err != nil {
			return 0, err
		}
		total += time.Duration(ticks) * tick
	}
	return total, nil
}

// memory are values of /proc/PID/status in MB. The children's values are sums.
type memory struct{ rss, peak, anon, childRSS, childAnon float64 }

// readMemory reads the memory of a process and of its children.
func readMemory(pid int) (memory, error) {
	m, err := readStatus(pid)
	if err != nil {
		return m, err
	}
	pids, err := children(pid)
	if err != nil {
		return m, err
	}
	for _, p := range pids {
		if c, err := readStatus(p); err == nil {
			m.childRSS += c.rss
			m.childAnon += c.anon
		}
	}
	return m, nil
}

func readStatus(pid int) (memory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return memory{}, err
	}
	field := func(name string) float64 {
		_, rest, _ := bytes.Cut(b, []byte("\n"+name+":"))
		var kB float64
		fmt.Sscan(string(rest), &kB) // zero if the kernel does not report it
		return kB * 1024 / 1e6
	}
	return memory{rss: field("VmRSS"), peak: field("VmHWM"), anon: field("RssAnon")}, nil
}

// A syscallMeter counts the system calls that a process enters, like
// perf stat -e raw_syscalls:sys_enter -p PID.
type syscallMeter struct{ events []int }

// schedulerCalls are the system calls of Go's scheduler and memory management, whose number depends on other work of
// the machine.
var schedulerCalls = []int{
	unix.SYS_NANOSLEEP, unix.SYS_FUTEX, unix.SYS_EPOLL_PWAIT, unix.SYS_SCHED_YIELD, unix.SYS_MADVISE, unix.SYS_TGKILL, unix.SYS_GETPID,
	unix.SYS_RT_SIGRETURN,
}

// newSyscallMeter opens an event for every thread, which includes the threads and processes that it starts. Excluded
// system calls do not count.
func newSyscallMeter(pid int, excluded ...int) (*syscallMeter, error) {
	id, err := tracepointID("raw_syscalls/sys_enter")
	if err != nil {
		return nil, err
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return nil, err
	}
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_TRACEPOINT,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: id,
		Bits:   unix.PerfBitInherit,
	}
	m := &syscallMeter{}
	for _, task := range tasks {
		tid, err := strconv.Atoi(filepath.Base(task))
		if err != nil {
			return nil, err
		}
		fd, err := unix.PerfEventOpen(&attr, tid, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			m.close()
			return nil, fmt.Errorf("perf_event_open (as root?): %w", err)
		}
		m.events = append(m.events, fd)
		if len(excluded) == 0 {
			continue
		}
		filter := make([]string, len(excluded))
		for i, nr := range excluded {
			filter[i] = fmt.Sprint("id != ", nr)
		}
		if err := setFilter(fd, strings.Join(filter, " && ")); err != nil {
			m.close()
			return nil, err
		}
	}
	return m, nil
}

// setFilter sets a tracepoint filter for a descriptor's events.
func setFilter(fd int, filter string) error {
	text, err := unix.BytePtrFromString(filter)
	if err != nil {
		return err
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.PERF_EVENT_IOC_SET_FILTER, uintptr(unsafe.Pointer(text)))
	if errno != 0 {
		return fmt.Errorf("filter of system calls: %w", errno)
	}
	return nil
}

func tracepointID(name string) (uint64, error) {
	var err error
	for _, root := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		var b []byte
		if b, err = os.ReadFile(filepath.Join(root, "events", name, "id")); err == nil {
			return strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
		}
	}
	return 0, fmt.Errorf("is tracefs mounted? %w", err)
}

func (m *syscallMeter) count() (uint64, error) {
	var total uint64
	for _, fd := range m.events {
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err != nil {
			return 0, fmt.Errorf("perf event: %w", err)
		}
		total += binary.NativeEndian.Uint64(b[:])
	}
	return total, nil
}

func (m *syscallMeter) close() {
	for _, fd := range m.events {
		unix.Close(fd)
	}
}
