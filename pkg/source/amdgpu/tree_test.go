// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// node is a FAKE of a node with AMD GPUs, made from a file of testdata, which names the origin
// of its values. There is no AMD GPU where the tests run.
type node struct {
	t                 *testing.T
	root, sysfs, proc string
	device            string // directory of the last device
}

// newNode creates the tree of a file. Its lines: @ DIRECTORY of the following lines; PATH =
// TEXT with | for a new line; PATH -> TARGET; table PATH SIZE REVISION OFFSET:WIDTH=NUMBER …,
// a gpu_metrics table that is otherwise unfilled; a path with a leading slash is below sysfs;
// ^ marks a path below the root.
func newNode(t *testing.T, file string) *node {
	t.Helper()
	root := t.TempDir()
	n := &node{t: t, root: root, sysfs: filepath.Join(root, "sys"), proc: filepath.Join(root, "proc")}
	text, err := os.ReadFile(filepath.Join("testdata", file+".tree"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{n.sysfs, n.proc, filepath.Join(n.sysfs, "bus/pci/drivers/amdgpu")} {
		n.check(os.MkdirAll(dir, 0o755))
	}
	n.check(os.MkdirAll(filepath.Join(n.proc, "sys/kernel"), 0o755))
	n.check(os.WriteFile(filepath.Join(n.proc, "sys/kernel/osrelease"), []byte("6.8.0-test\n"), 0o644))
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if dir, ok := strings.CutPrefix(line, "@ "); ok {
			n.device = filepath.Join(n.sysfs, dir)
		} else if name, target, ok := strings.Cut(line, " -> "); ok {
			n.check(os.MkdirAll(filepath.Dir(n.path(name)), 0o755))
			n.check(os.Symlink(target, n.path(name)))
		} else if rest, ok := strings.CutPrefix(line, "table "); ok {
			fields := strings.Fields(rest)
			n.file(fields[0], metrics(t, fields[1:]))
		} else if name, value, ok := strings.Cut(line, " ="); ok {
			n.write(name, strings.ReplaceAll(strings.TrimPrefix(value, " "), " | ", "\n")+"\n")
		} else {
			t.Fatalf("%s: %q", file, line)
		}
	}
	return n
}

func (n *node) path(name string) string {
	if below, ok := strings.CutPrefix(name, "^ "); ok {
		return filepath.Join(n.root, below)
	}
	if strings.HasPrefix(name, "/") {
		return filepath.Join(n.sysfs, name)
	}
	return filepath.Join(n.device, name)
}

func (n *node) write(name, text string) { n.file(name, []byte(text)) }

func (n *node) file(name string, b []byte) {
	n.t.Helper()
	n.check(os.MkdirAll(filepath.Dir(n.path(name)), 0o755))
	n.check(os.WriteFile(n.path(name), b, 0o644))
}

func (n *node) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// metrics returns a table of SIZE REVISION OFFSET:WIDTH=NUMBER …: not from the tested layouts,
// but from the offsets of the C structs.
func metrics(t testing.TB, fields []string) []byte {
	t.Helper()
	number := func(s string) uint64 {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	size := number(fields[0])
	b := make([]byte, size)
	for i := range b {
		b[i] = 0xff
	}
	format, content, _ := strings.Cut(fields[1], ".")
	binary.LittleEndian.PutUint16(b, uint16(size))
	b[2], b[3] = byte(number(format)), byte(number(content))
	for _, f := range fields[2:] {
		at, value, _ := strings.Cut(f, "=")
		offset, width, _ := strings.Cut(at, ":")
		var raw [8]byte
		binary.LittleEndian.PutUint64(raw[:], number(value))
		copy(b[number(offset):], raw[:number(width)])
	}
	return b
}

func (n *node) options() Options {
	return Options{Root: n.root, Sysfs: n.sysfs, Procfs: n.proc}
}
