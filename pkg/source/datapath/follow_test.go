// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/returnprobe"
)

// newWatcher returns a watcher in the network namespace of the first process, which is the test.
func newWatcher(t *testing.T) *hotplug.Watcher {
	t.Helper()
	procfs := t.TempDir()
	if err := errors.Join(
		os.MkdirAll(filepath.Join(procfs, "1/ns"), 0o755), os.Symlink("/proc/self/ns/net", filepath.Join(procfs, "1/ns/net")),
	); err != nil {
		t.Fatal(err)
	}
	w, err := hotplug.Open("/sys", procfs, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// TestAnnounced: a device is found after its announcement, and not by looking every half second. The hooks are refused: what
// is reported of them shows that the device was found.
func TestAnnounced(t *testing.T) {
	w, sysfs := newWatcher(t), t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	s := newTestSource(Options{Sysfs: sysfs, Procfs: "/proc", Hotplug: w}, stop)
	s.loop.safety = &returnprobe.Safety{Refused: errors.New("refused")}
	s.loop.devices = w.Devices("tty")
	go s.loop.run(ctx)
	defer s.Close()
	found := func() bool {
		snap, _ := s.Read(t.Context())
		return snap.Hooks[0].State == model.StateUnsupported
	}
	time.Sleep(2 * watchInterval) // the look at the start
	if err := os.MkdirAll(filepath.Join(sysfs, "class/infiniband_verbs/uverbs0"), 0o755); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * watchInterval)
	if found() {
		t.Error("the device is found before its announcement")
	}
	if err := os.WriteFile("/sys/class/tty/tty/uevent", []byte("add"), 0o200); err != nil {
		t.Fatal(err) // needs root
	}
	eventually(t, "the announced device is not found", found)
}

// TestUntilLook: the loop looks for devices once a minute, and more often while something is unfinished.
func TestUntilLook(t *testing.T) {
	s := newTestSource(Options{}, func() {})
	if got := s.loop.untilLook(false); got != watchInterval {
		t.Errorf("without announcements: %v", got)
	}
	s = newTestSource(Options{Hotplug: newWatcher(t)}, func() {})
	l := s.loop
	idle := l.untilLook(false)
	if got := l.untilLook(true); idle != hotplug.Interval || got != watchInterval {
		t.Errorf("%v, after an announcement %v", idle, got)
	}
	l.retry.Failed(time.Now())
	if got := l.untilLook(false); got != retryInterval {
		t.Errorf("while the hooks are refused: %v", got)
	}
	s.prober.former = []*file{nil}
	if got := l.untilLook(false); got != watchInterval {
		t.Errorf("while probes are to be detached: %v", got)
	}
}
