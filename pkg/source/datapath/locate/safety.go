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

// Safe says whether uprobes and return probes are safe on this kernel. symbols are
// names of kernel functions.
func Safe(symbols map[string]bool) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("kernel release: %w", err)
	}
	if err := shadowStacksSafe(symbols, "/proc/cpuinfo"); err != nil {
		return err
	}
	return returnProbesSafe(symbols, unix.ByteSliceToString(name.Release[:]))
}

// returnProbesSafe says whether a return may be probed on this kernel. symbols
// are names of kernel functions, release is uname -r.
//
// On x86, 6.11 made the trap of a return probe a system call, which a seccomp
// filter that does not know it answers with death: any container's. Filters let
// it pass ("seccomp: passthrough uretprobe systemcall without filtering") since
// 6.14-rc3, and 6.13.3 and 6.12.14. A distribution that took the fix into an
// older base is refused: its release does not tell.
func returnProbesSafe(symbols map[string]bool, release string) error {
	if !symbols["__x64_sys_uretprobe"] {
		return nil
	}
	major, minor, patch, candidate, err := parseRelease(release)
	if err != nil {
		return fmt.Errorf("%w: kernel release %q does not tell whether return probes are safe", model.ErrUnsupported, release)
	}
	safe := false
	switch {
	case major != 6:
		safe = major > 6
	case minor == 12:
		safe = patch >= 14
	case minor == 13:
		safe = patch >= 3
	case minor == 14:
		safe = !candidate
	default:
		safe = minor > 14
	}
	if safe {
		return nil
	}
	return fmt.Errorf("%w: return probes on kernel %s kill processes under seccomp; fixed in 6.12.14, 6.13.3 and 6.14",
		model.ErrUnsupported, release)
}

// shadowStacksSafe says whether a process with a shadow stack survives a return
// probe: since 6.11, on x86. Where processes may have one, as /proc/cpuinfo tells,
// nobody knows which of those that map a file later will.
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

// hasStackOfCPU says whether the kernel shows that stackOfCPU holds of a program.
func HasCPUStack(program *ebpf.Program) bool {
	info, err := program.Info()
	if err != nil {
		return false
	}
	code, _ := info.JitedInsns()
	return stackOfCPU(code)
}

// stackOfCPU says whether a compiled program has a stack that is the CPU's, not
// the thread's: the compiler of x86-64 then loads its address into r9 (movabs), and
// adds where the memory of this CPU is (add %gs:…). It is for programs that cannot
// be preempted, and uprobes can: bpf/datapath.bpf.c.
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

// hostPIDs says whether we and procfs number processes as the programs do: as the
// node does.
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

// parseRelease reads 6.12.107+deb13-amd64, 6.18.44, 7.2.12+deb14-amd64, 6.14.0-rc2.
// candidate says that it is a release candidate.
func parseRelease(release string) (major, minor, patch int, candidate bool, err error) {
	version, rest := release, ""
	if i := strings.IndexFunc(release, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }); i >= 0 {
		version, rest = release[:i], release[i:]
	}
	parts := strings.SplitN(version, ".", 4)
	numbers := [3]int{}
	for i, part := range parts[:min(len(parts), 3)] {
		if numbers[i], err = strconv.Atoi(part); err != nil {
			return 0, 0, 0, false, err
		}
	}
	if len(parts) < 2 {
		return 0, 0, 0, false, strconv.ErrSyntax
	}
	return numbers[0], numbers[1], numbers[2], strings.HasPrefix(rest, "-rc"), nil
}
