// SPDX-License-Identifier: Apache-2.0

package vf

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestGuestVFs reads the virtual functions of the module built from testdata/vfs.c (ACCELSCOPE_VFS). It runs in the guest
// of tests/machines/vm. With ACCELSCOPE_RECORD=DIR it writes the reply to DIR, for testdata.
func TestGuestVFs(t *testing.T) {
	module := os.Getenv("ACCELSCOPE_VFS")
	if os.Getenv("ACCELSCOPE_GUEST") == "" || module == "" {
		t.Skip("needs a kernel module: runs in the guest of tests/machines/vm")
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := child.Command(context.Background(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
	}
	run("insmod", module)
	t.Cleanup(func() { run("rmmod", "vfs") })
	f := New("/sys/class/infiniband", time.Minute)
	l, err := f.askInterface("vfs0", 3, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	checkRecorded(t, l)
	if _, err := f.askInterface("none0", 3, time.Now().Add(time.Minute)); !errors.Is(err, unix.ENODEV) {
		t.Errorf("no such interface: %v", err)
	}
	if l, err := f.askInterface("lo", 3, time.Now().Add(time.Minute)); err != nil || l.listed || l.count != 0 {
		t.Errorf("lo: %+v, %v", l, err)
	}
	out, err := child.Command(t.Context(), "ip", "-s", "-d", "link", "show", "vfs0").CombinedOutput()
	t.Logf("iproute2: %v\n%s", err, out)
	for _, want := range []string{"1099511627778", "2199023255554", "a0:88:c2:03:00:00:01:02", "a0:88:c2:03:00:00:02:02"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("iproute2 does not list %s", want)
		}
	}
	if dir := os.Getenv("ACCELSCOPE_RECORD"); dir != "" {
		c, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.Buffer = make([]byte, netlink.BufferSize)
		request := linkRequest("vfs0")
		netlink.SetSequence(request, 1)
		if _, err := unix.Write(c.FD, request); err != nil {
			t.Fatal(err)
		}
		n, err := c.Receive(time.Now().Add(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "getlink_vf.bin"), c.Buffer[:n], 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
