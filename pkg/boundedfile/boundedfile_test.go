// SPDX-License-Identifier: Apache-2.0

package boundedfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func write(t *testing.T, content []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// The content equals os.ReadFile's, up to the limit, with any buffer.
func TestReadFile(t *testing.T) {
	for _, size := range []int{0, 1, 127, 128, 129, firstBuffer, 3*firstBuffer + 5} {
		content := bytes.Repeat([]byte("0123456"), size/7+1)[:size]
		name := write(t, content)
		for _, limit := range []int{1, 128, 1 << 20} {
			for _, buf := range [][]byte{nil, make([]byte, 128), make([]byte, 0, 16), make([]byte, 1<<20)} {
				want := content[:min(size, limit)]
				got, err := ReadFile(name, buf, limit)
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes, limit %d, buffer of %d: %d bytes, %v", size, limit, cap(buf), len(got), err)
				}
			}
		}
	}
}

// A name is relative to an open directory.
func TestOpen(t *testing.T) {
	dir, base := filepath.Split(write(t, []byte("1\n")))
	at, err := Open(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(at)
	fd, err := Open(at, base, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 16)
	for _, want := range []string{"1\n", ""} {
		if n, err := Read(fd, buf); err != nil || string(buf[:n]) != want {
			t.Errorf("%q, %v; want %q", buf[:n], err, want)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %x, %v: a child would have the file", flags, err)
	}
}

// The kernel returns /proc/self/maps in parts, and a FIFO in the parts that were written.
func TestReadFileInParts(t *testing.T) {
	got, err := ReadFile("/proc/self/smaps", make([]byte, 64<<10), 16<<20)
	if err != nil || !strings.Contains(string(got), "[vdso]") && !strings.Contains(string(got), "[vvar]") {
		t.Errorf("%d bytes, %v: the last mappings are missing", len(got), err)
	}

	name, parts := fifo(t), []string{"a", strings.Repeat("b", 3000), "c\n"}
	go func() {
		w, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return
		}
		defer w.Close()
		for _, p := range parts {
			_, _ = w.WriteString(p)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	got, err = ReadFile(name, make([]byte, 16), 1<<20)
	if err != nil || string(got) != strings.Join(parts, "") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// A file that grows while it is read, as a hostile file may, ends at the limit.
func TestGrowingFile(t *testing.T) {
	const limit = 100 << 10
	got, err := ReadFile("/dev/zero", nil, limit)
	if err != nil || len(got) != limit {
		t.Errorf("%d bytes of a file without end, %v", len(got), err)
	}
	if got, err := ReadOnce("/dev/zero", make([]byte, 128)); err != nil || len(got) != 128 {
		t.Errorf("%d bytes of a file without end, %v", len(got), err)
	}
}

func TestReadOnce(t *testing.T) {
	name := write(t, []byte("0x1002\n"))
	if got, err := ReadOnce(name, make([]byte, 64)); err != nil || string(got) != "0x1002\n" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := ReadOnce(name, make([]byte, 3)); err != nil || string(got) != "0x1" {
		t.Errorf("%q, %v", got, err)
	}
}

// An open file is read again from its start.
func TestReadStart(t *testing.T) {
	name := write(t, []byte("1\n"))
	fd, err := Open(unix.AT_FDCWD, name, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	buf := make([]byte, 16)
	for _, want := range []string{"1\n", "22\n"} {
		if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := ReadStart(fd, buf); err != nil || string(buf[:n]) != want {
			t.Errorf("%q, %v; want %q", buf[:n], err, want)
		}
	}
}

func TestErrors(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]struct {
		op  string
		err error
	}{
		filepath.Join(dir, "missing"): {"open", fs.ErrNotExist},
		dir:                           {"read", unix.EISDIR},
		"/proc/self/mem":              {"read", unix.EIO},
	} {
		buf := make([]byte, 64)
		_, whole := ReadFile(name, buf, 64)
		_, once := ReadOnce(name, buf)
		for _, err := range []error{whole, once} {
			var path *os.PathError
			if !errors.Is(err, want.err) || !errors.As(err, &path) || path.Op != want.op || path.Path != name {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	}
	if n, err := Read(-1, make([]byte, 1)); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("%d, %v: a failed read has read nothing", n, err)
	}
	if n, err := ReadStart(-1, make([]byte, 1)); n != 0 || !errors.Is(err, unix.EBADF) {
		t.Errorf("%d, %v: a failed read has read nothing", n, err)
	}
}

func TestRetry(t *testing.T) {
	calls := 0
	got, err := Retry(func() (string, error) {
		if calls++; calls < 4 {
			return "", unix.EINTR
		}
		return "read", unix.EIO
	})
	if got != "read" || !errors.Is(err, unix.EIO) || calls != 4 {
		t.Errorf("%q, %v after %d calls", got, err, calls)
	}
}

// TestSignal interrupts a read with real signals. The handlers of the Go runtime have SA_RESTART, which does not
// restart a read of a socket with a timeout: signal(7).
func TestSignal(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	if err := unix.SetsockoptTimeval(ends[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	thread, result := make(chan int, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		buf := make([]byte, 8)
		if _, err := unix.Read(ends[0], buf); !errors.Is(err, unix.EINTR) {
			result <- fmt.Errorf("the signals do not interrupt a read: %w", err)
			return
		}
		n, err := Read(ends[0], buf)
		if err == nil && string(buf[:n]) != "ok" {
			err = fmt.Errorf("read %q", buf[:n])
		}
		result <- err
	}()
	tid := <-thread
	for range 50 {
		time.Sleep(2 * time.Millisecond)
		if err := unix.Tgkill(os.Getpid(), tid, unix.SIGURG); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Write(ends[1], []byte("ok")); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"":                         "",
		"113-D65201-0\n":           "113-D65201-0",
		" a b\t\nsecond\n":         "a b",
		"\n":                       "",
		"a\x00b\x7f\xffc":          "abc",
		"é\u2028x":                 "éx",
		"123456789012":             "123456789012",
		"1234567890123":            "123456789012",
		"12345678901é":             "12345678901", // not half of a character
		"           12":            "1",           // the limit includes the white space
		"\xc3\xc3\xc3\xc3\xc3ab\n": "ab",
	} {
		got := Line([]byte(in), 12)
		if got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// An absolute link below a root directory begins at that directory, and links do not lead out of it.
func TestBelow(t *testing.T) {
	root := t.TempDir()
	for name, target := range map[string]string{
		"etc/os-release": "/usr/lib/os-release", "var/run": "/run", "etc/out": "../../../../../../usr/lib/os-release", "etc/host": "/etc/hostname",
	} {
		link := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o700), os.Symlink(target, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"usr/lib/os-release", "run/udev/data/b8:0"} {
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(name), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"etc/os-release": "usr/lib/os-release", "/etc/os-release": "usr/lib/os-release", "etc/out": "usr/lib/os-release",
		"var/run/udev/data/b8:0": "run/udev/data/b8:0", "../../usr/lib/os-release": "usr/lib/os-release",
	} {
		if got, err := ReadFileBelow(root, path, nil, 100); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
		if got, err := Below(root, path); err != nil || got != filepath.Join(root, want) {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"etc/host", "none"} { // this machine's file is not the node's
		if got, err := ReadFileBelow(root, path, nil, 100); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
	}
}
