// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/pkg/hook"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const tierVar = "ACCELSCOPE_TEST_TIER"

// null is a device that is not watched.
const null = "null"

// tree is a procfs and a sysfs in which common devices have the names of watched devices: they stand in for missing
// drivers.
type tree struct{ dir string }

func newTree(t testing.TB, drivers ...string) tree {
	t.Helper()
	f := tree{t.TempDir()}
	for _, dir := range []string{"proc", "sys/dev/char", "sys/class/misc/rdma_cm"} {
		if err := os.MkdirAll(filepath.Join(f.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f.load(t, drivers...)
	f.name(t, "1:3", null) // opened by many programs
	return f
}

// load writes the drivers of character devices: "1 drm".
func (f tree) load(t testing.TB, drivers ...string) {
	t.Helper()
	text := "Character devices:\n  4 tty\n " + strings.Join(drivers, "\n ") + "\n\nBlock devices:\n  1 drm\n"
	if err := os.WriteFile(filepath.Join(f.dir, "proc/devices"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f tree) name(t testing.TB, number, name string) {
	t.Helper()
	link := filepath.Join(f.dir, "sys/dev/char", number)
	_ = os.Remove(link)
	if err := os.Symlink("../../devices/x/"+name, link); err != nil {
		t.Fatal(err)
	}
}

func (f tree) misc(t testing.TB, number string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, "sys/class/misc/rdma_cm/dev"), []byte(number+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (f tree) options(subsystem string) Options {
	return Options{
		Sysfs: filepath.Join(f.dir, "sys"), Procfs: filepath.Join(f.dir, "proc"), Subsystem: subsystem,
		Tier: os.Getenv(tierVar), Interval: 20 * time.Millisecond,
	}
}

func start(t *testing.T, o Options) *Source {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// listing returns a source that lists open files. It skips the test in a nested process namespace; the guest runs tests
// in the initial namespace.
func listing(t *testing.T, o Options) *Source {
	t.Helper()
	if err := nodePIDs(); err != nil && os.Getenv("ACCELSCOPE_GUEST") == "" {
		t.Skip(err)
	}
	return start(t, o)
}

// counting returns a source with hooks. It skips the test if the kernel supports neither tier, for example without
// kprobes; the guest kernels support both.
func counting(t *testing.T, o Options) *Source {
	t.Helper()
	if unhooked != nil {
		t.Skip(unhooked)
	}
	s := start(t, o)
	if s.failed != nil || s.sensor != nil && !s.sensor.counts {
		unhooked = errors.Join(s.failed, hook.Failures(s.hooks))
		if os.Getenv("ACCELSCOPE_GUEST") != "" {
			t.Fatal(unhooked)
		}
		t.Skip(unhooked)
	}
	return s
}

var unhooked error

// A group is a test cgroup that may not open /dev/zero or 1:4000, which does not exist.
type group struct {
	subsystem string // as of Options
	dir       string
	id        uint64
}

// groups returns a cgroup of v2 and a cgroup of v1, if this machine has them.
func groups(t *testing.T) map[string]group {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	out := map[string]group{}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
			g := newGroup(t, root, "")
			refuse(t, g.dir)
			out["v2"] = g
		}
	}
	const v1 = "/sys/fs/cgroup/devices"
	if _, err := os.Stat(filepath.Join(v1, "devices.deny")); err == nil {
		g := newGroup(t, v1, "devices")
		for _, device := range []string{"c 1:5 rw", "c 1:4000 rw"} {
			if err := os.WriteFile(filepath.Join(g.dir, "devices.deny"), []byte(device), 0); err != nil {
				t.Fatal(err)
			}
		}
		out["v1"] = g
	}
	if len(out) == 0 {
		t.Fatal("no cgroups")
	}
	return out
}

func newGroup(t *testing.T, root, subsystem string) group {
	t.Helper()
	dir, id := testcgroup.New(t, root)
	return group{subsystem, dir, id}
}

// refuse attaches a device program to a cgroup of v2, as a runtime does.
func refuse(t *testing.T, dir string) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupDevice, License: "GPL",
		Instructions: asm.Instructions{ // struct bpf_cgroup_dev_ctx: type and access, major, minor
			asm.LoadMem(asm.R2, asm.R1, 4, asm.Word), asm.LoadMem(asm.R3, asm.R1, 8, asm.Word), asm.Mov.Imm(asm.R0, 1),
			asm.JNE.Imm(asm.R2, 1, "out"), asm.JEq.Imm(asm.R3, 5, "refuse"), asm.JNE.Imm(asm.R3, 4000, "out"),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("refuse"),
			asm.Return().WithSymbol("out"),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupDevice, Program: p})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close(); _ = p.Close() })
}

func (g group) do(t *testing.T, deeds ...string) {
	t.Helper()
	if out, err := g.command(deeds...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func (g group) command(deeds ...string) *exec.Cmd {
	c := child.Command(context.Background(), "/proc/self/exe", deeds...)
	c.Env = append(os.Environ(), callerVar+"="+g.dir)
	return c
}
