// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestTemporaryFile: a foreign file in place of the new file is not written to.
func TestTemporaryFile(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	err := errors.Join(os.WriteFile(other, []byte("theirs"), 0o644), os.Link(other, filepath.Join(dir, tempName)), replace(dir, []byte("ours")))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(other)
	if err != nil || string(text) != "theirs" {
		t.Errorf("%q, %v", text, err)
	}
	if info, err := os.Stat(filepath.Join(dir, fileName)); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestForeign: an unusable file is reported and ignored, and replaced by a usable file.
func TestForeign(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *node, string){
		"of another machine": func(_ *testing.T, n *node, _ string) { n.put("etc/machine-id", "m2") },
		"of another sysfs":   func(_ *testing.T, n *node, _ string) { n.o.Sysfs = "/other" },
		"empty":              func(t *testing.T, _ *node, path string) { overwrite(t, path, "") },
		"cut off": func(t *testing.T, _ *node, path string) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			overwrite(t, path, string(text[:len(text)/2]))
		},
		"no JSON":          func(t *testing.T, _ *node, path string) { overwrite(t, path, "\x00\xff{") },
		"another version":  func(t *testing.T, _ *node, path string) { edit(t, path, `"version": 1`, `"version": 2`) },
		"an unknown kind":  func(t *testing.T, _ *node, path string) { edit(t, path, `"gpu"`, `"cpu"`) },
		"no id":            func(t *testing.T, _ *node, path string) { edit(t, path, `"GPU-a"`, `""`) },
		"a long name":      func(t *testing.T, _ *node, path string) { edit(t, path, `"H100"`, `"`+strings.Repeat("x", 9999)+`"`) },
		"a null":           func(t *testing.T, _ *node, path string) { edit(t, path, `"devices": [`, `"devices": [null,`) },
		"too large":        func(t *testing.T, _ *node, path string) { edit(t, path, "\n}", "\n}"+strings.Repeat("\n", maxFile)) },
		"too many devices": tooMany,
		"too many links": func(t *testing.T, _ *node, path string) {
			edit(t, path, `"slot"`, `"links": [`+strings.Repeat("1,", 99)+`1], "slot"`)
		},
		"a directory": func(t *testing.T, _ *node, path string) { instead(t, path, os.Mkdir(path+".x", 0o700)) },
		"a FIFO":      func(t *testing.T, _ *node, path string) { instead(t, path, unix.Mkfifo(path+".x", 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if err := n.i.Close(); err != nil {
				t.Fatal(err)
			}
			change(t, n, filepath.Join(n.o.Dir, fileName))
			n.facts.GPUs = n.facts.GPUs[:1]
			n.start()
			n.want()
			if n.logged("is not used") != 1 {
				t.Errorf("%v", n.log.All())
			}
			if name == "a directory" {
				return // it cannot be replaced
			}
			n.restart()
			n.facts.GPUs = nil
			n.want("gpu GPU-a")
		})
	}
}

// TestUnreadableFile: a file that cannot be read now is kept, and the inventory stays in memory.
func TestUnreadableFile(t *testing.T) {
	n := newNode(t)
	if err := n.i.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(n.o.Dir, fileName)
	instead(t, path, os.Symlink(fileName, path+".x")) // ELOOP, also for root
	n.start()
	n.want()
	n.facts.GPUs = n.facts.GPUs[:1]
	n.want("gpu GPU-b")
	if err := n.i.Close(); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(path); err != nil || to != fileName || n.logged("in memory only") != 1 {
		t.Errorf("the file is replaced: %q, %v; %v", to, err, n.log.All())
	}
}

func tooMany(t *testing.T, n *node, path string) {
	var list []*device
	for k := range maxDevices + 1 {
		list = append(list, &device{Kind: model.KindHCA, ID: fmt.Sprint(k), Source: "rdma", Slot: fmt.Sprint(k), Seen: n.now})
	}
	text, err := encode(n.i.owner, list)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, string(text))
}

func overwrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func edit(t *testing.T, path, old, by string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), old) {
		t.Fatalf("%v: no %q in %s", err, old, text)
	}
	overwrite(t, path, strings.Replace(string(text), old, by, 1))
}

// instead replaces the file by path.x, which made has created.
func instead(t *testing.T, path string, made error) {
	t.Helper()
	if err := errors.Join(made, os.Remove(path), os.Rename(path+".x", path)); err != nil {
		t.Fatal(err)
	}
}

// TestNoMachine: without a machine id and a boot id the file is used, but restarts of the node are unknown.
func TestNoMachine(t *testing.T) {
	n := newNode(t)
	for _, name := range []string{"etc/machine-id", "proc/sys/kernel/random/boot_id"} {
		if err := os.Remove(filepath.Join(n.host, name)); err != nil {
			t.Fatal(err)
		}
	}
	n.restart() // foreign now
	n.want()
	n.restart()
	n.facts.HCAs = nil
	n.want("hca 0x1", "hca 0x2")
	if n.refresh().Missing[0].Rebooted {
		t.Error("restarted")
	}
}

// TestUnwritable: without a place for the file, devices that vanish at run time are missed, and the log states the
// limit once.
func TestUnwritable(t *testing.T) {
	for name, dir := range map[string]func(*testing.T) string{
		"a directory that cannot be made": func(*testing.T) string { return "/proc/accelscope" },
		"a file":                          func(*testing.T) string { return "/proc/self/status" },
		"a read-only file system":         func(t *testing.T) string { return tmpfs(t, unix.MS_RDONLY) },
		"a directory of such one":         func(t *testing.T) string { return filepath.Join(tmpfs(t, unix.MS_RDONLY), "state") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.o.Dir = dir(t)
			n.start()
			n.want()
			n.facts.HCAs = nil
			n.want("hca 0x1", "hca 0x2")
			n.restart()
			n.want()
			if err := n.i.Close(); err != nil {
				t.Fatal(err)
			}
			if got := n.logged("in memory only"); got != 2 {
				t.Errorf("%d lines of two sensors: %v", got, n.log.All())
			}
		})
	}
}

// tmpfs returns a file system of 64 KiB.
func tmpfs(t *testing.T, flags uintptr) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", flags, "size=64k"); errors.Is(err, unix.EPERM) {
		t.Skip("needs root: make test")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// TestReadOnly: a read-only inventory changes nothing.
func TestReadOnly(t *testing.T) {
	n := newNode(t)
	n.o.ReadOnly = true
	n.restart()
	before, err := os.ReadFile(filepath.Join(n.o.Dir, fileName))
	if err != nil {
		t.Fatal(err)
	}
	n.facts.HCAs = nil
	n.want("hca 0x1", "hca 0x2")
	n.restart()
	if after, err := os.ReadFile(filepath.Join(n.o.Dir, fileName)); err != nil || string(after) != string(before) {
		t.Errorf("%v: %s", err, after)
	}
}

// TestFull: on a full disk the old file remains, whole. It is written again when there is room.
func TestFull(t *testing.T) {
	n, dir := newNode(t), tmpfs(t, 0)
	n.o.Dir = dir
	n.start()
	n.want()
	n.restart()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	n.facts.HCAs = append(n.facts.HCAs, hca("mlx5_2", "0x3", "0000:1a:00.0"))
	n.want()
	n.await("in memory only")
	if list, _ := load(dir, n.i.owner, zap.NewNop()); len(list) != 4 {
		t.Errorf("%d devices in the file", len(list))
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	n.now = n.now.Add(retryEvery)
	n.want()
	n.await("is written again")
	if list, _ := load(dir, n.i.owner, zap.NewNop()); len(list) != 5 {
		t.Errorf("%d devices in the file", len(list))
	}
}

func (n *node) await(text string) {
	n.t.Helper()
	for end := time.Now().Add(10 * time.Second); n.logged(text) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("no line %q: %v", text, n.log.All())
		}
	}
}

// TestLocked: while another sensor writes, this sensor writes nothing.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := replace(dir, []byte("x")); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Error(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// killed is set in the process that TestKilled kills, which writes to its working directory.
const killed = "ACCELSCOPE_TEST_INVENTORY"

// TestKilled kills a process that writes all the time, at random moments: the file is always complete, and no files
// pile up.
func TestKilled(t *testing.T) {
	if os.Getenv(killed) != "" { //nolint:forbidigo // of the test itself
		writeForever(t)
	}
	dir := t.TempDir()
	for n := range 40 {
		cmd := child.Command(t.Context(), "/proc/self/exe", "-test.run=^TestKilled$")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), killed+"=1") //nolint:forbidigo // of the test itself
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it has written once
			t.Fatal(err)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
		text, err := read(filepath.Join(dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		list, err := decode(text, owner{Machine: "m"})
		if err != nil || len(list) == 0 || list[0].Name != fmt.Sprint(len(list)) {
			t.Fatalf("kill %d: %v: %d devices", n, err, len(list))
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 2 {
			t.Fatalf("kill %d: %v: %v", n, err, entries)
		}
	}
}

// writeForever writes files of different lengths, each with its number of devices in the first name.
func writeForever(t *testing.T) {
	for n := 1; ; n = n%maxDevices + 1 {
		list := make([]*device, n)
		for k := range list {
			list[k] = &device{Kind: model.KindGPU, ID: fmt.Sprint(k), Source: "nvidia", Slot: "s", Name: fmt.Sprint(n), Seen: time.Now()}
		}
		text, err := encode(owner{Machine: "m"}, list)
		if err == nil {
			err = replace(".", text)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			fmt.Println("written")
		}
	}
}

// FuzzDecode: any file is refused or bounded, and an accepted file is unchanged after it is written.
func FuzzDecode(f *testing.F) {
	text, err := encode(owner{Machine: "m", boot: "b"}, []*device{
		{Kind: model.KindGPU, ID: "GPU-a", Source: "nvidia", Slot: "0000:10:00.0", Seen: time.Unix(1e9, 0), Links: []int{0, 17}},
		{Kind: model.KindModule, ID: "0x1/1 SN1", Source: "link", Slot: "0x1/1", Port: 1, Serial: "SN1", Seen: time.Unix(1e9, 0)},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"version":1,"machine":"m","devices":[null]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := decode(text, owner{Machine: "m"})
		if err != nil {
			return
		}
		again, err := encode(owner{Machine: "m"}, list)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := decode(again, owner{Machine: "m"}); err != nil || len(back) != len(list) {
			t.Errorf("%v: %d of %d devices", err, len(back), len(list))
		}
	})
}
