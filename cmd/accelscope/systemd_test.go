// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
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
