// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	fakes "github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// hold starts a process that maps a file and holds its mmap_lock until its standard input is closed, for two minutes at most.
func hold(t *testing.T, path string) io.Closer {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE")
	}
	binary := filepath.Join(os.Getenv("ACCELSCOPE_WORKLOADS"), "holdmm")
	if os.Getenv("ACCELSCOPE_WORKLOADS") == "" {
		binary = filepath.Join(t.TempDir(), "holdmm")
		out, err := child.Command(t.Context(), "gcc", "-O2", "-o", binary, "../../../tests/machines/vm/workload/holdmm.c", "-lpthread").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	cmd := child.Command(context.Background(), binary, path, "120")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready") {
		t.Fatalf("%q, %v", line, err)
	}
	return stdin
}

// TestHeldLibrary: while a process that maps the library holds its mmap_lock, the functions are not probed, and the state of the hooks
// has the reason. The source answers and ends meanwhile. Afterwards they are probed, and failures are counted. FAKE libraries.
func TestHeldLibrary(t *testing.T) {
	needed(t)
	b := fakes.Build(t, t.TempDir())
	var h holders
	c := newCgroup(t)
	a := c.start(t, program(b))
	a.OK("load %s", b.CUDA)
	h.add(a)
	lock := hold(t, b.CUDA)
	begin := time.Now()
	s := startSource(t, &h)
	eventually(t, func() error {
		snap, _ := s.Read(t.Context())
		for _, hook := range snap.Hooks {
			if hook.Name == "cuMemAlloc_v2" && (hook.State != model.StateFailed || !strings.Contains(hook.Reason, "deferred: process")) {
				return fmt.Errorf("%+v", hook)
			}
		}
		return nil
	})
	if took := time.Since(begin); took > time.Minute { // the lock is held for two
		t.Errorf("it took %v", took)
	}
	lock.Close()
	probed(t, s, model.StateOK, namesOf(libcuda)...)
	want := expect{}
	want.exhaust(a, libcuda, 2)
	want.check(t, s, c)
	snap, err := s.Read(t.Context())
	if err != nil || len(snap.ProbeDurations) == 0 || snap.ProbeDurations[0].Calls.Count < uint64(len(namesOf(libcuda))) {
		t.Errorf("%+v, %v", snap.ProbeDurations, err)
	}
}

// TestExcluded: a library that an opted-out process maps has no probes, also for others that map it, from the moment on at which that is
// known. Other libraries have theirs. FAKE libraries.
func TestExcluded(t *testing.T) {
	needed(t)
	b := fakes.Build(t, t.TempDir())
	var h holders
	c, out := newCgroup(t), newCgroup(t)
	a, other, optedOut := c.start(t, program(b)), c.start(t, program(b)), out.start(t, program(b))
	a.OK("load %s", b.CUDA)
	other.OK("load %s", b.HIP)
	optedOut.OK("load %s", b.CUDA)
	var known atomic.Bool
	excluded := func(o *Options) {
		o.CgroupOf = func(pid int) (model.CgroupID, error) {
			if pid == optedOut.Process.Pid {
				return out.id, nil
			}
			return c.id, nil
		}
		o.Consent = func(id model.CgroupID) uprobe.Consent {
			if id == out.id && known.Load() {
				return uprobe.Refused
			}
			return uprobe.Given
		}
	}
	h.add(a)
	h.add(other)
	h.add(optedOut)
	s := startSource(t, &h, excluded)
	probed(t, s, model.StateOK, append(namesOf(libcuda), namesOf(libhip)...)...)
	known.Store(true)
	probed(t, s, model.StateAbsent, namesOf(libcuda)...)
	probed(t, s, model.StateOK, namesOf(libhip)...)
	snap, _ := s.Read(t.Context())
	for _, hook := range snap.Hooks {
		if hook.State == model.StateAbsent && !strings.Contains(hook.Reason, "must not have probes") {
			t.Errorf("%+v", hook)
		}
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", optedOut.Process.Pid))
	if err != nil || strings.Contains(string(maps), "[uprobes]") {
		t.Errorf("it has hit a probe: %v", err)
	}
	want := expect{}
	want.exhaust(other, libhip, 2)
	want.check(t, s, c)
}

// TestConsent: a file has no probes while the consent of a process that maps it is awaited, and for barInterval after a process has
// refused it. Probes that are attached stay while consent is awaited.
func TestConsent(t *testing.T) {
	var consent uprobe.Consent
	l := newLoop(Options{Consent: func(model.CgroupID) uprobe.Consent { return consent }}, nil, false, nil)
	l.processes[7] = &process{}
	f := &file{File: uprobe.NewFile[int](0, false)}
	f.Paths[7] = "library"
	begin := time.Unix(1e9, 0)
	for _, c := range []struct {
		what     string
		after    time.Duration
		consent  uprobe.Consent
		attached bool
		want     bool
	}{
		{"awaited", 0, uprobe.Awaited, false, false},
		{"still awaited", 9 * time.Second, uprobe.Awaited, false, false},
		{"awaited for too long", 11 * time.Second, uprobe.Awaited, false, true},
		{"given", 12 * time.Second, uprobe.Given, false, true},
		{"awaited with probes", 13 * time.Second, uprobe.Awaited, true, true},
		{"refused", 14 * time.Second, uprobe.Refused, true, false},
		{"given after it", 15 * time.Second, uprobe.Given, true, false},
		{"given much later", 14*time.Second + barInterval, uprobe.Given, true, true},
	} {
		consent, f.Links = c.consent, nil
		if c.attached {
			f.Links = map[half]io.Closer{{}: nil}
		}
		if l.exclude(f, begin.Add(c.after)); f.wanted() != c.want {
			t.Errorf("%s: wanted %v", c.what, f.wanted())
		}
	}
}

// TestSearchShare: the searches of one owner, more than may be made at once, all hang. The one of another owner is made.
func TestSearchShare(t *testing.T) {
	l := newLoop(Options{
		Procfs: "/proc", Interval: time.Hour, Holders: func() ([]int, bool) { return nil, true },
	}, nil, true, nil)
	hang, begun := make(chan struct{}), make(chan int, 10*uprobe.MaxSearches)
	other, err := locate.OpenProcess("/proc", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l.searches.checkShadowStack = func(p *locate.Process) error {
		if begun <- p.PID(); p.PID() != 1 {
			<-hang
		}
		return model.ErrAbsent
	}
	self, err := locate.OpenProcess("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	for i := range 3 * uprobe.MaxSearches {
		l.processes[-i-2] = &process{Process: self, owner: 1}
	}
	l.processes[1] = &process{Process: other, owner: 2}
	l.startSearches(time.Now())
	found := false
	for range uprobe.MaxSearchesOfOwner + 1 {
		select {
		case pid := <-begun:
			found = found || pid == 1
		case <-time.After(10 * time.Second):
			t.Fatal("fewer searches than there is room for")
		}
	}
	if !found || l.searches.Running() != uprobe.MaxSearchesOfOwner+1 {
		t.Errorf("%d searches; of the other owner: %v", l.searches.Running(), found)
	}
	close(hang)
	for l.searches.Running() > 0 {
		l.handle(<-l.searches.Results)
	}
	if !l.searches.HasRoom(1) {
		t.Error("no room after the searches")
	}
}
