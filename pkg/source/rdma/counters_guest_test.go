// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/qpcounter"
)

// TestGuestCounters runs in the guest of tests/machines/vm, as TestGuest. Soft-RoCE does not bind queue pairs, though its kernel
// accepts auto mode: the manager must leave the mode unchanged. The test also sends the manager's commands and compares
// the result with iproute2.
func TestGuestCounters(t *testing.T) {
	if os.Getenv("ACCELSCOPE_GUEST") == "" {
		t.Skip("needs a live RDMA stack: runs in the guest of tests/machines/vm")
	}
	mode := func() string {
		for _, l := range iproute(t, "statistic", "qp", "mode") {
			if l["ifname"] == "rxe0" {
				return fmt.Sprint(l["qp auto"], l["mode"], l)
			}
		}
		t.Fatal("iproute2 does not list rxe0")
		return ""
	}
	before := mode()
	for _, how := range []string{qpcounter.ModeUse, qpcounter.ModeManage} {
		s := newGuestSource(t, func(o *Options) {
			o.QPCounters, o.CgroupOf = how, func(int) (model.CgroupID, error) { return 1, nil }
		})
		managed := make(chan struct{}, 100)
		s.qps.Manage(func() (*nldev.Conn, error) { // starts the manager, with sockets that only it opens
			managed <- struct{}{}
			return nldev.Dial()
		})
		if how == qpcounter.ModeManage {
			<-managed
		}
		snap := mustRead(t, s)
		if snap.Traffic == nil || len(snap.Traffic) != 0 {
			t.Errorf("%s: traffic %v", how, snap.Traffic)
		}
		for _, d := range snap.DeviceStates {
			if d.State != model.StateOK || d.Reason != "" {
				t.Errorf("%s: %+v", how, d)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if now := mode(); now != before {
			t.Errorf("%s: the mode was %s and is %s", how, before, now)
		}
	}

	c, err := nldev.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	deadline := time.Now().Add(time.Minute)
	var index uint32
	for _, d := range mustDump(t) {
		if d.Name == "rxe0" {
			index = d.Index
		}
	}
	want := func(what string, m nldev.QPMode) {
		t.Helper()
		if got, err := c.Mode(index, 1, deadline); err != nil || got != m {
			t.Errorf("%s: mode %+v, %v; want %+v", what, got, err, m)
		}
	}
	want("before", nldev.QPMode{})
	var release unix.Utsname
	_ = unix.Uname(&release)
	old := release.Release[0] < '7' // 5.10, 6.1 and 6.12; optional counters are bound since 6.15
	err = c.SetAuto(index, 1, deadline)
	if old {
		if !errors.Is(err, unix.EINVAL) {
			t.Errorf("optional counters before 6.15: %v", err)
		}
		want("refused", nldev.QPMode{})
	} else {
		if err != nil {
			t.Error(err)
		}
		want("auto with optional counters", nldev.QPMode{Mode: nldev.ModeAuto, Mask: nldev.MaskPID, Optionals: true})
	}
	tool := func(args ...string) {
		t.Helper()
		args = append([]string{"statistic", "qp", "set", "link", "rxe0/1", "auto"}, args...)
		if out, err := command(t.Context(), "rdma", args...).CombinedOutput(); err != nil {
			t.Errorf("rdma %v: %v: %s", args, err, out)
		}
	}
	if !old {
		tool("off")
	}
	tool("pid", "on")
	want("auto", nldev.QPMode{Mode: nldev.ModeAuto, Mask: nldev.MaskPID})
	t.Log(mode())
	if mode() == before {
		t.Error("iproute2 sees no change")
	}
	tool("off")
	want("off again", nldev.QPMode{})
	if now := mode(); now != before {
		t.Errorf("iproute2: the mode was %s and is %s", before, now)
	}
	o, err := c.Optionals(index, 1, deadline)
	t.Logf("optional counters %v, %v", o, err)
	if len(o) != 0 {
		t.Error("Soft-RoCE has no optional counters")
	}
	// An empty list switches all optional counters off.
	t.Logf("setting none: %v", c.SetOptionals(index, 1, nil, deadline))
	if err := c.SetOptionals(index, 1, []uint32{0}, deadline); !errors.Is(err, unix.EINVAL) {
		t.Errorf("to set a counter that is not optional: %v", err)
	}
	if all, err := nldev.QPCounters(nldev.Dial, index, deadline); err != nil || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
	// This process has no queue pair, so look up a queue pair that does not exist.
	if _, err := c.Creator(index, 1, 0xffffff, deadline); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%v", err)
	}
	// A server that waits for its client has its queue pair in INIT: the queue pair is on a port, like a bound queue
	// pair.
	pingpong := command(t.Context(), "ibv_rc_pingpong", "-d", "rxe0", "-g", "0")
	if err := pingpong.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = pingpong.Process.Kill()
		_ = pingpong.Wait()
	}()
	eventually(t, func() bool {
		for _, e := range iproute(t, "resource", "show", "qp") {
			var qpn uint32
			_, _ = fmt.Sscan(fmt.Sprint(e["lqpn"]), &qpn)
			if fmt.Sprint(e["pid"]) == fmt.Sprint(pingpong.Process.Pid) {
				pid, err := c.Creator(index, 1, qpn, deadline)
				return err == nil && int(pid) == pingpong.Process.Pid
			}
		}
		return false
	})
}
