// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// host is the part of the machine that doctor examines: directories, and functions for what no directory shows.
type host struct {
	sysfs, procfs string
	release       string // of the kernel
	uid           int
	tier          string // --probe.tier
	netlink       func() error
	attach        func(tier string) error
	gpuProcesses  func() error // why NVML does not list the processes of the node
}

func thisHost(f config.SensorFlags) host {
	var uts unix.Utsname
	release := "unknown"
	if unix.Uname(&uts) == nil {
		release = unix.ByteSliceToString(uts.Release[:])
	}
	listed := func() error { return wire.ProcessesListed(f.Host) }
	return host{f.Sysfs, f.Procfs, release, os.Geteuid(), f.Tier, dialRDMANetlink, tryTier, listed}
}

// tiers are the methods to attach a hook, best first, and what each requires.
var tiers = []struct{ name, cure string }{
	{"fentry", "needs Linux 5.13, CONFIG_DEBUG_INFO_BTF, CONFIG_FUNCTION_TRACER and CAP_SYS_ADMIN; the kprobe tier does without"},
	{"kprobe", "needs CONFIG_KPROBES, CAP_BPF and CAP_PERFMON"},
	{"tracepoint", "needs Linux 5.13, tracefs (mount -t tracefs tracefs /sys/kernel/tracing), CAP_BPF and CAP_PERFMON"},
}

// check adds what the host allows to r and returns the tiers that can be used.
func (h host) check(r *Report) map[string]bool {
	tried, usable := map[string]error{}, map[string]bool{}
	hooks := false // whether a hook of any tier can be attached
	for _, t := range tiers {
		err := h.attach(t.name)
		tried[t.name] = err
		usable[t.name] = err == nil && (h.tier == "auto" || h.tier == t.name)
		hooks = hooks || err == nil
	}
	r.add("permission", "user", model.StateOK, "uid "+strconv.Itoa(h.uid), "")
	h.checkCapabilities(r, hooks)
	r.add("kernel", "release", model.StateOK, h.release, "")
	h.checkLockdown(r)
	h.checkPath(r, "type information", "kernel/btf/vmlinux", "needs a kernel with CONFIG_DEBUG_INFO_BTF")
	h.checkPath(r, "tracefs", "kernel/tracing/events", "mount -t tracefs tracefs /sys/kernel/tracing")
	for _, module := range []string{"ib_core", "ib_uverbs"} {
		h.checkPath(r, module, "module/"+module, "modprobe "+module+", or load the driver of the HCA")
	}
	r.addResult("kernel", "RDMA netlink", h.netlink(), "it comes with ib_core")
	for _, t := range tiers {
		r.addResult("tier", t.name, tried[t.name], t.cure)
	}
	return usable
}

// checkCapabilities adds each capability that matters and what needs it. hooks
// is whether a hook could be attached.
func (h host) checkCapabilities(r *Report, hooks bool) {
	set, err := effectiveCapabilities(filepath.Join(h.procfs, "self/status"))
	if err != nil {
		r.add("permission", "capabilities", model.StateFailed, err.Error(), "name the mount of procfs with --path.procfs")
		return
	}
	has := func(bit int) bool { return set&(1<<bit) != 0 }
	admin := has(unix.CAP_SYS_ADMIN)
	// need adds a capability. One without a cure is needed only by a better tier: its lack is no failure.
	need := func(ok bool, name, why, cure string) {
		switch {
		case ok:
			r.add("permission", name, model.StateOK, why, "")
		case cure == "":
			r.add("permission", name, model.StateAbsent, "missing: "+why, "")
		default:
			r.add("permission", name, model.StateFailed, "missing: "+why, "run as root, or privileged in a container, or "+cure)
		}
	}
	need(admin || has(unix.CAP_BPF), "CAP_BPF", "all BPF programs and maps", "add CAP_BPF")
	need(admin || has(unix.CAP_PERFMON), "CAP_PERFMON", "all hooks", "add CAP_PERFMON")
	if paranoid := h.paranoid(); !admin && !hooks && paranoid > 2 {
		need(false, "CAP_SYS_ADMIN", fmt.Sprintf("all hooks, as kernel.perf_event_paranoid is %d", paranoid),
			"add CAP_SYS_ADMIN, or sysctl kernel.perf_event_paranoid=2")
	} else {
		need(admin, "CAP_SYS_ADMIN", "the fentry tier on functions of modules", "")
	}
	if h.before(5, 11) {
		need(has(unix.CAP_SYS_RESOURCE) || h.memlockUnlimited(), "CAP_SYS_RESOURCE",
			"BPF maps before Linux 5.11, unless RLIMIT_MEMLOCK is unlimited", "add CAP_SYS_RESOURCE, or LimitMEMLOCK=infinity")
	}
	if h.uid != 0 {
		need(has(unix.CAP_DAC_READ_SEARCH), "CAP_DAC_READ_SEARCH", "the tracepoint tier: tracefs belongs to root", "")
		need(has(unix.CAP_SYSLOG), "CAP_SYSLOG", "errors of GPUs and HCAs in the kernel log, if kernel.dmesg_restrict is 1", "")
		need(has(unix.CAP_DAC_OVERRIDE), "CAP_DAC_OVERRIDE",
			"names from container runtimes, devices from the kubelet: their sockets belong to root, or to a group", "")
	}
	if _, err := os.Stat(filepath.Join(h.procfs, "1")); err != nil && !has(unix.CAP_SYS_PTRACE) {
		need(false, "CAP_SYS_PTRACE", "owners of what was made before the start, as /proc hides processes (hidepid)",
			"add CAP_SYS_PTRACE")
	} else if h.uid != 0 {
		need(has(unix.CAP_SYS_PTRACE), "CAP_SYS_PTRACE",
			"open files and namespaces of processes: processes on GPUs, container_network_*, HCAs in pods, the data path", "")
	}
}

// paranoid returns /proc/sys/kernel/perf_event_paranoid, or 0. Kernels of Debian
// also have level 3, for which CAP_PERFMON is not enough to attach a hook.
func (h host) paranoid() int {
	data, _ := os.ReadFile(filepath.Join(h.procfs, "sys/kernel/perf_event_paranoid"))
	level, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return level
}

// memlockUnlimited reads the hard limit from /proc/self/limits, in a line like
// "Max locked memory  unlimited  unlimited  bytes".
func (h host) memlockUnlimited() bool {
	data, _ := os.ReadFile(filepath.Join(h.procfs, "self/limits"))
	_, line, _ := strings.Cut(string(data), "Max locked memory")
	values := strings.Fields(line)
	return len(values) > 1 && values[1] == "unlimited"
}

// before reports whether the kernel is older than major.minor. A release that is
// not a version counts as newer.
func (h host) before(major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(h.release, "%d.%d", &a, &b); err != nil {
		return false
	}
	return a < major || a == major && b < minor
}

// effectiveCapabilities reads CapEff in /proc/self/status.
func effectiveCapabilities(status string) (uint64, error) {
	data, err := os.ReadFile(status)
	if err != nil {
		return 0, err
	}
	_, rest, ok := strings.Cut("\n"+string(data), "\nCapEff:")
	if !ok {
		return 0, fmt.Errorf("%s: no CapEff", status)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseUint(strings.TrimSpace(value), 16, 64)
}

// checkLockdown reads /sys/kernel/security/lockdown: "none [integrity] …".
// A kernel without lockdown does not have the file.
func (h host) checkLockdown(r *Report) {
	data, err := os.ReadFile(filepath.Join(h.sysfs, "kernel/security/lockdown"))
	mode := "none"
	if _, after, ok := strings.Cut(string(data), "["); err == nil && ok {
		mode, _, _ = strings.Cut(after, "]")
	}
	if mode == "confidentiality" {
		r.add("kernel", "lockdown", model.StateFailed, mode, "BPF may not read kernel memory: boot with lockdown=integrity")
		return
	}
	r.add("kernel", "lockdown", model.StateOK, mode, "")
}

func (h host) checkPath(r *Report, name, path, cure string) {
	_, err := os.Stat(filepath.Join(h.sysfs, path))
	if errors.Is(err, os.ErrPermission) {
		cure = "run as root, or add CAP_DAC_READ_SEARCH"
	}
	r.addResult("kernel", name, err, cure)
}

// addResult adds a check that has succeeded or failed with err.
func (r *Report) addResult(area, name string, err error, cure string) {
	if err != nil {
		r.add(area, name, stateOf(err), err.Error(), cure)
	} else {
		r.add(area, name, model.StateOK, "", "")
	}
}

// stateOf returns the state for a system error.
func stateOf(err error) model.State {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return model.StateAbsent
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, model.ErrUnsupported):
		return model.StateUnsupported
	}
	return model.StateFailed
}

// dialRDMANetlink opens and closes a socket of the family NETLINK_RDMA, which ib_core serves.
func dialRDMANetlink() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	return unix.Close(fd)
}

// tryTier attaches and detaches a program that does nothing, to find out whether
// the kernel allows it. bpf_fentry_test1 is in every kernel with BPF and is
// called by tests of the kernel only.
func tryTier(tier string) error {
	_ = rlimit.RemoveMemlock() // if this fails, checkCapabilities shows the reason
	if tier != "kprobe" {      // the others store a call's start in task storage
		if err := features.HaveMapType(ebpf.TaskStorage); err != nil {
			return err
		}
	}
	spec := &ebpf.ProgramSpec{
		License:      "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	}
	attach := func(p *ebpf.Program) (link.Link, error) { return link.Kprobe("bpf_fentry_test1", p, nil) }
	switch tier {
	case "fentry":
		// The hooks are functions of modules, which have types of their own.
		if ids := new(btf.HandleIterator); !ids.Next() {
			return fmt.Errorf("type information of modules: %w", cmp.Or(ids.Err(), ebpf.ErrNotSupported))
		} else if err := ids.Handle.Close(); err != nil {
			return err
		}
		spec.Type, spec.AttachType, spec.AttachTo = ebpf.Tracing, ebpf.AttachTraceFEntry, "bpf_fentry_test1"
		attach = func(p *ebpf.Program) (link.Link, error) { return link.AttachTracing(link.TracingOptions{Program: p}) }
	case "kprobe":
		spec.Type = ebpf.Kprobe
	case "tracepoint":
		spec.Type = ebpf.TracePoint
		attach = func(p *ebpf.Program) (link.Link, error) {
			return link.Tracepoint("syscalls", "sys_enter_ioctl", p, nil)
		}
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return hook.WithoutGuess(err)
	}
	defer func() { _ = p.Close() }()
	l, err := attach(p)
	if err != nil {
		return err
	}
	return l.Close()
}
