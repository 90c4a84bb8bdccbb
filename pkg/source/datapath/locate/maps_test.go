// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseCode(t *testing.T) {
	const maps = `55f0a0000000-55f0a0001000 r--p 00000000 fe:00 101                        /bin/x
55f0a0001000-55f0a0002000 r-xp 00001000 fe:00 101                        /bin/x
55f0a1000000-55f0a1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00002000 00:27 18446744073709551615       /a b\012c/lib.so (deleted)
7f0000001000-7f0000002000 rwxp 00000000 00:00 0
7f0000002000-7f0000003000 --xs fffffffff000 103:1f4 7 /memfd:x (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
`
	got, err := parseCode(strings.NewReader(maps))
	want := []mapping{
		{0x55f0a0001000, 0x55f0a0002000, 0x1000, FileID{unix.Mkdev(0xfe, 0), 101}, "/bin/x"},
		{0x7f0000000000, 0x7f0000001000, 0x2000, FileID{unix.Mkdev(0, 0x27), 1<<64 - 1}, `/a b\012c/lib.so (deleted)`},
		{0x7f0000002000, 0x7f0000003000, 0xfffffffff000, FileID{unix.Mkdev(0x103, 0x1f4), 7}, "/memfd:x (deleted)"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for address, path := range map[uint64]string{
		0x55f0a0000fff: "", 0x55f0a0001000: "/bin/x", 0x55f0a0001fff: "/bin/x", 0x55f0a0002000: "", 0: "", 1<<64 - 1: "",
		0x7f0000002800: "/memfd:x (deleted)",
	} {
		if m := find(got, address); (m == nil) != (path == "") || (m != nil && m.path != path) {
			t.Errorf("%#x is in %+v, want %q", address, m, path)
		}
	}

	for _, bad := range []string{
		"\n",
		"1000-2000 r-xp 0 0:0 1 /x", // no newline: truncated
		"2000-1000 r-xp 0 0:0 1 /x\n",
		"1000-2000 r-x 0 0:0 1 /x\n",
		"1000-2000 r-xp 0 0 1 /x\n",
		"1000-2000 r-xp 0 0:0 -1 /x\n",
		"1000-2000 r-xp ffffffffffffffff 0:0 1 /x\n",
		"2000-3000 r-xp 0 0:0 1 /x\n1000-2000 r-xp 0 0:0 1 /x\n",
		"1000-3000 r-xp 0 0:0 1 /x\n2000-4000 r-xp 0 0:0 1 /x\n",
		"1000-2000 r-xp 0 0:0 1 /" + strings.Repeat("x", 40<<10) + "\n",
	} {
		if m, err := parseCode(strings.NewReader(bad)); err == nil {
			t.Errorf("%.60q gives %+v", bad, m)
		}
	}
	var many strings.Builder
	for i := range maxCode + 1 {
		b := []byte("00000000-00001000 r-xp 0 0:0 1 /x\n")
		copy(b, []byte(strings.ToLower(hex8(i*0x1000))))
		copy(b[9:], []byte(hex8((i+1)*0x1000)))
		many.Write(b)
	}
	if m, err := parseCode(strings.NewReader(many.String())); err == nil || len(m) != maxCode {
		t.Errorf("%d mappings, %v", len(m), err)
	}
}

func hex8(n int) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 8)
	for i := range b {
		b[i] = digits[n>>(28-4*i)&15]
	}
	return string(b)
}

func FuzzMaps(f *testing.F) {
	own, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("1000-2000 r-xp 00000000 fe:00 1 /x\\012y\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		code, err := parseCode(strings.NewReader(string(data)))
		if err != nil {
			return
		}
		for i, m := range code {
			if m.start >= m.end || m.file.Inode == 0 || (i > 0 && code[i-1].end > m.start) || find(code, m.start) != &code[i] || find(code, m.end-1) != &code[i] {
				t.Fatalf("%q: %+v", data, m)
			}
		}
	})
}

// TestMappedFile opens the files that a process (this one) has mapped, by both methods, also after another file got its
// path.
func TestMappedFile(t *testing.T) {
	p := self(t)
	path := filepath.Join(t.TempDir(), "a b\nc")
	content := []byte(strings.Repeat("the first", 1000))
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	mapExecutable(t, path)
	m := mappingOf(t, p, t.Name())
	check := func(what string, f *os.File, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer f.Close()
		b := make([]byte, 9)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != "the first" {
			t.Errorf("%s: %q, %v", what, b, err)
		}
	}
	f, err := p.open(m)
	check("by map_files", f, err)
	fd, err := p.openInRoot(m.path)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)

	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("another"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err = p.open(m)
	check("renamed", f, err)
	os.Remove(path + ".old")
	f, err = p.open(m)
	check("deleted", f, err)

	// The opened file must be the one in maps.
	wrong := *m
	wrong.file.Inode++
	if f, err := p.open(&wrong); err == nil {
		f.Close()
		t.Error("another file was taken for it")
	}
}

// overlay mounts the view that a container has of an image.
func overlay(t *testing.T, image string) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(dir, "merged")
	options := "lowerdir=" + image + ",upperdir=" + filepath.Join(dir, "upper") + ",workdir=" + filepath.Join(dir, "work")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Skipf("no overlayfs here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	return merged
}

// TestOverlay: containers of one image map one file, each through an overlay of its own.
func TestOverlay(t *testing.T) {
	p := self(t)
	images := []string{t.TempDir(), t.TempDir()}
	var ids []FileID
	for i, image := range []string{images[0], images[0], images[1]} {
		if i != 1 {
			if err := os.WriteFile(filepath.Join(image, "lib.so"), make([]byte, 8192), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		merged := overlay(t, image)
		mapExecutable(t, filepath.Join(merged, "lib.so"))
		m := mappingOf(t, p, merged)
		f, err := p.open(m)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		id, _, err := identify(f, m.file)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if ids[0] != ids[1] || ids[0] == ids[2] {
		t.Errorf("the first two are the same file, the last is another: %v", ids)
	}
}

func self(t *testing.T) *Process {
	t.Helper()
	p, err := OpenProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func mapExecutable(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
}

func mappingOf(t *testing.T, p *Process, part string) *mapping {
	t.Helper()
	code, err := p.code()
	if err != nil {
		t.Fatal(err)
	}
	for i := range code {
		if strings.Contains(code[i].path, part) {
			return &code[i]
		}
	}
	t.Fatalf("%q is not mapped", part)
	return nil
}

// TestCheckFile: a file that must not be opened is not.
func TestCheckFile(t *testing.T) {
	p := self(t)
	code, err := p.code()
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.open(&code[0])
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	refused := errors.New("refused")
	p.CheckFile = func(int) error { return refused }
	if f, err := p.open(&code[0]); !errors.Is(err, refused) {
		t.Errorf("%v, %v", f, err)
	}
}
