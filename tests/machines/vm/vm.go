// SPDX-License-Identifier: Apache-2.0

// Package vm runs a command in a guest that has a live RDMA stack: QEMU boots a stock Debian kernel on the machine's
// own root file system, read-only under a tmpfs, and Soft-RoCE provides real uverbs devices. The guest has the
// machine's programs and files under the same paths. It changes only the share on the machine.
package vm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed guest.sh
var guestScript []byte

// Layouts of the cgroup file systems.
const (
	CgroupV2     = "v2"     // cgroup v2 on /sys/fs/cgroup, all controllers enabled
	CgroupV1     = "v1"     // a v1 hierarchy for each controller below /sys/fs/cgroup
	CgroupHybrid = "hybrid" // v1, and a v2 without controllers on /sys/fs/cgroup/unified
)

// Options select the command and the guest.
type Options struct {
	Kernel  string        // "5.10", "6.1" (defaultKernel), "6.12", "7" or DebugKernel
	Command []string      // program and arguments
	Env     []string      // NAME=VALUE, in addition to PATH, HOME and LANG
	Dir     string        // working directory; default: the current one
	Share   string        // directory that the guest writes, under the same path; default: a new temporary one
	Cgroup  string        // default: CgroupV2
	Modules string        // directory in place of the kernel's lib/modules; default: the kernel's own
	Devices int           // number of rxe devices, 0 to 2; rxeN is on vN of a veth pair, with address 10.(70+N).0.1
	Systemd bool          // the first process is systemd, with a journal and D-Bus, without udev and the machine's own units
	Preempt string        // preempt= of the kernel: none, voluntary, full (Linux 6.1 and newer); default: the kernel's
	PCIe    bool          // more PCI functions, in a tree of bridges with two NUMA nodes: pcieArgs
	Forward int           // port on 127.0.0.1 that leads to port 9847 of the guest; 0: the guest has no network
	Cable   *Cable        // to another guest
	Stdin   io.Reader     // standard input of the command; its end is not passed on to the command
	Stdout  io.Writer     // standard output and standard error of the command
	Timeout time.Duration // of the whole run; default: 5 minutes

	OneThread bool // emulate all CPUs in one thread: slower, without the hangs of several; no effect with KVM
}

const defaultKernel = "6.1"

// Cable is an Ethernet link between two guests, whose interface is "cable" in both: QEMU sends each frame in a UDP
// datagram on 127.0.0.1. The ports are swapped in the other guest.
type Cable struct{ Port, Peer int }

// Result is the outcome of the command.
type Result struct {
	Status    int    // exit status; 128+N after signal N
	Share     string // directory to which the guest wrote
	KernelLog string // file with the kernel's console output: warnings and worse; dmesg next to it has all levels, with facilities
}

// bootTimeout is long: a boot takes 5 s on an idle machine, and a slow boot must not count as a hung guest, because the
// second try on one thread would be slower.
const bootTimeout = 3 * time.Minute

// errHung is returned when an emulated guest hangs, which happens now and then with any program.
var errHung = errors.New("guest hung")

// A test in a guest that prints nothing for Silence is asked for its goroutines, and ended after Quit (package guest).
// Observers of such tests wait longer than both, because a guest that hangs is run again.
const (
	Silence = 5 * time.Minute
	Quit    = time.Minute
)

// Run boots a guest, runs a command in it and powers it off. An error means that the guest failed, not the command:
// also that its kernel crashed or reports a fault.
//
// Now and then multi-threaded emulation hangs: both CPUs wait for each other forever, or for long. If a boot does not
// end, or a running kernel keeps reporting soft lockups, or at the end it reports only stalls, Run tries once more on
// one thread, which is slower and does not hang, unless another guest of this process was run again before (RunsAgain).
func Run(ctx context.Context, opts Options) (*Result, error) {
	if opts.Timeout == 0 {
		opts.Timeout = 5 * time.Minute
	}
	kernel, err := FetchKernel(ctx, or(opts.Kernel, defaultKernel))
	if err != nil {
		return nil, err
	}
	accel := accelerator(ctx, kernel)
	res, err := boot(ctx, kernel, accel, opts)
	if errors.Is(err, errHung) && ctx.Err() == nil && RunsAgain(opts.Stdout, opts.Kernel, err) {
		opts.OneThread = true
		res, err = boot(ctx, kernel, accel, opts)
	}
	return res, err
}

// boot is one try of Run.
func boot(ctx context.Context, kernel Kernel, accel string, opts Options) (*Result, error) {
	initrd, err := initramfs(ctx, kernel)
	if err != nil {
		return nil, err
	}
	if opts.Share == "" {
		if opts.Share, err = os.MkdirTemp("", "guest-"); err != nil {
			return nil, err
		}
	}
	if opts.Share, err = filepath.Abs(opts.Share); err != nil {
		return nil, err
	}
	if opts.Share, err = filepath.EvalSymlinks(opts.Share); err != nil {
		return nil, err
	}
	state, err := writeState(kernel, opts)
	if err != nil {
		return nil, err
	}
	res := &Result{Share: opts.Share, KernelLog: filepath.Join(state, "kernel.log")}

	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	cmd, err := emulator(ctx, qemuArgs(kernel, initrd, accel, res, opts))
	if err != nil {
		return nil, err
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Stdout = opts.Stdout
	// The pipe stays open: at its end QEMU would unplug the port and the command could no longer print.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	// If the test process is killed, its guest is killed too; the signal is sent when the thread that started QEMU
	// ends. In its own process group QEMU does not get the terminal's Ctrl-C, which the test process handles.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if opts.Stdin != nil {
		go io.Copy(stdin, opts.Stdin)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	started := func() bool {
		_, err := os.Stat(filepath.Join(state, "started"))
		return err == nil
	}
	select {
	case err = <-ended:
	case <-poll(ctx, started, bootTimeout):
		if !started() && ctx.Err() == nil {
			cmd.Process.Kill()
			<-ended
			return res, res.hung("at boot")
		}
		select {
		case err = <-ended:
		case <-poll(ctx, res.locked, opts.Timeout):
			if res.locked() {
				cmd.Process.Kill()
				<-ended
				return res, res.hung("with soft lockups")
			}
			err = <-ended
		}
	}
	if ctx.Err() != nil {
		return res, fmt.Errorf("guest: %w%s\n%s", ctx.Err(), res.place(), res.keep())
	}
	if err != nil {
		return res, fmt.Errorf("qemu: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	text, err := os.ReadFile(filepath.Join(state, "status"))
	if err != nil {
		return res, res.ended(err)
	}
	if res.Status, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return res, err
	}
	return res, res.judge()
}

// lockups is the number of soft lockup reports that means a hang. Each CPU reports one every half minute; a busy
// machine has fewer.
const lockups = 4

func (r *Result) locked() bool {
	log, _ := os.ReadFile(r.KernelLog)
	return bytes.Count(log, []byte("soft lockup")) >= lockups
}

// writeState creates SHARE/.vm, which contains the command for the guest and later its result.
func writeState(kernel Kernel, opts Options) (string, error) {
	if len(opts.Command) == 0 {
		return "", errors.New("no command")
	}
	if opts.Devices < 0 || opts.Devices > 2 {
		return "", fmt.Errorf("%d devices: want 0 to 2", opts.Devices)
	}
	state := filepath.Join(opts.Share, ".vm")
	if err := os.RemoveAll(state); err != nil {
		return "", err
	}
	if err := os.Mkdir(state, 0o755); err != nil {
		return "", err
	}
	if opts.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return "", err
		}
		opts.Dir = dir
	}
	config := fmt.Sprintf("SHARE=%s\nMODULES=%s\nCGROUP=%s\nDEVICES=%d\nSYSTEMD=%t\n",
		quote(opts.Share), quote(or(opts.Modules, filepath.Join(kernel.Root, "lib/modules"))), quote(or(opts.Cgroup, CgroupV2)),
		opts.Devices, opts.Systemd)
	var words []string
	for _, word := range append(slices.Clip(opts.Env), opts.Command...) {
		words = append(words, quote(word))
	}
	command := "cd " + quote(opts.Dir) + " || exit\nexec env " + strings.Join(words, " ") + "\n"
	for name, text := range map[string]string{
		"config": config, "command": command, "guest.sh": string(guestScript),
	} {
		if err := os.WriteFile(filepath.Join(state, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return state, nil
}

// These options make emulation faster. QEMU executes "rep movsb" and "rep stosb", which the kernel and libc prefer if
// the CPU has ERMS or FSRM, one byte at a time; X86_FEATURE_REP_GOOD (112) enables the same with words. Five levels of
// page tables, SMAP and protection keys slow down each TLB miss and each copy to user space.
const (
	emulatedCPU    = "max,-erms,-fsrm,-la57,-smap,-smep,-pku"
	emulatedKernel = " clearcpuid=112 init_on_alloc=0"
)

// hostTSC returns the kernel options that make a guest trust the emulated TSC, which is the host's. Otherwise the guest
// would find the TSC unsynchronized and read the HPET, which traps each time and is readable only by the kernel.
func hostTSC() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil || !bytes.Contains(text, []byte(" constant_tsc ")) {
		return ""
	}
	match := regexp.MustCompile(`(?m)^bogomips\s*: ([0-9.]+)$`).FindSubmatch(text)
	if match == nil {
		return ""
	}
	mips, err := strconv.ParseFloat(string(match[1]), 64)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" tsc=reliable clocksource=tsc tsc_early_khz=%.0f", mips*500) // two loops a cycle
}

func qemuArgs(kernel Kernel, initrd, accel string, res *Result, opts Options) []string {
	// loglevel=5: warnings are also on the console, where a crash or a flood of messages does not remove them.
	// no_timer_check: the kernel would panic if an emulated timer is delayed for a moment.
	cpu, options := "host", "console=ttyS0 loglevel=5 panic=-1 no_timer_check"
	if accel == "tcg" && opts.OneThread {
		accel = "tcg,thread=single"
	}
	if accel != "kvm" {
		cpu, options = emulatedCPU, options+emulatedKernel+hostTSC()
	}
	if opts.Preempt != "" {
		options += " preempt=" + opts.Preempt
	}
	args := []string{
		"-M", "q35", "-accel", accel, "-cpu", cpu, "-m", "3072", "-smp", "2",
		"-display", "none", "-monitor", "none", "-no-reboot",
		"-kernel", kernel.Image, "-initrd", initrd, "-append", options,
		"-serial", "file:" + comma(res.KernelLog),
		"-chardev", "stdio,id=stdio,signal=off",
		"-vga", "none", "-device", "virtio-gpu-pci", // /dev/dri, once virtio_gpu is loaded
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=stdio,name=stdio",
		"-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=root,mount_tag=hostroot",
		"-fsdev", "local,id=share,path=" + comma(opts.Share) + ",security_model=none,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=share,mount_tag=share",
	}
	if opts.PCIe {
		args = append(args, pcieArgs()...)
	}
	if c := opts.Cable; c != nil { // guest.sh recognizes the address
		args = append(args,
			"-netdev", fmt.Sprintf("socket,id=cable,udp=127.0.0.1:%d,localaddr=127.0.0.1:%d", c.Peer, c.Port),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=cable,mac=52:54:ca:b1:%02x:%02x", c.Port>>8, c.Port&0xff))
	}
	if opts.Forward == 0 {
		return append(args, "-nic", "none")
	}
	return append(args, "-nic",
		fmt.Sprintf("user,model=virtio-net-pci,restrict=on,hostfwd=tcp:127.0.0.1:%d-:9847", opts.Forward))
}

// poll returns a channel that is closed when cond holds, at the time limit or at the end of ctx.
func poll(ctx context.Context, cond func() bool, limit time.Duration) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil && !cond(); {
			time.Sleep(200 * time.Millisecond)
		}
	}()
	return done
}

// tail returns, for an error message, the end of the kernel's log, or the part from its first fault on.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	const most, before, whole = 2000, 200, 8000
	if oops := firstFault(string(b)); oops >= 0 {
		b = b[max(0, oops-before):]
		b = b[:min(len(b), whole)]
	} else {
		b = b[max(0, len(b)-most):]
	}
	return path + " ends with:\n" + string(bytes.TrimSpace(b))
}

// quote quotes a string as one shell word, comma as one value of a QEMU option.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
func comma(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
