// SPDX-License-Identifier: Apache-2.0

package hotplug

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
)

func open(t *testing.T, procfs string) *Watcher {
	t.Helper()
	w, err := Open("/sys", procfs, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// node returns a procfs whose first process is in the network namespace of the test.
func node(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "1/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/ns/net", filepath.Join(dir, "1/ns/net")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func expect(t *testing.T, s *Subscription, what string) {
	t.Helper()
	select {
	case <-s.Changed():
	case <-time.After(10 * time.Second):
		t.Fatalf("%s is not announced", what)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := child.Command(t.Context(), "ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

// TestDevice: the kernel announces a device when "add" is written to its file uevent.
func TestDevice(t *testing.T) {
	w := open(t, node(t))
	memory, others := w.Devices("infiniband", "mem"), w.Devices("infiniband", "drm")
	if err := os.WriteFile("/sys/class/mem/null/uevent", []byte("add"), 0o200); err != nil {
		t.Fatal(err) // needs root
	}
	expect(t, memory, "/sys/class/mem/null")
	select {
	case <-others.Changed():
		t.Error("mem is announced as another subsystem")
	default:
	}
}

// TestInterface makes and removes an interface in a network namespace of its own.
func TestInterface(t *testing.T) {
	const inside = "ACCELSCOPE_HOTPLUG_NETWORK"
	if os.Getenv(inside) == "" {
		cmd := child.Command(t.Context(), "unshare", "--net", "--fork", "--kill-child", os.Args[0], "-test.run=^TestInterface$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestInterface") {
			t.Errorf("in another network namespace: %v\n%s", err, out)
		}
		return
	}
	if w := open(t, "/proc"); w.Devices("net").Interval(time.Second) != time.Second {
		t.Error("announcements are trusted in another network namespace")
	}
	copied, err := Open(t.TempDir(), node(t), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if copied.Devices("net").Interval(time.Second) != time.Second {
		t.Error("announcements are trusted with a copy of sysfs")
	}
	w := open(t, node(t))
	heard := make(chan int, 100)
	interfaces := w.Interfaces(func(index int) bool {
		heard <- index
		return index == 4711
	})
	ip(t, "link", "add", "d0", "index", "4711", "type", "veth")
	expect(t, interfaces, "a new interface")
	ip(t, "link", "set", "d0", "up")
	expect(t, interfaces, "an interface set up")
	ip(t, "link", "add", "d1", "index", "4712", "type", "veth")
	for index := range heard {
		if index == 4712 {
			break
		}
	}
	for len(interfaces.Changed()) > 0 {
		<-interfaces.Changed()
	}
	ip(t, "link", "del", "d0")
	expect(t, interfaces, "a removed interface")
}

// TestLoss: announcements that find no room wake all subscribers.
func TestLoss(t *testing.T) {
	w := open(t, node(t))
	blocked, other := w.Devices("accelscope-test"), w.Devices("infiniband")
	for _, s := range w.sockets {
		raw, err := s.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			if err := unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w.mu.Lock() // the next announcement is not handled
	for range 100 {
		send(t, "add@/x\x00SUBSYSTEM=accelscope-test\x00"+strings.Repeat("x", 1000))
	}
	w.mu.Unlock()
	expect(t, blocked, "a device")
	expect(t, other, "a loss")
	if w.Lost() == 0 {
		t.Error("no loss is counted")
	}
}

// send sends a message as the kernel does, to the kernel's group.
func send(t *testing.T, message string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // a test
	err = unix.Sendto(fd, []byte(message), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
	if err != nil && !errors.Is(err, unix.ENOBUFS) {
		t.Fatal(err) // needs CAP_NET_ADMIN
	}
}

// TestFailure: when a socket fails, subscribers look at once, and then as often as without announcements.
func TestFailure(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	w, err := Open("/sys", node(t), zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	s := w.Devices("drm")
	if got := s.Interval(time.Second); got != Interval {
		t.Errorf("every %v while announcements arrive", got)
	}
	_ = w.sockets[1].Close()
	expect(t, s, "the failure")
	if got := s.Interval(time.Second); got != time.Second || logs.Len() != 1 {
		t.Errorf("every %v after the failure; logs: %v", got, logs.All())
	}
	w.Close()
	if logs.Len() != 1 {
		t.Errorf("closing is logged: %v", logs.All())
	}
	var none *Watcher
	if s := none.Devices("drm"); s.Changed() != nil || s.Interval(time.Second) != time.Second {
		t.Error("without a watcher")
	}
	if s := none.Interfaces(nil); s != nil {
		t.Error("without a watcher")
	}
}

// TestFollow: a subscriber looks after a change, once more when the driver is ready, and every minute.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Watcher{log: zap.NewNop()}
		s := w.Devices("drm")
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
		defer stop()
		var got []string
		go func() {
			time.Sleep(90 * time.Second)
			for range 3 {
				w.announceDevice([]byte("add@/x\x00SUBSYSTEM=drm\x00"))
			}
			time.Sleep(60 * time.Second)
			w.fail(errors.New("test"))
		}()
		s.Follow(ctx, 10*time.Second, func() { got = append(got, fmt.Sprint(time.Since(began))) })
		want := []string{"1m0s", "1m30.1s", "1m40.1s", "2m30.1s", "2m40.1s", "2m50.1s"}
		if !slices.Equal(got, want) {
			t.Errorf("looked after %v, want %v", got, want)
		}
	})
}

func TestSubsystem(t *testing.T) {
	const header = "add@/devices/pci0000:00/0000:00:03.0/infiniband/mlx5_0\x00ACTION=add\x00"
	for message, want := range map[string]string{
		header + "SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00SEQNUM=1234\x00":                              "infiniband",
		"add@/devices/virtual/net/SUBSYSTEM=infiniband\x00ACTION=add\x00SUBSYSTEM=net\x00SEQNUM=1\x00": "net",
		header + "SUBSYSTEM=truncated": "truncated",
		header:                         "",
		"":                             "",
	} {
		if got := subsystemOf([]byte(message)); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}

func FuzzMessages(f *testing.F) {
	f.Add([]byte("add@/x\x00SUBSYSTEM=drm\x00"))
	f.Add(make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s := subsystemOf(b); strings.Contains(s, "\x00") {
			t.Errorf("%q", s)
		}
		if _, ok := indexOf(b); ok && len(b) < 32 {
			t.Errorf("%d bytes", len(b))
		}
	})
}
