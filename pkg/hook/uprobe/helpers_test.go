// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	source = "test"
	// site is where the tests probe a file that is full of nop, in its third page.
	site = 0x2010
	nop  = 0x90
	trap = 0xcc
)

func newGate(t testing.TB, change ...func(*Options)) *Gate {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	o := Options{Logger: zaptest.NewLogger(t), Limit: DefaultLimit}
	if _, err := os.Stat("/proc/lockdep"); err == nil { // the kernel checks its locks, and is several times slower
		o.Limit *= 5
	}
	for _, f := range change {
		f(&o)
	}
	g, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func code(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(path, bytes.Repeat([]byte{nop}, 1<<16), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func program(t testing.TB, name string) string {
	t.Helper()
	if dir := os.Getenv("ACCELSCOPE_WORKLOADS"); dir != "" { // in a guest
		return filepath.Join(dir, name)
	}
	path := filepath.Join(t.TempDir(), name)
	out, err := child.Command(t.Context(), "gcc", "-O2", "-Wall", "-o", path, "../../../tests/machines/vm/workload/"+name+".c", "-lpthread").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// helper is a program that works until its standard input ends.
type helper struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	pid   int // of the observed process
}

func start(t testing.TB, argv ...string) *helper {
	t.Helper()
	h := &helper{cmd: child.Command(context.Background(), argv[0], argv[1:]...)}
	h.cmd.Stderr = os.Stderr
	var err error
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.end)
	h.out = bufio.NewReader(out)
	line, err := h.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "ready") {
		t.Fatalf("%s: %q, %v", argv[0], line, err)
	}
	_, _ = fmt.Sscanf(line, "ready %d", &h.pid)
	return h
}

func (h *helper) end() {
	if h.cmd.ProcessState == nil {
		h.stdin.Close()
		_ = h.cmd.Wait()
	}
}

// longestFork returns the longest and the mean fork until the helper forklat is asked.
func (h *helper) longestFork(t testing.TB) (longest, mean time.Duration) {
	t.Helper()
	h.stdin.Close()
	line, err := h.out.ReadString('\n')
	var n, m, most int
	if _, scan := fmt.Sscanf(line, "forks %d mean %d max %d", &n, &m, &most); err != nil || scan != nil || n == 0 {
		t.Fatalf("forklat: %q, %v", line, err)
	}
	_ = h.cmd.Wait()
	return time.Duration(most) * time.Microsecond, time.Duration(m) * time.Microsecond
}

func do(t testing.TB, f func(*Operation), o Operation) *Operation {
	t.Helper()
	done := make(chan *Operation, 1)
	o.Source = source
	o.Done = func(o *Operation) { done <- o }
	f(&o)
	select {
	case got := <-done:
		return got
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
		return nil
	}
}

func (g *Gate) probes(offsets ...uint64) (out []Probe) {
	for _, offset := range offsets {
		out = append(out, Probe{Offset: offset, Attach: func(path string) (io.Closer, error) {
			program, multi := loaded()
			return Attach(program, Place{Path: path, Offset: offset}, multi, 0)
		}})
	}
	return out
}

// loaded is the program of the probes, and whether it is for uprobe_multi links.
var loaded = sync.OnceValues(func() (*ebpf.Program, bool) {
	spec, err := gen.LoadMappings()
	if err != nil {
		panic(err)
	}
	p, multi := spec.Programs[gen.MappingsProgNothing], features.HaveBPFLinkUprobeMulti() == nil
	if multi {
		p.AttachType = ebpf.AttachTraceUprobeMulti
	}
	program, err := ebpf.NewProgram(p)
	if err != nil {
		panic(err)
	}
	return program, multi
})

// instruction returns a byte of the code in the process's first mapping of the file.
func instruction(t testing.TB, pid int, path string, offset int64) byte {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(line, path+"\n") {
			continue
		}
		var begin int64
		if _, err := fmt.Sscanf(line, "%x-", &begin); err != nil {
			t.Fatal(err)
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			t.Fatal(err)
		}
		defer mem.Close()
		b := make([]byte, 1)
		if _, err := mem.ReadAt(b, begin+offset); err != nil {
			t.Fatal(err)
		}
		return b[0]
	}
	t.Fatalf("%d does not map %s", pid, path)
	return 0
}
