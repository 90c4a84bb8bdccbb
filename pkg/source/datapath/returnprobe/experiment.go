// SPDX-License-Identifier: Apache-2.0

package returnprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// A situation is one in which return probes kill processes on some kernels.
type situation string

const (
	underSeccomp    situation = "under seccomp" // with a filter that does not list uretprobe(2), as containers have
	withShadowStack situation = "with a shadow stack"
)

// childArgument is the first argument of the child of an experiment; the second is the
// situation. The child is the sensor's own program, started again. It exits with 0 after
// the call of a probed function, or with the errno of the system call that could not
// create the situation.
const childArgument = "try-return-probe"

// experimentTime is the deadline of a child, which takes some hundredths of a second.
const experimentTime = 5 * time.Second

var (
	// errDied: the return probe killed the child.
	errDied = errors.New("a process that was started to try it died")
	// errNoShadowStack: this CPU or this kernel has no shadow stacks.
	errNoShadowStack = errors.New("no shadow stacks")
)

// experimenter attaches probes to emulatedLeaf in the file of this program.
type experimenter struct {
	program *ebpf.Program
	runs    *ebpf.Map // how often the program ran
	offset  uint64
	multi   bool
	child   child.Runner
}

func newExperimenter(multi bool) (*experimenter, error) {
	offset, err := locate.FileOffset(uint64(leafAddress()))
	if err != nil {
		return nil, err
	}
	runs, err := ebpf.NewMap(&ebpf.MapSpec{Name: "runs", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		return nil, hook.WithoutGuess(err)
	}
	spec := &ebpf.ProgramSpec{
		Name: "count_runs", Type: ebpf.Kprobe, License: "Apache-2.0",
		Instructions: asm.Instructions{
			asm.LoadMapValue(asm.R1, runs.FD(), 0),
			asm.Mov.Imm(asm.R2, 1),
			asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
		},
	}
	if multi {
		spec.AttachType = ebpf.AttachTraceUprobeMulti
	}
	program, err := ebpf.NewProgram(spec)
	if err != nil {
		_ = runs.Close()
		return nil, hook.WithoutGuess(err)
	}
	return &experimenter{program: program, runs: runs, offset: offset, multi: multi, child: child.Runner{MaxStuck: 1}}, nil
}

func (e *experimenter) close() {
	_ = e.program.Close()
	_ = e.runs.Close()
}

// attach attaches the program. pid 0 stands for all processes.
func (e *experimenter) attach(ret bool, pid int) (io.Closer, error) {
	return uprobe.Attach(e.program, uprobe.Place{Path: "/proc/self/exe", Offset: e.offset, Return: ret, PID: pid}, e.multi, 0)
}

// ran reports whether the program ran.
func (e *experimenter) ran() (bool, error) {
	var n uint64
	err := e.runs.Lookup(uint32(0), &n)
	return n > 0, err
}

// try has a child return from a probed function in a situation. It returns errDied if
// that killed the child, errNoShadowStack, or another error if it could not be tried.
func (e *experimenter) try(ctx context.Context, s situation) error {
	if runtime.GOARCH != "amd64" {
		return errors.ErrUnsupported
	}
	if err := e.runs.Put(uint32(0), uint64(0)); err != nil {
		return err
	}
	probe, err := e.attach(true, 0)
	if err != nil {
		return err
	}
	defer probe.Close()
	ctx, cancel := context.WithTimeout(ctx, experimentTime)
	defer cancel()
	_, _, err = e.child.Run(ctx, child.Program{Path: "/proc/self/exe", Args: []string{childArgument, string(s)}, Env: []string{}})
	if err := outcome(s, err); err != nil {
		return err
	}
	if ran, err := e.ran(); err != nil || !ran {
		return errors.Join(err, errors.New("the probe was not hit"))
	}
	return nil
}

// outcome explains how a child ended.
func outcome(s situation, err error) error {
	var exit *exec.ExitError
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || !errors.As(err, &exit) {
		return err
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return err
	case status.Signaled() && status.Signal() == syscall.SIGKILL: // by somebody, or for memory
		return err
	case status.Signaled():
		return fmt.Errorf("%w: %w", errDied, err)
	case s == withShadowStack && (status.ExitStatus() == int(unix.EOPNOTSUPP) || status.ExitStatus() == int(unix.EINVAL)):
		return errNoShadowStack
	}
	return fmt.Errorf("trying it: %w", syscall.Errno(status.ExitStatus()))
}

// filtersProcesses returns an error unless a probe with a PID filter is hit in all threads
// of the process. Kernels before 6.10 hit it in the first thread only ("bpf: Fix multi-uprobe
// PID filtering logic"), unless they have the fix.
func (e *experimenter) filtersProcesses() error {
	if err := e.runs.Put(uint32(0), uint64(0)); err != nil {
		return err
	}
	probe, err := e.attach(false, os.Getpid())
	if err != nil {
		return err
	}
	defer probe.Close()
	for range 5 { // a CPU may take a moment to see a changed instruction
		inOtherThread(emulatedLeaf)
		if ran, err := e.ran(); err != nil || ran {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("probes of a process are hit in its first thread only")
}

// inOtherThread calls f in a thread other than the first one of the process.
func inOtherThread(f func()) {
	done := make(chan struct{})
	go safely.Do(model.DataPathSource, func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if unix.Gettid() == os.Getpid() {
			inOtherThread(f)
			return
		}
		f()
	})
	<-done
}
