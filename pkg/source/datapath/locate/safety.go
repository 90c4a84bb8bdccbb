// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// SafeUnderSeccomp returns model.ErrUnsupported if return probes may kill processes with a
// seccomp filter, by the kernel's release. symbols are the kernel's functions. An
// experiment knows better, where it can be made.
func SafeUnderSeccomp(symbols map[string]bool) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("kernel release: %w", err)
	}
	return returnProbesSafe(symbols, unix.ByteSliceToString(name.Release[:]))
}

// SafeWithShadowStacks returns an error if return probes may kill processes with a shadow
// stack, and the CPU has shadow stacks. An experiment knows better, where it can be made.
func SafeWithShadowStacks(symbols map[string]bool) error {
	return shadowStacksSafe(symbols, "/proc/cpuinfo")
}

// returnProbesSafe returns an error if return probes kill processes with a seccomp
// filter. release is uname -r.
//
// On x86, since 6.11 a return probe traps by a system call. A seccomp filter that
// does not permit it kills the process, as filters of container runtimes do. The kernel
// no longer filters it since 6.14-rc3, 6.13.3 and 6.12.14 ("seccomp: passthrough uretprobe
// systemcall without filtering"). The release does not show whether a distribution
// backported the fix.
func returnProbesSafe(symbols map[string]bool, release string) error {
	if !symbols["__x64_sys_uretprobe"] {
		return nil
	}
	var major, minor, patch int
	if n, _ := fmt.Sscanf(release, "%d.%d.%d", &major, &minor, &patch); n < 2 {
		return fmt.Errorf("%w: kernel release %q does not show whether return probes are safe", model.ErrUnsupported, release)
	}
	candidate := strings.HasPrefix(strings.TrimLeft(release, ".0123456789"), "-rc")
	if major > 6 || major == 6 && (minor > 14 || minor == 14 && !candidate || minor == 13 && patch >= 3 || minor == 12 && patch >= 14) {
		return nil
	}
	return fmt.Errorf("%w: return probes on kernel %s kill processes under seccomp; fixed in 6.12.14, 6.13.3 and 6.14",
		model.ErrUnsupported, release)
}

// shadowStacksSafe returns an error if return probes kill processes with a shadow
// stack. Since 6.11 on x86 they do not. On older kernels the flags in /proc/cpuinfo
// show whether processes can have a shadow stack.
func shadowStacksSafe(symbols map[string]bool, cpuinfo string) error {
	if symbols["__x64_sys_uretprobe"] {
		return nil
	}
	b, err := os.ReadFile(cpuinfo)
	if err != nil {
		return fmt.Errorf("whether processes have shadow stacks: %w", err)
	}
	for _, flag := range []string{"user_shstk", "gcs"} {
		if slices.Contains(strings.Fields(string(b)), flag) {
			return fmt.Errorf("%w: on this kernel return probes kill processes with a shadow stack, which this CPU allows (%s)",
				model.ErrUnsupported, flag)
		}
	}
	return nil
}

// CheckStack returns model.ErrUnsupported if a loaded program uses a stack of the CPU, as far as
// the kernel shows its compiled code: bpf/stack.h.
func CheckStack(program *ebpf.Program) error {
	info, err := program.Info()
	if err != nil {
		return nil
	}
	if code, _ := info.JitedInsns(); !stackOfCPU(code) {
		return nil
	}
	return fmt.Errorf("%w: this kernel would run uprobes that can be preempted on a stack of the CPU", model.ErrUnsupported)
}

// stackOfCPU reports whether compiled code uses a stack of the CPU instead of the
// thread's. The JIT compiler of x86-64 then loads its address into r9 (movabs) and
// adds the base of this CPU's memory (add %gs:…). Such a stack is wrong for
// programs that can be preempted, as uprobes can: bpf/stack.h.
func stackOfCPU(code []byte) bool {
	for {
		_, rest, found := bytes.Cut(code, []byte{0x49, 0xb9})
		if !found || len(rest) < 8 {
			return false
		}
		if bytes.HasPrefix(rest[8:], []byte{0x65, 0x4c, 0x03, 0x0c, 0x25}) {
			return true
		}
		code = rest
	}
}

// initialPIDs is the inode of the node's own process namespace (PROC_PID_INIT_INO).
const initialPIDs = 0xEFFFFFFC

// HostPIDs returns model.ErrUnsupported unless this process and procfs are in the
// node's own PID namespace, as the BPF programs are.
func HostPIDs(procfs string) error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return fmt.Errorf("process namespace: %w", err)
	}
	self, err := os.Readlink(filepath.Join(procfs, "self"))
	if err != nil {
		return fmt.Errorf("process namespace of %s: %w", procfs, err)
	}
	if st.Ino != initialPIDs || self != strconv.Itoa(os.Getpid()) {
		return fmt.Errorf("%w: share the node's process namespace (hostPID)", model.ErrUnsupported)
	}
	return nil
}
