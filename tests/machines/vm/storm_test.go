// SPDX-License-Identifier: Apache-2.0

//go:build vm

package vm

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

const (
	stormVar  = "ACCELSCOPE_STORM"  // the kind, in the guest
	stormsVar = "ACCELSCOPE_STORMS" // storms of each kind, kernel and number of threads
	stormTime = 2 * time.Second

	// Kinds of storms.
	fentry    = "fentry"
	staticKey = "static key"
)

// TestStorm lets a kernel patch its text as often as it can on one CPU, without our programs, while the other CPU runs
// this text: by an fentry program that is attached and detached, and by a static key. It prints in how many storms the
// kernel crashed, and where: how likely the emulator crashes a guest (emulatorSuite). On one thread it never does.
func TestStorm(t *testing.T) {
	if kind := os.Getenv(stormVar); kind != "" {
		storms(t, kind)
		return
	}
	for _, kernel := range []string{"6.12", "7"} {
		for _, one := range []bool{false, true} {
			for _, kind := range []string{fentry, staticKey} {
				survive(t, Options{Kernel: kernel, OneThread: one, Devices: 1, Timeout: 10 * time.Minute}, kind)
			}
		}
	}
}

// survived is the guest's line after each storm: how often it patched.
var survived = regexp.MustCompile(`(?m)^survived (\d+)$`)

// survive boots guests until each storm of a kind has ended, with or without a crash.
func survive(t *testing.T, opts Options, kind string) {
	t.Helper()
	kernel, err := FetchKernel(t.Context(), opts.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	total, err := strconv.Atoi(or(os.Getenv(stormsVar), "10"))
	if err != nil {
		t.Fatal(err)
	}
	opts.Command = []string{exe, "-test.run=^TestStorm$", "-test.v"}
	done, patches, crashed, crashes := 0, 0, 0, map[string]int{}
	for done < total {
		var out bytes.Buffer
		opts.Stdout, opts.Share = &out, t.TempDir()
		opts.Env = []string{stormVar + "=" + kind, stormsVar + "=" + strconv.Itoa(total-done)}
		res, err := boot(t.Context(), kernel, accelerator(t.Context(), kernel), opts)
		for _, m := range survived.FindAllSubmatch(out.Bytes(), -1) {
			n, _ := strconv.Atoi(string(m[1]))
			done, patches = done+1, patches+n
		}
		if err == nil && res.Status == 0 {
			continue
		}
		if err == nil || res == nil {
			t.Fatalf("exit status %+v, %v:\n%s", res, err, out.Bytes())
		}
		done, crashed = done+1, crashed+1
		crashes[or(strings.TrimPrefix(res.place(), ", in "), "the emulator")]++
		fmt.Printf("%s: %v\n", kind, err)
	}
	fmt.Printf("stage: %s of %s, one thread %t: %d storms, patched %d times, crashes: %v\n", kind, kernel.Release, opts.OneThread, total,
		patches, crashes)
	if most := total / 10; crashed > most || opts.OneThread && crashed > 0 {
		t.Errorf("%d of %d storms crash", crashed, total)
	}
}

// storms is TestStorm in the guest.
func storms(t *testing.T, kind string) {
	n, err := strconv.Atoi(os.Getenv(stormsVar))
	if err != nil {
		t.Fatal(err)
	}
	call, patch := allocate, cpuset
	if kind == fentry {
		call, patch = ioctl(t), attach(t)
	}
	go func() {
		for onCPU(1); ; {
			call()
		}
	}()
	onCPU(0)
	for range n {
		patches := 0
		for end := time.Now().Add(stormTime); time.Now().Before(end); patches++ {
			if err := patch(); err != nil {
				t.Fatal(err)
			}
		}
		fmt.Printf("survived %d\n", patches)
	}
}

func onCPU(cpu int) {
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		panic(err)
	}
}

// ioctl returns a function that calls ib_uverbs_ioctl, which rejects the request.
func ioctl(t *testing.T) func() {
	device, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	return func() { _, _ = unix.IoctlGetInt(device, 0) }
}

// attach returns a function that attaches an empty program to ib_uverbs_ioctl and detaches it.
func attach(t *testing.T) func() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFEntry, AttachTo: "ib_uverbs_ioctl", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	return func() error {
		l, err := link.AttachTracing(link.TracingOptions{Program: program})
		if err != nil {
			return err
		}
		return l.Close()
	}
}

// cpuset makes and removes the only cgroup with cpusets, which patches each test of the static key cpusets_enabled, for
// example in get_page_from_freelist.
func cpuset() error {
	const dir = "/sys/fs/cgroup/storm"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return os.Remove(dir)
}

// allocate makes the kernel allocate a page and frees it.
func allocate() {
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		panic(err)
	}
	page[0] = 1
	if err := unix.Munmap(page); err != nil {
		panic(err)
	}
}
