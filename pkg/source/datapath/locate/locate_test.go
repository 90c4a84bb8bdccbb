// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func compile(t *testing.T, name string, flags ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	args := append([]string{"-o", out, "testdata/" + name + ".c"}, flags...)
	if b, err := child.Command(context.Background(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: make deps\n%s", err, b)
	}
	return out
}

// TestOffsets compares our offsets with rdma-core's header.
func TestOffsets(t *testing.T) {
	out, err := child.Command(context.Background(), compile(t, "offsets")).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); lines++ {
		name, value, _ := strings.Cut(s.Text(), " ")
		want, _ := strconv.Atoi(value)
		got, ok := map[string]int{"context": qpContext, "send_cq": qpSendCQ, "recv_cq": qpRecvCQ, "cq_context": cqContext}[name]
		if fn, err := strconv.Atoi(name); err == nil {
			got, ok = offsets[fn], true
		}
		if got != want || !ok {
			t.Errorf("%s is at %d, the header says %d", name, got, want)
		}
	}
	if lines != int(Functions)+4 {
		t.Errorf("%d offsets of %d", lines, Functions+4)
	}
}

// A victim is a running testdata/qp.
type victim struct {
	*Process
	base uint64
	qps  map[string]uint64
}

func start(t *testing.T, binary string, args ...string) victim {
	t.Helper()
	cmd := child.Command(context.Background(), binary, args...)
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stdin.Close(); _ = cmd.Wait() })
	v := victim{qps: map[string]uint64{}}
	for s := bufio.NewScanner(stdout); s.Scan(); {
		name, value, _ := strings.Cut(s.Text(), " ")
		if name == "end" {
			break
		}
		v.qps[name], _ = strconv.ParseUint(value, 16, 64)
	}
	if v.base = v.qps["base"]; v.base == 0 {
		t.Fatal("the helper did not start")
	}
	p, err := OpenProcess("/proc", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	v.Process = p
	return v
}

// operationsOf returns eight functions of a provider, six that begin with a push and two that do not, which are used as
// its operations. The guest has a device, and tests the real operations.
func operationsOf(t *testing.T, path string) (offsets []string, want []point) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("disassembles x86")
	}
	code := objdump(t, path)
	o, f := openLibrary(t, path)
	var pushes, others []uint64
	for _, address := range addressTaken(t, path) {
		if disassemble(f, offsetInFile(t, o, address), pathArguments).err != nil {
			continue
		}
		if strings.HasPrefix(code[address].text, "push ") {
			pushes = append(pushes, address)
		} else if strings.HasPrefix(code[address].text, "sub ") {
			others = append(others, address)
		}
	}
	if len(pushes) < 6 || len(others) < 2 {
		t.Fatalf("%d functions with a push, %d without", len(pushes), len(others))
	}
	for i, address := range append(pushes[:6:6], others[:2]...) {
		offsets = append(offsets, fmt.Sprintf("%#x", address))
		want = append(want, point{offset: offsetInFile(t, o, address), stepped: i >= 6})
	}
	return offsets, want
}

func TestLocate(t *testing.T) {
	path := library(t, "libibverbs/librxe-rdmav34.so")
	offsets, want := operationsOf(t, path)
	binary := compile(t, "qp", "-ldl", "-libverbs")
	v := start(t, binary, append([]string{path}, offsets...)...)
	l := New("/proc")

	if got, err := l.fromCache(v.Process); err != nil || len(got.Sites) != 0 {
		t.Errorf("known before anything was located: %+v, %v", got, err)
	}
	id := func() FileID {
		m := mappingOf(t, v.Process, "librxe")
		f, err := v.open(m)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, _, _ := identify(f, m.file)
		return id
	}()
	sites := func(functions ...Function) []Site {
		var s []Site
		for i, fn := range []Function{PostSend, PostRecv, PollCQ, WrStart, WrComplete, WrAbort, WrSetSGE, WrRDMAWrite} {
			for _, f := range functions {
				if f == fn {
					s = append(s, Site{File: id, Function: fn, Offset: want[i].offset, Stepped: want[i].stepped})
				}
			}
		}
		return s
	}
	basic := sites(PostSend, PostRecv, PollCQ)
	all := append(basic[:3:3], sites(WrRDMAWrite)[0], sites(WrSetSGE)[0], sites(WrStart)[0], sites(WrComplete)[0], sites(WrAbort)[0])
	polls := func(f Function, like Function) Site {
		s := sites(like)[0]
		s.Function = f
		return s
	}
	first, next := polls(StartPoll, WrStart), polls(NextPoll, WrComplete)
	sends := append(basic[:3:3], first, next, polls(WcReadByteLen, WrSetSGE))
	both := append(sends[:6:6], first, next, polls(WcReadOpcode, WrAbort), polls(WcReadQPNum, WrRDMAWrite))
	for name, want := range map[string][]Site{
		"plain": basic, "half": basic, "extended": all,
		"polled": sends, "polled-twice": both, "half-polled": basic, "polled-elsewhere": basic, "foreign-polled": basic, "bad-polled": basic,
	} {
		got, err := l.locate(v.Process, v.qps[name])
		if err != nil || !reflect.DeepEqual(got.Sites, want) {
			t.Errorf("%s: %+v, %v; want %+v", name, got.Sites, err, want)
		}
		var context [8]byte
		_ = v.Read(v.qps[name], context[:])
		if got.Context == 0 || got.Context%8 != 0 || len(got.Paths) != 1 || !same(t, got.Paths[id], path) {
			t.Errorf("%s: %+v", name, got)
		}
	}

	for name, want := range map[string]error{
		"libc": errNoProvider, "libibverbs": errNoProvider, "anonymous": errNoProvider, "data": errNoProvider,
		"nowhere": errNoProvider, "far": errNoProvider, "middle": errNoFunction,
		"empty": ErrNotReady, "unfilled": ErrNotReady,
		"badcontext": unix.EFAULT, "badqp": unix.EFAULT, "unaligned": nil, "oddqp": nil, // any error
	} {
		got, err := l.locate(v.Process, v.qps[name])
		if v.qps[name] == 0 || err == nil || (want != nil && !errors.Is(err, want)) || got.Sites != nil {
			t.Errorf("%s: %+v, %v; want %v", name, got, err, want)
		}
	}
	for _, qp := range []uint64{0, 7, 8, 1 << 47, 1<<64 - 8} {
		if _, err := l.locate(v.Process, qp); err == nil {
			t.Errorf("a QP at %#x", qp)
		}
	}

	// Another process that maps the file, and one that does not.
	second := start(t, binary, path)
	if got, err := l.fromCache(second.Process); err != nil || len(got.Sites) != len(all)+5 || !same(t, got.Paths[id], path) {
		t.Errorf("known of another process: %+v, %v", got, err)
	}
	third := start(t, binary, library(t, "libibverbs/libsiw-rdmav34.so"))
	if got, err := l.fromCache(third.Process); err != nil || len(got.Sites) != 0 {
		t.Errorf("known of one without it: %+v, %v", got, err)
	}
	if len(third.files) != 0 && !l.hasOverlay() { // on overlayfs, the identity of a file is known only once it is open
		t.Errorf("%d files of one without it are held open", len(third.files))
	}
	if len(v.files) != 1 || len(second.files) != 1 {
		t.Errorf("%d and %d files are held open, want one each", len(v.files), len(second.files))
	}
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// TestChangedFile: a cached file is not used if another file has its inode number, or if its content changed.
func TestChangedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib.so")
	provider, err := os.ReadFile(library(t, "libibverbs/librxe-rdmav34.so"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.ReadFile(library(t, "libibverbs.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	l := New("/proc")
	for i, content := range [][]byte{provider, other, provider} {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o755)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Write(content)
		id, err := mappedID("/proc", f)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = l.cached(f, &mapping{file: id})
		if (err == nil) != (i != 1) {
			t.Errorf("version %d: %v", i, err)
		}
		f.Close()
	}
	if len(l.files) != 1 {
		t.Errorf("%d files are remembered", len(l.files))
	}
}

func TestLocatorIsBounded(t *testing.T) {
	l := New("/proc")
	for i := range 10 * maxFiles {
		l.clock++
		l.insert(FileID{Inode: uint64(i)}, &cachedFile{})
	}
	if len(l.files) != maxFiles || l.files[FileID{Inode: 10*maxFiles - 1}] == nil {
		t.Errorf("%d files", len(l.files))
	}
	known := &cachedFile{points: map[uint64]point{}}
	_, f := openLibrary(t, library(t, "libibverbs/librxe-rdmav34.so"))
	for i := range uint64(2 * maxSites) {
		l.point(known, f, i)
	}
	if len(known.points) != maxSites {
		t.Errorf("%d functions", len(known.points))
	}
}

// TestProbeThroughPath attaches to a located function through the returned path, also if the file was deleted
// meanwhile, and checks for the breakpoint in memory.
func TestProbeThroughPath(t *testing.T) {
	original := library(t, "libibverbs/librxe-rdmav34.so")
	offsets, _ := operationsOf(t, original)
	content, err := os.ReadFile(original)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "librxe copy.so")
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	v := start(t, compile(t, "qp", "-ldl", "-libverbs"), append([]string{path}, offsets...)...)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	got, err := New("/proc").locate(v.Process, v.qps["extended"])
	if err != nil {
		t.Fatal(err)
	}
	prog := program(t)
	for _, s := range got.Sites {
		address := addressOf(t, v.Process, "librxe copy", s.Offset)
		before, during, after := make([]byte, 1), make([]byte, 1), make([]byte, 1)
		_ = v.Read(address, before)
		ex, err := link.OpenExecutable(got.Paths[s.File])
		if err != nil {
			t.Fatal(err)
		}
		var links []io.Closer
		l, err := ex.Uprobe("", prog, &link.UprobeOptions{Address: s.Offset})
		if err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		links = append(links, l)
		if s.Function.Returns() {
			if l, err = ex.Uretprobe("", prog, &link.UprobeOptions{Address: s.Offset}); err != nil {
				t.Fatalf("%+v: %v", s, err)
			}
			links = append(links, l)
		}
		_ = v.Read(address, during)
		for _, l := range links {
			l.Close()
		}
		_ = v.Read(address, after)
		if during[0] != 0xcc || before[0] == 0xcc || after[0] != before[0] {
			t.Errorf("%+v: %x, %x, %x: want a breakpoint in the middle", s, before, during, after)
		}
	}
	if v.Exited() {
		t.Error("it did not survive")
	}
	v.Close()
	if _, err := New("/proc").locate(&Process{pid: 1 << 22, procfs: "/proc", pidfd: -1}, 8); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("a process that is not: %v", err)
	}
}

func program(t *testing.T) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return prog
}

// addressOf returns the address at which a process has mapped an offset of a file.
func addressOf(t *testing.T, p *Process, name string, offset uint64) uint64 {
	t.Helper()
	code, err := p.code()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range code {
		if strings.Contains(m.path, name) && m.offset <= offset && offset < m.offset+m.end-m.start {
			return m.start + offset - m.offset
		}
	}
	t.Fatalf("%s is not mapped", name)
	return 0
}

// TestSameBuild: the functions of a provider are known from the start in another copy of the same build, as another image
// has it. What the copy has in another way is not.
func TestSameBuild(t *testing.T) {
	provider := library(t, "libibverbs/librxe-rdmav34.so")
	offsets, want := operationsOf(t, provider)
	content, err := os.ReadFile(provider)
	if err != nil {
		t.Fatal(err)
	}
	binary := compile(t, "qp", "-ldl", "-libverbs")
	l := New("/proc")
	v := start(t, binary, append([]string{provider}, offsets...)...)
	located, err := l.locate(v.Process, v.qps["plain"])
	if err != nil || len(located.Sites) != 3 {
		t.Fatalf("%+v, %v", located, err)
	}
	forged := slices.Clone(content)
	forged[want[0].offset] = 0x06 // no instruction
	for name, c := range map[string]struct {
		content []byte
		sites   []Site
	}{"copy": {content, located.Sites}, "forged": {forged, located.Sites[1:]}} {
		path := filepath.Join(t.TempDir(), filepath.Base(provider))
		if err := os.WriteFile(path, c.content, 0o755); err != nil {
			t.Fatal(err)
		}
		other := start(t, binary, path)
		got, err := l.fromCache(other.Process)
		if err != nil || len(got.Sites) != len(c.sites) || len(got.Paths) != 1 {
			t.Fatalf("%s: %+v, %v", name, got, err)
		}
		for _, s := range c.sites {
			if s.File = got.Sites[0].File; !slices.Contains(got.Sites, s) || s.File == located.Sites[0].File {
				t.Errorf("%s: %+v, want %+v", name, got.Sites, s)
			}
		}
	}
}

// TestContainersOfOneImage: containers of one image have the same provider file, and a probe that is attached through
// one container traces all. If it were treated as two files, each call would be counted twice.
func TestContainersOfOneImage(t *testing.T) {
	provider := library(t, "libibverbs/librxe-rdmav34.so")
	offsets, _ := operationsOf(t, provider)
	content, err := os.ReadFile(provider)
	if err != nil {
		t.Fatal(err)
	}
	image := t.TempDir()
	if err := os.WriteFile(filepath.Join(image, "librxe.so"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := compile(t, "qp", "-ldl", "-libverbs")
	l := New("/proc")
	var victims []victim
	var found []Found
	for range 2 {
		v := start(t, binary, append([]string{filepath.Join(overlay(t, image), "librxe.so")}, offsets...)...)
		got, err := l.locate(v.Process, v.qps["plain"])
		if err != nil {
			t.Fatal(err)
		}
		victims, found = append(victims, v), append(found, got)
	}
	if !reflect.DeepEqual(found[0].Sites, found[1].Sites) || len(found[0].Sites) != 3 {
		t.Fatalf("%+v and %+v", found[0].Sites, found[1].Sites)
	}
	s := found[0].Sites[0]
	ex, err := link.OpenExecutable(found[0].Paths[s.File])
	if err != nil {
		t.Fatal(err)
	}
	probe, err := ex.Uprobe("", program(t), &link.UprobeOptions{Address: s.Offset})
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	for i, v := range victims {
		b := make([]byte, 1)
		if err := v.Read(addressOf(t, v.Process, "librxe", s.Offset), b); err != nil || b[0] != 0xcc {
			t.Errorf("container %d: %x, %v: want a breakpoint", i, b, err)
		}
	}
}
