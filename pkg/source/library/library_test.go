// SPDX-License-Identifier: Apache-2.0

package library

import (
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// TestConsent: a file has no probes while the consent of a process that maps it is awaited, and for barInterval after a process has
// refused it. Probes that are attached stay while consent is awaited.
func TestConsent(t *testing.T) {
	var consent uprobe.Consent
	p := New(Options{Consent: func(model.CgroupID) uprobe.Consent { return consent }}, Spec{})
	p.Processes[7] = &Process{}
	f := &File{File: uprobe.NewFile[int](0, false)}
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
			f.Links = map[Half]io.Closer{{}: nil}
		}
		if p.exclude(f, begin.Add(c.after)); f.wanted() != c.want {
			t.Errorf("%s: wanted %v", c.what, f.wanted())
		}
	}
}

// TestSearchShare: the searches of one owner, more than may be made at once, all hang. The search of another owner is made.
func TestSearchShare(t *testing.T) {
	hang, begun := make(chan struct{}), make(chan int, 10*uprobe.MaxSearches)
	p := New(Options{Procfs: "/proc", Interval: time.Hour}, Spec{Check: func(p *locate.Process) error {
		if begun <- p.PID(); p.PID() != 1 {
			<-hang
		}
		return model.ErrAbsent
	}})
	self, other := open(t, os.Getpid()), open(t, 1)
	for i := range 3 * uprobe.MaxSearches {
		p.Processes[-i-2] = &Process{Process: self, owner: 1}
	}
	p.Processes[1] = &Process{Process: other, owner: 2}
	p.startSearches(time.Now())
	found := false
	for range uprobe.MaxSearchesOfOwner + 1 {
		select {
		case pid := <-begun:
			found = found || pid == 1
		case <-time.After(10 * time.Second):
			t.Fatal("fewer searches than there is room for")
		}
	}
	if !found || p.searches.Running() != uprobe.MaxSearchesOfOwner+1 {
		t.Errorf("%d searches; of the other owner: %v", p.searches.Running(), found)
	}
	close(hang)
	for p.searches.Running() > 0 {
		p.handle(<-p.searches.Results)
	}
	if !p.searches.HasRoom(1) {
		t.Error("no room after the searches")
	}
}

func open(t *testing.T, pid int) *locate.Process {
	t.Helper()
	p, err := locate.OpenProcess("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// TestFileRoom: an owner may bring maxFilesOfOwner files, all owners maxFiles. A process whose file has no room is incomplete.
func TestFileRoom(t *testing.T) {
	p := New(Options{}, Spec{})
	for i := range uint64(maxFilesOfOwner) {
		if !p.hasRoom(1) {
			t.Errorf("no room with %d files", i)
		}
		p.Files[locate.FileID{Inode: i}] = &File{File: uprobe.NewFile[int](1, false)}
	}
	if p.hasRoom(1) || !p.hasRoom(2) {
		t.Errorf("with %d files of an owner: room for it %v, for another owner %v", len(p.Files), p.hasRoom(1), p.hasRoom(2))
	}
	for i := len(p.Files); i < maxFiles; i++ {
		p.Files[locate.FileID{Inode: uint64(i)}] = &File{File: uprobe.NewFile[int](model.CgroupID(i), false)}
	}
	if p.hasRoom(1e9) {
		t.Errorf("room with %d files", len(p.Files))
	}
	of := &Process{Process: open(t, os.Getpid())}
	p.add(of, &locate.Library{File: locate.FileID{Inode: maxFiles}, Functions: make([]locate.LibraryFunction, 1)}, nil)
	if !of.Incomplete || len(p.Files) != maxFiles {
		t.Errorf("%d files, incomplete %v", len(p.Files), of.Incomplete)
	}
}

// TestManyProcesses: processes beyond maxProcesses are not searched, beyond uprobe.MaxSearches wait for their search, and beyond
// uprobe.MaxAlone are refused probes of their own.
func TestManyProcesses(t *testing.T) {
	p := New(Options{Procfs: "/proc"}, Spec{PerProcess: true, Functions: make([]Function, 1)})
	for i := range maxProcesses {
		p.Processes[-1-i] = &Process{}
	}
	if !p.observe(os.Getpid()) || p.Processes[os.Getpid()] != nil {
		t.Errorf("one more than %d processes is searched", maxProcesses)
	}
	for range uprobe.MaxSearches {
		p.searches.Begin(0, &result{}, func(*result) {})
	}
	if p.startSearches(time.Now()); p.searches.Running() != uprobe.MaxSearches {
		t.Errorf("%d searches at once", p.searches.Running())
	}
	for range uprobe.MaxSearches {
		<-p.searches.Results
	}
	alone := File{File: uprobe.NewFile[int](1, true)}
	for i := range uprobe.MaxAlone {
		alone.Paths[-1-i] = "x"
	}
	p.Files[locate.FileID{Inode: 1}] = &alone
	of := &Process{Process: open(t, os.Getpid())}
	lib := locate.Library{File: locate.FileID{Inode: 2}, Functions: make([]locate.LibraryFunction, 1)}
	if p.add(of, &lib, nil); !errors.Is(of.refused, uprobe.ErrAlone) {
		t.Errorf("one more than %d processes: %v", uprobe.MaxAlone, of.refused)
	}
}

// TestUnprobed: a function without a probe differs from a function that is paused.
func TestUnprobed(t *testing.T) {
	f := &File{File: uprobe.NewFile[int](1, false), Places: make([]Place, 2)}
	check := func(what string, lacking, paused bool) {
		t.Helper()
		if l, p := f.Unprobed(); l != lacking || p != paused {
			t.Errorf("%s: lacking %v, paused %v", what, l, p)
		}
	}
	check("no probe", true, false)
	f.Links[Half{Target: uprobe.Target[int]{Place: 0}}] = io.NopCloser(nil)
	check("one probe", true, false)
	f.Places[1].pause.reason = io.EOF
	check("one probe, one paused", false, true)
	f.Places[1].pause.reason = nil
	f.Links[Half{Target: uprobe.Target[int]{Place: 1}}] = io.NopCloser(nil)
	check("both probed", false, false)
	f.returns = true
	check("without returns", true, false)
}

// TestAccount: a process pays for calls with a hundredth of its CPU time. Its costliest function is paused.
func TestAccount(t *testing.T) {
	a := account{credit: startCredit}
	a.charge(3, 10_000, 4*time.Microsecond)
	a.charge(5, 100, 4*time.Microsecond)
	if a.settle(0) || a.credit != startCredit-10_100*4*time.Microsecond {
		t.Errorf("credit %v", a.credit)
	}
	a.charge(5, 100, time.Hour) // not called since
	if a.settle(2 * time.Second); a.credit != startCredit-10_100*4*time.Microsecond+20*time.Millisecond {
		t.Errorf("credit %v after two seconds", a.credit)
	}
	a.charge(3, 20_000, 4*time.Microsecond)
	a.charge(5, 30_000, 4*time.Microsecond)
	if !a.settle(2*time.Second) || a.most != 5 || a.credit != startCredit {
		t.Errorf("function %d, credit %v", a.most, a.credit)
	}
	a.charge(3, 7, time.Millisecond) // the kernel dropped the entry, and made it anew
	if a.settle(2 * time.Second); a.credit != startCredit-7*time.Millisecond {
		t.Errorf("credit %v after a new entry", a.credit)
	}
}

// TestPause: each pause of a function in the files that a process maps is twice as long as the previous one, up to lastPause.
func TestPause(t *testing.T) {
	p := New(Options{}, Spec{Functions: []Function{{Name: "a"}, {Name: "b"}}})
	own, other := &File{File: uprobe.NewFile[int](1, false)}, &File{File: uprobe.NewFile[int](1, false)}
	for i, f := range []*File{own, other} {
		f.Places = []Place{{Function: 0}, {Function: 1}}
		p.Files[locate.FileID{Inode: uint64(i)}] = f
	}
	p.refused = []error{io.EOF, io.EOF} // nothing is attached
	own.Paths[7] = "library"
	now := time.Unix(1e9, 0)
	for want := firstPause; want <= 2*lastPause; want *= 2 {
		p.pause(7, 1, now)
		if got := own.Places[1].pause; got.until.Sub(now) != min(want, lastPause) || got.reason == nil {
			t.Errorf("%+v, want %v", got, want)
		}
	}
	if own.Places[0].pause.reason != nil || other.Places[1].pause.reason != nil {
		t.Error("another function or file is paused")
	}
	if p.pause(8, 0, now); own.Places[0].pause.reason == nil || other.Places[0].pause.reason == nil {
		t.Error("files of an unknown process are not paused")
	}
}
