// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// notified is a notification socket like systemd's, and the received messages.
func notified(t *testing.T) *net.UnixConn {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // t.TempDir() may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	t.Setenv("NOTIFY_SOCKET", filepath.Join(dir, "s"))
	return conn
}

func received(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 1000)
	n, err := conn.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(text[:n])
}

func TestRuntimeDirectory(t *testing.T) {
	for set, want := range map[string]string{"": "", "/run/accelscope": "/run/accelscope", "/run/accelscope:/run/more": "/run/accelscope"} {
		t.Setenv("RUNTIME_DIRECTORY", set)
		if got := RuntimeDirectory(); got != want {
			t.Errorf("%q: %q, want %q", set, got, want)
		}
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); err != nil {
		t.Errorf("without systemd: %v", err)
	}
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/socket")
	if err := Notify("READY=1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a socket that is not there: %v", err)
	}
	conn := notified(t)
	if err := Notify("STOPPING=1"); err != nil || received(t, conn) != "STOPPING=1" {
		t.Errorf("not sent: %v", err)
	}
}

// Log lines for the journal begin with the priority, others with the time.
func TestJournal(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no inode")
	}
	write := func(format string) string {
		if err := file.Truncate(0); err != nil {
			t.Fatal(err)
		}
		log, err := NewLogger(file, "debug", format)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("one")
		log.Info("two")
		log.Warn("three")
		log.Error("four")
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.Trim(text, "\x00"))
	}
	t.Setenv("JOURNAL_STREAM", fmt.Sprintf("%d:%d", st.Dev, st.Ino))
	if got, want := write("console"), "<7>debug\tone\n<6>info\ttwo\n<4>warn\tthree\n<3>error\tfour\n"; got != want {
		t.Errorf("on the journal: %q", got)
	}
	if got := write("json"); !strings.Contains(got, `"ts":`) {
		t.Errorf("JSON on the journal: %q", got)
	}
	for _, elsewhere := range []string{"", fmt.Sprintf("%d:%d", st.Dev, st.Ino+1), "nonsense"} {
		t.Setenv("JOURNAL_STREAM", elsewhere)
		if got := write("console"); !regexp.MustCompile(`^\d{4}-\d\d-\d\dT`).MatchString(got) || strings.Contains(got, "<") {
			t.Errorf("JOURNAL_STREAM=%s: %q", elsewhere, got)
		}
	}
}

// TestAPIServer reads the variables that Kubernetes sets in each container.
func TestAPIServer(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if got := APIServer(); got != "" {
		t.Errorf("outside a pod: %s", got)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	if got := APIServer(); got != "https://[fd00::1]:443" {
		t.Error(got)
	}
}
