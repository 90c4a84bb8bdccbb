// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// in returns a namespace of this machine.
func in(n model.Namespace) namespace { return namespace{n, "/proc", nldev.Dial} }

// otherNamespace starts a process in its own network namespace.
func otherNamespace(t *testing.T) model.Namespace {
	t.Helper()
	cmd := child.Command(context.Background(), "sleep", "600")
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET
	// The child gets its death signal when the thread that started it ends.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		t.Fatalf("no network namespace (tests need root): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		runtime.UnlockOSThread()
	})
	return model.Namespace{PID: cmd.Process.Pid, Inode: netns(t, strconv.Itoa(cmd.Process.Pid))}
}

// command makes a command that outlives the thread that starts it: the package ends threads that entered a network
// namespace, and any of these threads may have started a command before.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := child.Command(ctx, name, args...)
	cmd.SysProcAttr = nil
	return cmd
}

// netns is the network namespace of a process or thread.
func netns(t *testing.T, of string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+of+"/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestEnterNamespace enters a real namespace many times. fn always runs in it, and no other goroutine ever runs there.
func TestEnterNamespace(t *testing.T) {
	there, here := otherNamespace(t), netns(t, "self")
	if there.Inode == here {
		t.Fatal("the process is in our namespace")
	}
	failed := errors.New("failed")
	errs := make(chan error, 64)
	for range cap(errs) {
		go func() {
			errs <- in(there).enter(func() error {
				if in := netns(t, "thread-self"); in != there.Inode {
					t.Errorf("in namespace %d, not %d", in, there.Inode)
				}
				if unix.Gettid() == unix.Getpid() {
					t.Error("on the main thread, which does not end")
				}
				return failed
			})
		}()
	}
	for range cap(errs) {
		if err := <-errs; !errors.Is(err, failed) {
			t.Error(err)
		}
	}
	wait := func() (left int) {
		for range 3000 {
			left = 0
			tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
			if err != nil || len(tasks) == 0 {
				t.Fatal(tasks, err)
			}
			for _, task := range tasks {
				var st unix.Stat_t
				if unix.Stat(task, &st) == nil && st.Ino != here {
					left++
				}
			}
			if left == 0 {
				return 0
			}
			runtime.Gosched()
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 10e6}, nil)
		}
		return left
	}
	if n := wait(); n > 0 {
		t.Errorf("%d threads stay in the namespace", n)
	}
	if netns(t, "self") != here {
		t.Error("the process moved to the namespace")
	}
}

// TestOwnThread: fn never runs on the main thread, even when the calling goroutine does.
func TestOwnThread(t *testing.T) {
	done := make(chan int, 200)
	for range cap(done) {
		safely.OnOwnThread("rdma", func() { done <- unix.Gettid() })
	}
	for range cap(done) {
		if tid := <-done; tid == unix.Getpid() {
			t.Error("ran on the main thread")
		}
	}
}

// TestOpenSysfs opens the sysfs of a real namespace, which has other network interfaces, and leaves no mount behind.
func TestOpenSysfs(t *testing.T) {
	mounts := func() string {
		b, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var own strings.Builder // other mounts may change meanwhile
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, " - sysfs ") {
				own.WriteString(line)
			}
		}
		return own.String()
	}
	before := mounts()
	there := otherNamespace(t)
	shown := map[string]string{}
	for where, n := range map[string]model.Namespace{"there": there, "here": {PID: os.Getpid(), Inode: netns(t, "self")}} {
		var dir, want int
		var names []string
		for range 100 { // interfaces of the node may come and go meanwhile
			err := in(n).enter(func() (err error) {
				all, err := net.Interfaces()
				if err != nil {
					return err
				}
				want = len(all)
				dir, err = openSysfs("class/net")
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			// The reader works outside of the namespace, on any thread.
			r := sysfs.NewReader()
			names, err = r.List(dir, func(name string) bool { return r.Line(dir, name+"/ifindex") != "" })
			if err != nil {
				t.Fatal(err)
			}
			if len(names) == want {
				break
			}
			_ = unix.Close(dir)
			dir = -1
		}
		if len(names) != want {
			t.Fatalf("%s: %v; netlink lists %d", where, names, want)
		}
		shown[where] = fmt.Sprint(names)
		if err := unix.Unlinkat(dir, "lo", 0); !errors.Is(err, unix.EROFS) {
			t.Errorf("%s: a write: %v", where, err)
		}
		_ = unix.Close(dir)
	}
	if shown["there"] == shown["here"] {
		t.Errorf("both show %s", shown["here"])
	}
	if _, err := newNetlink(Options{Procfs: "/proc"}).search.in(there).open("none"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no such device: %v", err)
	}
	if got := mounts(); got != before {
		t.Errorf("mounts are now\n%s", got)
	}
}

func BenchmarkDialNamespace(b *testing.B) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/net", &st); err != nil {
		b.Fatal(err)
	}
	own := in(model.Namespace{PID: os.Getpid(), Inode: st.Ino})
	own.socket = func() (*nldev.Conn, error) { // RDMA netlink may be missing
		c, err := netlink.Dial(unix.NETLINK_ROUTE)
		return &nldev.Conn{Conn: c}, err
	}
	for b.Loop() {
		c, err := own.dial()
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

func TestGoneNamespaces(t *testing.T) {
	there := otherNamespace(t)
	for name, n := range map[string]model.Namespace{
		"the number of another process": {PID: there.PID, Inode: there.Inode + 1},
		"no such process":               {PID: 1 << 30, Inode: there.Inode},
	} {
		err := in(n).enter(func() error { t.Errorf("%s: entered", name); return nil })
		if !errors.Is(err, errOther) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDenied runs itself without the capabilities: the error names the missing capability.
func TestDenied(t *testing.T) {
	if pid := os.Getenv("ACCELSCOPE_DENIED"); pid != "" {
		n, err := strconv.Atoi(pid)
		if err != nil {
			t.Fatal(err)
		}
		never := func() error { t.Error("entered"); return nil }
		err = in(model.Namespace{PID: n, Inode: 1}).enter(never)
		if err == nil || !strings.Contains(err.Error(), "add CAP_SYS_PTRACE") {
			t.Errorf("a process of others: %v", err)
		}
		err = in(model.Namespace{PID: os.Getpid(), Inode: netns(t, "self")}).enter(never)
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "add CAP_SYS_ADMIN") {
			t.Errorf("a namespace: %v", err)
		}
		if _, err := openSysfs("class"); !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "add CAP_SYS_ADMIN") {
			t.Errorf("a sysfs: %v", err)
		}
		return
	}
	cmd := command(context.Background(), "/proc/self/exe", "-test.run=^TestDenied$", "-test.v")
	cmd.Env = append(os.Environ(), "ACCELSCOPE_DENIED="+strconv.Itoa(otherNamespace(t).PID), "GORACE=atexit_sleep_ms=0")
	done := make(chan struct{})
	safely.OnOwnThread("rdma", func() {
		defer close(done)
		for _, c := range []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE} {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				t.Error(err)
			}
		}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestDenied") {
			t.Errorf("%v\n%s", err, out)
		}
	})
	<-done
}

// TestOtherNamespaces: the result omits the node's namespace, the sensor's and duplicates.
func TestOtherNamespaces(t *testing.T) {
	own := netns(t, "self")
	m := search{procfs: "/proc"}
	got := m.others([]model.Namespace{
		{Inode: 9, PID: 4},
		{Inode: 1, PID: 1, Host: true},
		{Inode: own, PID: os.Getpid()},
		{Inode: 8, PID: 3},
		{Inode: 9, PID: 5},
		{Inode: 7},
		{PID: 6},
	})
	if len(got) != 2 || got[0].Inode != 8 || got[1].Inode != 9 || got[1].PID != 4 {
		t.Errorf("%+v", got)
	}
}

// TestLibraryNamespace compares the namespace of the thread that namespace.enter uses with the namespace of the process,
// as vishvananda/netns identifies both.
func TestLibraryNamespace(t *testing.T) {
	there := otherNamespace(t)
	want, err := vnetns.GetFromPid(there.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	var entered vnetns.NsHandle
	err = in(there).enter(func() (err error) { entered, err = vnetns.Get(); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer entered.Close()
	ours, err := vnetns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if !entered.Equal(want) || ours.Equal(want) {
		t.Errorf("entered %v, want %v; ours is %v", entered, want, ours)
	}
}
