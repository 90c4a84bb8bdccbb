// SPDX-License-Identifier: Apache-2.0

package mountinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnescape(t *testing.T) {
	for escaped, want := range map[string]string{
		`/plain`: "/plain", `/a\040b\011c\012d`: "/a b\tc\nd", `/back\134slash`: `/back\slash`, `/\134040`: `/\040`,
		`\043x`: "#x", `/\377`: "/\xff", `/x\04`: `/x\04`, `/x\`: `/x\`, `/\400`: `/\400`, `/\089`: `/\089`,
	} {
		if got := Unescape(escaped); got != want {
			t.Errorf("%s: %q, want %q", escaped, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	got, ok := Parse("36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/my\\040root rw,errors=continue\n")
	want := Mount{"36", "98", "0", "/mnt1", "/mnt 2", "rw,noatime", "ext3", "/dev/my root", "rw,errors=continue"}
	if !ok || got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, ok := Parse("40 35 0:40 / /t rw - tmpfs  rw"); !ok || got.Source != "" || got.Type != "tmpfs" {
		t.Errorf("an empty source: %+v, %t", got, ok)
	}
	for _, line := range []string{"", "\n", "36 35 98:0 / /", "36 35 980 / / rw - ext3 x rw", "36 35 98:0 / / rw - ext3", " - "} {
		if got, ok := Parse(line); ok {
			t.Errorf("%q: %+v", line, got)
		}
	}
}

// TestKernel: in a mount namespace of this test, the kernel mounts file systems at names with each escaped character.
// Each line parses, and its mount point exists.
func TestKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount; make test runs as root")
	}
	dir := filepath.Join(t.TempDir(), "a b\tc\nd\\134e#")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("a #\\source", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("a tmpfs cannot be mounted: %v", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH) //nolint:errcheck // the directory is temporary
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		m, ok := Parse(line)
		if !ok {
			t.Errorf("%q cannot be parsed", line)
		}
		if m.Point == dir {
			if m.Source != "a #\\source" {
				t.Errorf("source %q", m.Source)
			}
			return
		}
	}
	t.Error("the mount was not found")
}
