// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/child"
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
		if got := runtimeDirectory(); got != want {
			t.Errorf("%q: %q, want %q", set, got, want)
		}
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify("READY=1"); err != nil {
		t.Errorf("without systemd: %v", err)
	}
	t.Setenv("NOTIFY_SOCKET", "/nonexistent/socket")
	if err := notify("READY=1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("with a socket that is not there: %v", err)
	}
	conn := notified(t)
	if err := notify("STOPPING=1"); err != nil || received(t, conn) != "STOPPING=1" {
		t.Errorf("not sent: %v", err)
	}
}

// The sensor notifies systemd when /readyz reports ready, and when it stops.
func TestNotifyLife(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(unix.SignalName(signal), func(t *testing.T) { notifiesOf(t, signal) })
	}
}

func notifiesOf(t *testing.T, signal syscall.Signal) {
	conn := notified(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := child.Command(context.Background(), exe, "-test.run=^TestNotifyHelper$")
	cmd.Env = append(os.Environ(), "ACCELSCOPE_TEST_NOTIFY=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if got := received(t, conn); got != "READY=1" {
		t.Errorf("first it sent %q", got)
	}
	if err := cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	if got := received(t, conn); got != "STOPPING=1" {
		t.Errorf("then it sent %q", got)
	}
	if err := cmd.Wait(); err != nil { // main also ends the test's process
		t.Errorf("it ended with %v", err)
	}
}

func TestNotifyHelper(t *testing.T) {
	if os.Getenv("ACCELSCOPE_TEST_NOTIFY") == "" {
		t.Skip("run by TestNotifyLife")
	}
	os.Args = []string{
		"accelscope", "--web.listen-address=127.0.0.1:0", "--no-collector.probe", "--no-collector.access",
		"--no-collector.runtime", "--no-collector.gpu", "--no-collector.kubelet",
	}
	main()
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
		log, err := newLogger(file, "debug", format)
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

// The configuration file of the packages has every key, with its default.
func TestConfigExample(t *testing.T) {
	const example = "../../deploy/systemd/accelscope.yaml"
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	if file, err := parseConfigFile(example, text); err != nil || len(file.keys) != 0 {
		t.Errorf("it is to be comments alone: %v", err)
	}
	// A comment is a sentence: it has a space after its #.
	all := filepath.Join(t.TempDir(), "all.yaml")
	set := regexp.MustCompile(`(?m)^#(\S)`).ReplaceAll(text, []byte("$1"))
	if err := os.WriteFile(all, set, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := readConfigFile(all)
	if err != nil {
		t.Fatal(err)
	}
	var plain cli
	ctx, err := parse(&plain, nil, io.Discard, io.Discard, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parse(new(cli), []string{"--config.file=" + all}, io.Discard, io.Discard, nil); err != nil {
		t.Errorf("all of it set: %v", err)
	}
	left := []string{"help", "version", "config.file"}
	for _, group := range ctx.Selected().AllFlags(false) {
		for _, flag := range group {
			node := file.values[flag.Name]
			if node == nil {
				if !slices.Contains(left, flag.Name) {
					t.Errorf("it lacks %s", flag.Name)
				}
				continue
			}
			value := node.Value
			if flag.IsSlice() {
				items := make([]string, 0, len(node.Content))
				for _, item := range node.Content {
					items = append(items, item.Value)
				}
				if len(items) > 0 {
					value = strings.Join(items, ",")
				}
			}
			if want := flag.Default; flag.HasDefault && value != want {
				t.Errorf("%s: %q, and the default is %q", flag.Name, value, want)
			} else if flag.IsBool() && !flag.HasDefault && value != "false" {
				t.Errorf("%s: %q, and the default is false", flag.Name, value)
			}
		}
	}
}
