// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"debug/elf"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// trivial is a program that does nothing.
func trivial(t *testing.T) *ebpf.Program {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root")
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func attachTrivial(p *ebpf.Program, attached *int) func(string, uint64, bool) (io.Closer, error) {
	return func(path string, offset uint64, ret bool) (io.Closer, error) {
		ex, err := link.OpenExecutable(path)
		if err != nil {
			return nil, err
		}
		*attached++
		if ret {
			return ex.Uretprobe("", p, &link.UprobeOptions{Address: offset})
		}
		return ex.Uprobe("", p, &link.UprobeOptions{Address: offset})
	}
}

// The code at the offset in the file is the same as at the address in memory.
func TestFileOffset(t *testing.T) {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	if _, err := elf.NewFile(exe); err != nil {
		t.Fatal(err)
	}
	emulated, stepped := leaves()
	wants := map[string][2][]byte{
		"amd64": {{0x55, 0x5d, 0xc3}, {0x31, 0xc0, 0xc3}},
		"arm64": {{0x1f, 0x20, 0x03, 0xd5, 0xc0, 0x03, 0x5f, 0xd6}, {0x00, 0x04, 0x00, 0x91, 0xc0, 0x03, 0x5f, 0xd6}},
	}[runtime.GOARCH]
	for i, pc := range []uintptr{emulated, stepped} {
		offset, err := locate.FileOffset(uint64(pc))
		if err != nil {
			t.Fatal(err)
		}
		code := make([]byte, len(wants[i]))
		if _, err := exe.ReadAt(code, int64(offset)); err != nil {
			t.Fatal(err)
		}
		if string(code) != string(wants[i]) {
			t.Errorf("leaf %d: % x, want % x", i, code, wants[i])
		}
	}
	for _, bad := range []uintptr{0, 1, ^uintptr(0)} {
		if _, err := locate.FileOffset(uint64(bad)); err == nil {
			t.Errorf("%#x has an offset", bad)
		}
	}
}

// Meanwhile the garbage collector constantly scans and moves stacks, and preempts goroutines.
func TestCalibrate(t *testing.T) {
	p := trivial(t)
	stop := make(chan struct{})
	var busy sync.WaitGroup
	for range 2 {
		busy.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					grow(200)
					runtime.GC()
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	defer func() { close(stop); busy.Wait() }()
	attached := 0
	start := time.Now()
	c, err := calibrate(attachTrivial(p, &attached))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("emulated %d ns, stepped %d ns, returned %d ns, switched %d ns, in %v", c.emulated, c.stepped, c.returned, c.switched, time.Since(start))
	if attached != 3 {
		t.Errorf("%d probes were attached, want 3", attached)
	}
	for _, bound := range []struct{ least, is, most uint32 }{
		{minTrapCosts.emulated, c.emulated, maxTrapCosts.emulated},
		{c.emulated, c.stepped + c.emulated/2, maxTrapCosts.stepped},
		{minTrapCosts.returned, c.returned, maxTrapCosts.returned},
	} {
		if bound.is <= bound.least || bound.is >= bound.most {
			t.Errorf("%+v: %d is not between %d and %d", c, bound.is, bound.least, bound.most)
		}
	}
	// No probe remains attached.
	if after, err := timed(emulatedLeaf); err != nil || after > 100 {
		t.Errorf("a call takes %.0f ns afterwards: %v", after, err)
	}
}

func grow(n int) int {
	var pad [256]byte
	if n == 0 {
		return int(pad[0])
	}
	return grow(n-1) + int(pad[n%256])
}

type nothing struct{}

func (nothing) Close() error { return nil }

func TestCalibrateDefaults(t *testing.T) {
	no := errors.New("no")
	for name, attach := range map[string]func(string, uint64, bool) (io.Closer, error){
		"cannot attach": func(string, uint64, bool) (io.Closer, error) { return nil, no },
		"is not hit":    func(string, uint64, bool) (io.Closer, error) { return nothing{}, nil },
	} {
		c, err := calibrate(attach)
		if err == nil || c != defaultTrapCosts {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
		if name == "cannot attach" && !errors.Is(err, no) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
