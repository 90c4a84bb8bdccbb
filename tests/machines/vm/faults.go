// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// faults are the beginnings of messages with which a kernel reports that something is wrong: lib/bug.c, kernel/panic.c,
// mm/kasan, kernel/locking/lockdep.c, kernel/hung_task.c, kernel/rcu, kernel/watchdog.c, lib/refcount.c, and die() of
// arch/x86/kernel/dumpstack.c ("int3: 0000 [#1]").
var faults = regexp.MustCompile(`^(?:WARNING: |BUG: |kernel BUG at |Kernel panic |refcount_t: |DEBUG_LOCKS_WARN_ON|` +
	`INFO: (?:task .* blocked |possible |suspicious |inconsistent |trying to register )|` +
	`(?:rcu: )?INFO: rcu_?\S* .*stall|(?:NMI )?watchdog: .*(?:soft lockup|hard LOCKUP)|` +
	`.*: [0-9a-f]{4} \[#[0-9]+\])`)

// stalls are the faults that an emulated CPU also causes when the machine lets it wait for half a minute.
var stalls = regexp.MustCompile(`soft lockup|workqueue lockup|INFO: rcu_(?:sched|preempt) `)

// harmless are faults of a kernel alone, each with the reason and where it was seen without our programs.
var harmless = []*regexp.Regexp{
	// virtio_gpu of Linux 7 does not free all its allocations when it is unloaded: a guest that only loads and unloads
	// it warns in some of 10 unloads (on 6.12 once; never on 5.10 and 6.1).
	regexp.MustCompile(`^WARNING: drivers/gpu/drm/drm_mm\.c:[0-9]+ at drm_mm_takedown\+\S+ \[drm\], CPU#[0-9]+: modprobe/`),
	regexp.MustCompile(`^WARNING: CPU: [0-9]+ PID: [0-9]+ at drivers/gpu/drm/drm_mm\.c:[0-9]+ drm_mm_takedown\+\S+ \[drm\]$`),
	// At power-off the kernel breaks the queues of virtio devices (virtio_dev_shutdown), and the console's framebuffer
	// may still draw: virtqueue_add_sgs returns -EIO, and virtio_gpu warns. Seen on 6.1 after "sysrq: Power Off".
	regexp.MustCompile(`^WARNING: CPU: [0-9]+ PID: [0-9]+ at drivers/gpu/drm/virtio/virtgpu_vq\.c:[0-9]+ ` +
		`virtio_gpu_queue_fenced_ctrl_buffer\+\S+ \[virtio_gpu\]$`),
}

// A record is a line of a kernel log without its time: of the console, or of `dmesg -x`, which also has the facility.
var (
	consoleRecord  = regexp.MustCompile(`(?m)^\[ *[0-9]+\.[0-9]+\](?:\[ *[TC][0-9]+\])? (.*)$`)
	facilityRecord = regexp.MustCompile(`(?m)^(\w+) *:\w+ *: \[ *[0-9]+\.[0-9]+\](?:\[ *[TC][0-9]+\])? (.*)$`)
)

func isFault(record string) bool {
	return faults.MatchString(record) && !slices.ContainsFunc(harmless, func(h *regexp.Regexp) bool { return h.MatchString(record) })
}

// kernelFaults returns the faults that the kernel reports, in order: from the console, which is complete unless too
// many come at once, and from dmesg, which has the end. Writes of programs to /dev/kmsg are not faults: dmesg has their
// facility.
func kernelFaults(console, dmesg string) (found []string) {
	var records, programs []string
	for _, m := range consoleRecord.FindAllStringSubmatch(console, -1) {
		records = append(records, strings.TrimRight(m[1], "\r"))
	}
	for _, m := range facilityRecord.FindAllStringSubmatch(dmesg, -1) {
		if m[1] == "kern" {
			records = append(records, m[2])
		} else {
			programs = append(programs, m[2])
		}
	}
	for _, r := range records {
		if isFault(r) && !slices.Contains(programs, r) && !slices.Contains(found, r) {
			found = append(found, r)
		}
	}
	return found
}

// firstFault returns the index of the first line of a console with a fault, or -1.
func firstFault(console string) int {
	for _, at := range consoleRecord.FindAllStringSubmatchIndex(console, -1) {
		if isFault(console[at[2]:at[3]]) {
			return at[0]
		}
	}
	return -1
}

func (r *Result) faults() []string {
	console, _ := os.ReadFile(r.KernelLog)
	dmesg, _ := os.ReadFile(filepath.Join(filepath.Dir(r.KernelLog), "dmesg"))
	return kernelFaults(string(console), string(dmesg))
}

// judge returns an error if the kernel reports a fault, whatever the command's status. A guest whose CPU only stood
// still has hung, unless its command failed, too.
func (r *Result) judge() error {
	found := r.faults()
	if len(found) == 0 {
		return nil
	}
	if !slices.ContainsFunc(found, func(f string) bool { return !stalls.MatchString(f) }) && r.Status == 0 {
		return r.hung("for long: " + found[0])
	}
	return fmt.Errorf("the kernel reports %s%s\n%s", strings.Join(found, "; "), r.place(), r.keep())
}

// ended returns the error of a guest that powered off without a status of its command.
func (r *Result) ended(err error) error {
	if found := r.faults(); len(found) > 0 {
		return fmt.Errorf("the kernel crashed%s: %s\n%s", r.place(), strings.Join(found, "; "), r.keep())
	}
	return fmt.Errorf("guest ended before its command: %w\n%s", err, r.keep())
}

func (r *Result) hung(how string) error {
	return fmt.Errorf("%w %s%s\n%s", errHung, how, r.place(), r.keep())
}

// instruction is the line of an oops, or of a lockup, with the kernel function that the CPU was in (0010 is the code
// segment).
var instruction = regexp.MustCompile(`\] RIP: 0010:(\S+)`)

// place returns where the kernel was when it first reported a fault, ", in ib_uverbs_ioctl+0x5/0x130", or "" if
// unknown.
func (r *Result) place() string {
	console, _ := os.ReadFile(r.KernelLog)
	if m := instruction.FindSubmatch(console); m != nil {
		return ", in " + string(m[1])
	}
	return ""
}

// keep copies the logs of the kernel out of the share, which tests remove, to the directory for temporary files. It
// returns where they are, with the most important part.
func (r *Result) keep() string {
	shown := tail(r.KernelLog)
	kept, err := os.MkdirTemp("", "kernel-log-")
	if err != nil {
		return shown
	}
	if err := os.CopyFS(kept, os.DirFS(filepath.Dir(r.KernelLog))); err != nil {
		return shown
	}
	return "kept in " + kept + "; " + shown
}
