// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Lines of consoles, with their meaning: a fault, a stall, or nothing. Crashes are from Linux 6.12 and 7 under QEMU
// 7.2, other lines have the formats of the kernel's source.
func TestFaultMessages(t *testing.T) {
	const nothing, stall, fault = "nothing", "stall", "fault"
	for _, tt := range []struct{ line, is string }{
		{"Oops: int3: 0000 [#1] PREEMPT SMP NOPTI", fault},
		{"int3: 0000 [#1] PREEMPT SMP NOPTI", fault}, // before 6.10
		{"Oops: general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP", fault},
		{"BUG: kernel NULL pointer dereference, address: 0000000000000008", fault},
		{"BUG: unable to handle page fault for address: ffffc90000ca7a68", fault},
		{"BUG: KASAN: slab-use-after-free in ib_uverbs_ioctl+0x12/0x20", fault},
		{"BUG: sleeping function called from invalid context at kernel/locking/mutex.c:273", fault},
		{"kernel BUG at arch/x86/kernel/alternative.c:2531!", fault},
		{"Kernel panic - not syncing: Fatal exception in interrupt", fault},
		{"WARNING: CPU: 1 PID: 412 at kernel/trace/ftrace.c:2187 ftrace_bug+0x1c8/0x2b0", fault},
		{"WARNING: kernel/trace/ftrace.c:2187 at ftrace_bug+0x1c8/0x2b0, CPU#1: accelscope/412", fault}, // 7
		{"WARNING: drivers/gpu/drm/drm_mm.c:965 at drm_mm_takedown+0x1f/0x30 [drm], CPU#0: modprobe/430", nothing},
		{"WARNING: drivers/gpu/drm/drm_mm.c:965 at drm_mm_takedown+0x1f/0x30 [drm], CPU#0: accelscope/430", fault},
		{"WARNING: CPU: 0 PID: 10451 at drivers/gpu/drm/drm_mm.c:964 drm_mm_takedown+0x27/0x30 [drm]", nothing}, // 6.12
		{"WARNING: CPU: 0 PID: 54 at drivers/gpu/drm/virtio/virtgpu_vq.c:354 " +
			"virtio_gpu_queue_fenced_ctrl_buffer+0x4b9/0x580 [virtio_gpu]", nothing},
		{"WARNING: possible circular locking dependency detected", fault},
		{"refcount_t: underflow; use-after-free.", fault},
		{"INFO: task modprobe:812 blocked for more than 120 seconds.", fault},
		{"INFO: rcu_tasks detected stalls on tasks:", fault},
		{"rcu: INFO: rcu_preempt self-detected stall on CPU", stall},
		{"rcu: INFO: rcu_sched detected stalls on CPUs/tasks: { 1-... } (detected by 0, t=5252 jiffies, g=1881, q=12)", stall},
		{"rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 0-...D } 21 jiffies s: 901 root: 0x1/.", stall},
		{"watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [modprobe:812]", stall},
		{"BUG: workqueue lockup - pool cpus=1 node=0 flags=0x0 nice=0 stuck for 34s!", stall},
		{"watchdog: Watchdog detected hard LOCKUP on cpu 1", fault},
		{"rcu: Hierarchical SRCU implementation.", nothing},
		{"NVRM: Xid (PCI:0000:00:04): 31, pid=1, name=BUG: x, MMU Fault", nothing},
		{"mlx5_core 0000:00:04.0: print_health_info:430:(pid 9): Health issue observed, severity(3) ERROR:", nothing},
		{"systemd[1]: WARNING: said by systemd", nothing},
		{"rdma_rxe: loaded", nothing},
	} {
		is := nothing
		if found := kernelFaults("[    1.234567] "+tt.line+"\n", ""); len(found) > 0 {
			if is = fault; stalls.MatchString(found[0]) {
				is = stall
			}
		}
		if is != tt.is {
			t.Errorf("%s: %s, want %s", tt.line, is, tt.is)
		}
	}
}

// TestFacilities: writes of programs to /dev/kmsg are not faults. dmesg has what the console lost, and vice versa.
func TestFacilities(t *testing.T) {
	console := "[    1.000000] WARNING: said by a program\r\n[    2.000000] WARNING: CPU: 0 PID: 1 at a.c:1\r\n"
	dmesg := "user  :warn  : [    1.000000] WARNING: said by a program\n" +
		"kern  :warn  : [    2.000000] WARNING: CPU: 0 PID: 1 at a.c:1\n" +
		"kern  :info  : [    3.000000] fine\n" +
		"kern  :alert : [    4.000000][  T812] BUG: kernel NULL pointer dereference, address: 0\n"
	want := []string{"WARNING: CPU: 0 PID: 1 at a.c:1", "BUG: kernel NULL pointer dereference, address: 0"}
	if diff := cmp.Diff(want, kernelFaults(console, dmesg)); diff != "" {
		t.Error(diff)
	}
}

// TestJudge: a fault fails a guest whose command succeeded. A guest that only stood still runs again, unless its
// command failed.
func TestJudge(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const rip = "[    9.1] RIP: 0010:ib_uverbs_ioctl+0x5/0x130 [ib_uverbs]\n"
	for _, tt := range []struct {
		name, console string
		status        int
		hung          bool
		says          string // empty: nothing
	}{
		{"nothing", "[    9.0] rdma_rxe: loaded\n", 1, false, ""},
		{"a warning", "[    9.0] WARNING: CPU: 0 PID: 1 at a.c:1\n" + rip, 0, false, "WARNING: CPU: 0 PID: 1 at a.c:1, in ib_uverbs_ioctl+0x5/0x130"},
		{"a stall", "[    9.0] rcu: INFO: rcu_preempt self-detected stall on CPU\n" + rip, 0, true, "self-detected stall on CPU, in ib_uverbs_ioctl"},
		{"a stall and a failure", "[    9.0] rcu: INFO: rcu_preempt self-detected stall on CPU\n", 1, false, "self-detected stall"},
		{"a stall and a warning", "[    9.0] watchdog: BUG: soft lockup - CPU#1\n[    9.2] WARNING: x\n", 0, false, "WARNING: x"},
	} {
		r := result(t, tt.console)
		r.Status = tt.status
		err := r.judge()
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) || errors.Is(err, errHung) != tt.hung {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// TestEnded: a kernel that crashed is a failure with the function, also at a removed breakpoint.
func TestEnded(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	r := result(t, "[   19.6] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[   19.6] RIP: 0010:ib_uverbs_ioctl+0x5/0x130 [ib_uverbs]\n")
	err := r.ended(io.EOF)
	if errors.Is(err, errHung) || !strings.HasPrefix(err.Error(), "the kernel crashed, in ib_uverbs_ioctl+0x5/0x130: Oops: int3") {
		t.Error(err)
	}
	if kept, _ := filepath.Glob(filepath.Join(os.TempDir(), "kernel-log-*/kernel.log")); len(kept) != 1 {
		t.Errorf("kept: %q", kept)
	}
}

func result(t *testing.T, console string) *Result {
	t.Helper()
	r := &Result{KernelLog: filepath.Join(t.TempDir(), "kernel.log")}
	if err := os.WriteFile(r.KernelLog, []byte(console), 0o644); err != nil {
		t.Fatal(err)
	}
	return r
}
