// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree is sysfs and /run of a fake node with a loaded driver. procfs is this machine's, except for the driver's files.
type tree struct {
	t    testing.TB
	o    Options
	logs *observer.ObservedLogs
}

func newTree(t testing.TB) *tree {
	t.Helper()
	dir := t.TempDir()
	core, logs := observer.New(zap.DebugLevel)
	n := &tree{t, Options{
		Sysfs: filepath.Join(dir, "sys"), Procfs: "/proc", Run: filepath.Join(dir, "run"), Logger: zap.New(core),
	}, logs}
	n.mkdir(n.o.Run)
	n.mkdir(filepath.Join(n.o.Sysfs, "module/nvidia"))
	return n
}

func (n *tree) mkdir(path string) {
	n.t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		n.t.Fatal(err)
	}
}

func (n *tree) write(path, text string) {
	n.t.Helper()
	n.mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *tree) remove(path string) {
	n.t.Helper()
	if err := os.RemoveAll(path); err != nil {
		n.t.Fatal(err)
	}
}

// call is a call of the handler; the reason has the prefix "resume " if it is Resume.
type call string

// start runs Watch until the end of the test and returns the calls of its handler.
func (n *tree) start() <-chan call {
	n.t.Helper()
	calls := make(chan call, 16)
	ctx, cancel := context.WithCancel(n.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Watch(ctx, n.o, Handler{
			Release: func(reason string, most time.Duration) {
				if most <= 0 || most > longest {
					n.t.Errorf("released for %v", most)
				}
				calls <- call(reason)
			},
			Resume: func(reason string) { calls <- call("resume " + reason) },
		})
	}()
	n.t.Cleanup(func() {
		cancel()
		<-done
		close(calls)
		for c := range calls {
			n.t.Errorf("unexpected call: %s", c)
		}
	})
	return calls
}

// await waits until a message has been logged a number of times.
func (n *tree) await(message string, times int) {
	n.t.Helper()
	for deadline := time.Now().Add(time.Minute); n.logs.FilterMessage(message).Len() < times; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%q is not logged", message)
		}
	}
}

func (n *tree) expect(calls <-chan call, want call) {
	n.t.Helper()
	select {
	case got := <-calls:
		if got != want {
			n.t.Fatalf("%q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		n.t.Fatalf("no call, want %q", want)
	}
}

// TestPause: a node without a driver is seldom checked.
func TestPause(t *testing.T) {
	for _, c := range []struct {
		driver uint64
		reason string
		want   time.Duration
	}{{0, "", 5 * time.Second}, {0, "upgrade", time.Second}, {7, "", time.Second}} {
		if got := pause(c.driver, c.reason); got != c.want {
			t.Errorf("driver %d, reason %q: %v", c.driver, c.reason, got)
		}
	}
}

// TestReadyFile removes the ready file of a driver container, and creates it again.
func TestReadyFile(t *testing.T) {
	n := newTree(t)
	ready := filepath.Join(n.o.Run, "nvidia/validations/.driver-ctr-ready")
	n.write(ready, "")
	calls := n.start()
	const removed = "the driver container removed .driver-ctr-ready"
	n.await("watching the ready file of the driver container", 1)
	n.remove(ready)
	n.expect(calls, removed)
	n.write(ready, "")
	n.expect(calls, "resume "+removed)
	n.remove(filepath.Join(n.o.Run, "nvidia"))
	n.expect(calls, removed)
	// Another instance of the driver is loaded, and the file is still missing.
	driver := filepath.Join(n.o.Sysfs, "module/nvidia")
	if err := os.Rename(driver, driver+".before"); err != nil { // it keeps its inode number, so that the other instance has another
		t.Fatal(err)
	}
	n.mkdir(driver)
	n.expect(calls, "resume "+removed)
}

// TestDirectories changes directories; the inner directories are created later. Each change must cause a notification
// without a check in between.
func TestDirectories(t *testing.T) {
	n := newTree(t)
	n.o.Logger = nil
	outer, inner := n.o.Run, filepath.Join(n.o.Run, "nvidia/validations")
	changes := []func(){
		func() { n.mkdir(inner) },
		func() { n.write(filepath.Join(inner, "ready"), "") },
		func() { n.remove(filepath.Join(inner, "ready")) },
		func() { n.remove(filepath.Join(outer, "nvidia")) },
		func() { n.mkdir(inner) },
		func() { n.write(filepath.Join(inner, "ready"), "") },
	}
	d := newDirectories(n.o.Logger, outer, filepath.Dir(inner), inner)
	d.add()
	notified := make(chan struct{}, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.watch(ctx, func() { notified <- struct{}{} })
	}()
	for i, change := range changes {
		change()
		select {
		case <-notified:
		case <-time.After(time.Minute):
			t.Fatalf("change %d is not notified", i)
		}
		for quiet := false; !quiet; { // further events of the same change
			select {
			case <-notified:
			case <-time.After(200 * time.Millisecond):
				quiet = true
			}
		}
	}
	cancel()
	<-done
}

const persistenced = "nvidia-persistenced/nvidia-persistenced.pid"

// begin starts a process with the name of a daemon, and writes its PID file. stop ends the process like the daemon: it
// removes the file first. crash leaves the file.
func (n *tree) begin(name, file string) (stop, crash func()) {
	n.t.Helper()
	program := filepath.Join(n.t.TempDir(), name)
	text, err := os.ReadFile("/bin/sleep")
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o755); err != nil {
		n.t.Fatal(err)
	}
	cmd := child.Command(n.t.Context(), program, "3600")
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	pidFile := filepath.Join(n.o.Run, file)
	n.write(pidFile, strconv.Itoa(cmd.Process.Pid)+"\n")
	crash = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	return func() { n.remove(pidFile); crash() }, crash
}

// TestDaemon stops and restarts a process with the name of the daemon that is stopped before the driver is unloaded.
func TestDaemon(t *testing.T) {
	n := newTree(t)
	stop, _ := n.begin("nvidia-persistenced", persistenced)
	calls := n.start()
	n.await("watching a daemon of the driver", 1)
	stop()
	n.expect(calls, "nvidia-persistenced was stopped")
	stop, _ = n.begin("nvidia-persistenced", persistenced)
	n.expect(calls, "resume nvidia-persistenced was stopped")
	stop()
	n.expect(calls, "nvidia-persistenced was stopped")
}

// TestNoReason: a crash of the daemon, and any end of the fabric manager, are no reason to release the driver. The end
// of the test fails on any call.
func TestNoReason(t *testing.T) {
	n := newTree(t)
	_, crash := n.begin("nvidia-persistenced", persistenced)
	stop, _ := n.begin("nv-fabricmanager", "nvidia-fabricmanager/nv-fabricmanager.pid")
	n.start()
	n.await("watching a daemon of the driver", 1)
	stop()
	_, again := n.begin("nv-fabricmanager", "nvidia-fabricmanager/nv-fabricmanager.pid")
	again()
	crash()
	n.await("a daemon of the driver has crashed", 1)
	_, crash = n.begin("nvidia-persistenced", persistenced)
	n.await("watching a daemon of the driver", 2)
	crash()
	n.await("a daemon of the driver has crashed", 2)
	time.Sleep(2 * interval)
}

// TestNotADaemon has PID files of other processes, and no PID. The end of the test fails on any call.
func TestNotADaemon(t *testing.T) {
	for name, text := range map[string]string{
		"another process": strconv.Itoa(os.Getpid()), "no process": "4194303", "no number": "x", "negative": "-1", "empty": "",
	} {
		t.Run(name, func(t *testing.T) {
			n := newTree(t)
			n.write(filepath.Join(n.o.Run, "nvidia-persistenced/nvidia-persistenced.pid"), text)
			d := newDaemons(n.o)
			if s := d.signals(func() {}); s != nil || d.all[0].process != nil {
				t.Errorf("signals %v, process %v", s, d.all[0].process)
			}
		})
	}
}

// TestOtherNamespace has a procfs of another PID namespace: its process numbers mean nothing.
func TestOtherNamespace(t *testing.T) {
	n := newTree(t)
	n.o.Procfs = t.TempDir()
	if err := os.Symlink("1", filepath.Join(n.o.Procfs, "self")); err != nil {
		t.Fatal(err)
	}
	if d := newDaemons(n.o); !d.none {
		t.Error("daemons are watched")
	}
}
