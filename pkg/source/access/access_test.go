// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(callerVar); dir != "" {
		if err := call(dir, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

type openRow = model.Series[model.OpenKey, model.Opens]

func opened(g group, device string, class model.DeviceClass, n model.Opens) openRow {
	return openRow{Cgroup: model.CgroupID(g.id), Key: model.OpenKey{Device: device, Class: class}, Value: n}
}

func read(t *testing.T, s *Source, g group) (opens []openRow, handles []model.DeviceHandles, snap model.Snapshot) {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil && s.sensor.counts {
		t.Fatal(err)
	}
	for _, o := range snap.DeviceOpens {
		if o.Cgroup == model.CgroupID(g.id) && o.Key.Device != null {
			opens = append(opens, o)
		}
	}
	for _, h := range snap.DeviceHandles {
		if h.Cgroup == model.CgroupID(g.id) && h.Device != null {
			handles = append(handles, h)
		}
	}
	slices.SortFunc(opens, func(a, b openRow) int { return strings.Compare(a.Key.Device, b.Key.Device) })
	return opens, handles, snap
}

// TestOpens counts the opens and denied opens of one program.
func TestOpens(t *testing.T) {
	for version, g := range groups(t) {
		t.Run(version, func(t *testing.T) {
			f := newTree(t, "1 drm")
			f.name(t, "1:7", "renderD128") // /dev/full
			f.name(t, "1:5", "card0")      // /dev/zero
			ghost, broken := filepath.Join(t.TempDir(), "ghost"), filepath.Join(t.TempDir(), "broken")
			for path, minor := range map[string]uint32{ghost: 4000, broken: 4001} {
				if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor))); err != nil {
					t.Fatal(err)
				}
			}
			s := counting(t, f.options(g.subsystem))
			deeds := []string{
				"open 41 /dev/full", "path 5 /dev/zero", "access 3 /dev/full", "path 2 /dev/full",
				"deniedOpen 13 /dev/zero", "deniedOpenat2 4 /dev/zero", "deniedAccess 9 /dev/zero", "deniedWatch 6 /dev/zero",
				"deniedOpen 3 " + ghost, "fail 4 " + broken,
			}
			denied := uint64(13 + 4)
			allowed := uint64(41)
			if hasUring(t) {
				deeds = append(deeds, "uring 2 /dev/full", "worker 3 /dev/full", "deniedUring 5 /dev/zero", "deniedWorker 7 /dev/zero")
				allowed, denied = allowed+2+3, denied+5+7
			}
			if program := opens32(t, "/dev/zero", 11); program != "" {
				deeds = append(deeds, "run 1 "+program)
				denied += 11
			}
			t.Logf("%q", deeds)
			g.do(t, deeds...)
			got, _, snap := read(t, s, g)
			want := []openRow{
				opened(g, "card0", model.ClassDRI, model.Opens{Denied: denied}),
				opened(g, "other", model.ClassDRI, model.Opens{Denied: 3}),
				opened(g, "renderD128", model.ClassDRI, model.Opens{Allowed: allowed}),
			}
			if !slices.Equal(got, want) {
				t.Errorf("counted %+v\n   want %+v", got, want)
			}
			for _, h := range snap.Hooks {
				if h.State != model.StateOK {
					t.Errorf("not hooked: %+v", h)
				}
			}
			t.Logf("%+v", snap.Hooks)
			for _, l := range snap.Losses {
				if l.Count != 0 {
					t.Errorf("lost: %+v", l)
				}
			}

			// A forgotten cgroup has no entry in the kernel.
			s.Forget([]model.CgroupID{model.CgroupID(g.id)})
			if got, handles, _ := read(t, s, g); len(got)+len(handles) != 0 {
				t.Errorf("after Forget: %+v %+v", got, handles)
			}
			if got, _, _ := read(t, s, g); len(got) != 0 {
				t.Errorf("later: %+v", got)
			}
		})
	}
}

// TestHandles: open files are counted while they are open, each once.
func TestHandles(t *testing.T) {
	for version, g := range groups(t) {
		t.Run(version, func(t *testing.T) {
			f := newTree(t, "1 kfd")
			f.name(t, "1:7", "kfd")
			s := listing(t, f.options(g.subsystem))
			c := g.command("hold 1 /dev/full")
			stdin, err := c.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			c.Stderr = os.Stderr
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Process.Kill() })
			line, err := bufio.NewReader(stdout).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			want := model.DeviceHandles{Cgroup: model.CgroupID(g.id), Device: "kfd", Class: model.ClassAMDGPU, Count: 2}
			eventually(t, func() error {
				_, got, _ := read(t, s, g)
				if !slices.Equal(got, []model.DeviceHandles{want}) {
					return fmt.Errorf("handles %+v, want %+v", got, want)
				}
				return nil
			})
			eventually(t, func() error {
				holders, ok := s.Holders()
				for field := range strings.FieldsSeq(line) {
					if pid, _ := strconv.Atoi(field); !ok || !slices.Contains(holders, pid) {
						return fmt.Errorf("%d is not in %v", pid, holders)
					}
				}
				return nil
			})
			_ = stdin.Close()
			if err := c.Wait(); err != nil {
				t.Fatal(err)
			}
			want.Count = 0
			wanted := []model.DeviceHandles{want}
			if !s.sensor.counts {
				wanted = nil // its opens are unknown
			}
			eventually(t, func() error {
				_, got, _ := read(t, s, g)
				if !slices.Equal(got, wanted) {
					return fmt.Errorf("handles %+v, want %+v", got, wanted)
				}
				return nil
			})
		})
	}
}

// TestStuck: an old listing is not reported while a new listing hangs.
func TestStuck(t *testing.T) {
	s := listing(t, newTree(t, "1 drm").options(""))
	s.stop()
	<-s.listing
	if _, ok := s.Holders(); !ok {
		t.Fatal("not listed")
	}
	s.began = time.Now().Add(-stuckAfter)
	snap, err := s.Read(t.Context())
	if _, ok := s.Holders(); ok || snap.DeviceHandles != nil || err == nil || !strings.Contains(err.Error(), "has not ended") {
		t.Errorf("%v, %v", snap.DeviceHandles, err)
	}
}

// TestBlockDevices: block devices with the same numbers are not counted.
func TestBlockDevices(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	var st unix.Stat_t
	var disk *os.File
	paths, _ := filepath.Glob("/dev/*")
	for _, path := range paths {
		if unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK {
			continue
		}
		var err error
		if disk, err = os.Open(path); err == nil {
			break
		}
	}
	if disk == nil {
		t.Skip("no block device can be opened")
	}
	defer disk.Close() //nolint:errcheck // only opened
	s := listing(t, newTree(t, fmt.Sprint(unix.Major(st.Rdev), " drm")).options(""))
	open, err := s.sensor.listFiles(func(uint32) bool { return true })
	if err != nil || open.pids[os.Getpid()] {
		t.Errorf("%s counts as a character device: %+v, %v", disk.Name(), open, err)
	}
}

// nestedVar makes the test binary a sensor in its own process namespace.
const nestedVar = "ACCELSCOPE_TEST_NESTED"

// TestOwnProcesses: in its own process namespace the iterator lists only the sensor's processes, so handles are
// unknown, not zero.
func TestOwnProcesses(t *testing.T) {
	if os.Getenv(nestedVar) != "" {
		f := newTree(t, "1 kfd")
		f.name(t, "1:7", "kfd")
		s := start(t, f.options(""))
		os.Stdout.WriteString("ready\n")
		if line, _ := bufio.NewReader(os.Stdin).ReadString('\n'); line == "" {
			t.Fatal("no line on standard input")
		}
		s.list()
		snap, err := s.Read(t.Context())
		pids, known := s.Holders()
		if known || len(snap.DeviceHandles) > 0 {
			t.Errorf("opens %+v\nhandles %+v\nholders %v %v, %v", snap.DeviceOpens, snap.DeviceHandles, pids, known, err)
		}
		for _, h := range snap.Hooks {
			if h.Name == filesHook.Name && h.State != model.StateUnsupported {
				t.Errorf("%+v", h)
			}
		}
		return
	}
	g, ok := groups(t)["v2"]
	if !ok {
		t.Skip("no cgroup v2")
	}
	c := child.Command(context.Background(), "/proc/self/exe", "-test.run=^TestOwnProcesses$", "-test.v")
	c.Env = append(os.Environ(), nestedVar+"=1")
	c.SysProcAttr.Cloneflags = syscall.CLONE_NEWPID
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(out)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "ready") {
			break
		}
	}
	h := g.command("hold 1 /dev/full")
	hin, _ := h.StdinPipe()
	hout, _ := h.StdoutPipe()
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(hout).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	in.Write([]byte("go\n"))
	var text strings.Builder
	for {
		line, err := r.ReadString('\n')
		text.WriteString(line)
		if err != nil {
			break
		}
	}
	_ = hin.Close()
	_ = h.Wait()
	if err := c.Wait(); err != nil {
		t.Errorf("the sensor inside: %v\n%s", err, text.String())
	}
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// TestLaterDriver starts without a driver, and finds a driver that is loaded later.
func TestLaterDriver(t *testing.T) {
	f := newTree(t)
	s := counting(t, f.options(""))
	snap, err := s.Read(t.Context())
	if !errors.Is(err, model.ErrAbsent) || snap.DeviceOpens != nil || len(snap.Hooks) != 3 {
		t.Fatalf("%+v, %v", snap, err)
	}
	for _, h := range snap.Hooks {
		if h.State != model.StateAbsent {
			t.Errorf("%+v", h)
		}
	}
	if _, ok := s.Holders(); ok {
		t.Error("the processes with open devices are unknown")
	}
	f.name(t, "1:7", "nvidia0")
	f.load(t, "1 nvidia")
	eventually(t, func() error {
		if _, err := s.Read(t.Context()); errors.Is(err, model.ErrAbsent) {
			return err
		}
		return nil
	})
	if !s.sensor.counts {
		t.Skip(hook.Failures(s.hooks))
	}
	// From here on the test scans: a scan in progress may report the previous devices.
	s.stop()
	s.scanning.Wait()
	for version, g := range groups(t) {
		if g.subsystem != "" {
			continue
		}
		g.do(t, "open 7 /dev/full")
		got, _, _ := read(t, s, g)
		want := opened(g, "nvidia0", model.ClassNVIDIA, model.Opens{Allowed: 7})
		if !slices.Equal(got, []openRow{want}) {
			t.Errorf("%s: %+v, want %+v", version, got, want)
		}

		// The number is reused by another device: the counts stay under the old name.
		f.load(t, "1 kfd")
		f.name(t, "1:7", "kfd")
		s.scan()
		g.do(t, "open 3 /dev/full")
		got, _, _ = read(t, s, g)
		both := []openRow{opened(g, "kfd", model.ClassAMDGPU, model.Opens{Allowed: 3}), want}
		if !slices.Equal(got, both) {
			t.Errorf("%s: %+v, want %+v", version, got, both)
		}

		// The driver is unloaded: no open is counted, no open is lost.
		f.load(t)
		s.scan()
		g.do(t, "open 3 /dev/full")
		if got, _, _ = read(t, s, g); !slices.Equal(got, both) {
			t.Errorf("%s: %+v, want %+v", version, got, both)
		}
		s.Forget([]model.CgroupID{model.CgroupID(g.id)})
		if got, _, _ = read(t, s, g); len(got) != 0 {
			t.Errorf("after Forget: %+v", got)
		}
	}
}

// TestFull fills the map; only the number of the misc device is watched.
func TestFull(t *testing.T) {
	f := newTree(t, "1 misc")
	f.misc(t, "1:7")
	o := f.options("")
	o.MaxEntries = 1
	s := counting(t, o)
	for _, g := range groups(t) {
		if g.subsystem != "" {
			continue
		}
		g.do(t, "open 2 /dev/full", "open 5 /dev/null")
		other := newGroup(t, filepath.Dir(g.dir), "")
		other.do(t, "open 3 /dev/full")
		got, _, snap := read(t, s, g)
		want := []openRow{opened(g, "rdma_cm", model.ClassRDMA, model.Opens{Allowed: 2})}
		if !slices.Equal(got, want) || len(snap.DeviceOpens) != 1 {
			t.Errorf("%+v, want %+v", snap.DeviceOpens, want)
		}
		if !slices.Contains(snap.Losses, model.Loss{Reason: "device_opens_map_full", Count: 3}) {
			t.Errorf("losses %+v", snap.Losses)
		}
		if !slices.Contains(snap.Maps, model.Map{Name: "device_opens", Entries: 1, Capacity: 1}) {
			t.Errorf("maps %+v", snap.Maps)
		}
	}
}

// TestAskedByDriver: permission checks by a driver during an open do not count as opens. kfd makes them; without kfd
// the test adds the open to the map.
func TestAskedByDriver(t *testing.T) {
	f := newTree(t, "1 drm")
	f.name(t, "1:5", "card0")
	for version, g := range groups(t) {
		s := counting(t, f.options(g.subsystem))
		m := s.sensor.object.Coll.Maps[gen.DevicesMapOpening]
		c := child.Command(context.Background(), "sh", "-c", `echo 0 >"$0/cgroup.procs"; echo; read x; exec 3</dev/zero`, g.dir)
		stdin, _ := c.StdinPipe()
		stdout, _ := c.StdoutPipe()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		if err := m.Put(uint32(c.Process.Pid), uint32(1<<minorBits)); err != nil {
			t.Fatal(err)
		}
		_ = stdin.Close()
		if err := c.Wait(); err == nil {
			t.Error("not refused")
		}
		if got, _, _ := read(t, s, g); len(got) != 0 {
			t.Errorf("%s: %+v", version, got)
		}
	}
}

// TestTier requires the best tier: fentry, on x86 from the oldest kernel on.
func TestTier(t *testing.T) {
	f := newTree(t, "1 drm")
	s := counting(t, f.options(""))
	want := os.Getenv(tierVar)
	if want == "" {
		want = hook.Fentry
	}
	for _, h := range s.hooks[:2] {
		if h.Tier != want {
			t.Errorf("%+v, want %s", h, want)
		}
	}
}
