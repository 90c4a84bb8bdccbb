// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

func newManager(t *testing.T, g *Gate) *Manager[uint64] {
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	return NewManager[uint64](g, source, zap.NewNop(), done)
}

// TestManager: a file has one operation at a time. The entry of a function is probed only if its return is. At the end all
// probes are detached.
func TestManager(t *testing.T) {
	g, path := newGate(t), code(t)
	h := start(t, program(t, "manymaps"), path, "2", "2")
	m, f := newManager(t, g), NewFile[uint64](0, false)
	const other = site + 0x1000
	failed := errors.New("no return")
	var ended []error
	c := Change[uint64]{
		File: &f, Paths: []string{path}, Offset: func(offset uint64) uint64 { return offset },
		Halves: slices.Concat(f.Missing(Target[uint64]{Place: site}, true), f.Missing(Target[uint64]{Place: other}, true)),
		Attach: func(h Half[uint64]) func(string) (io.Closer, error) {
			if h.Place == other && h.Return {
				return func(string) (io.Closer, error) { return nil, failed }
			}
			return g.probes(h.Place)[0].Attach
		},
		Ended: func(o *Operation) {
			for _, p := range o.Probes {
				ended = append(ended, p.Err)
			}
		},
	}
	m.Begin(&c, time.Now())
	if m.Begin(&c, time.Now()); m.Running() != 1 || !f.Changing() {
		t.Fatalf("%d operations", m.Running())
	}
	m.Take(<-m.Results, time.Now())
	if want := []error{nil, nil, failed, errNoReturn}; !slices.Equal(ended, want) || len(f.Links) != 2 || m.Running() != 0 {
		t.Errorf("%v, %d probes; want %v", ended, len(f.Links), want)
	}
	if b := instruction(t, h.pid, path, site); b != trap {
		t.Errorf("attached: %#x", b)
	}
	m.Shutdown([]Change[uint64]{{File: &f, Paths: c.Paths, Offset: c.Offset}})
	if b := instruction(t, h.pid, path, site); b != nop || f.HasProbes() {
		t.Errorf("detached: %#x, %v", b, f.Links)
	}
}

// TestExclude: a file is excluded while a process refuses probes, and for a pause after the exclusion began.
func TestExclude(t *testing.T) {
	f, begin := NewFile[int](0, false), time.Unix(1e9, 0)
	for _, c := range []struct {
		after         time.Duration
		refused, want bool
	}{
		{0, false, false},
		{time.Second, true, true},
		{2 * time.Second, false, true},
		{9 * time.Second, true, true},
		{11 * time.Second, false, false},
		{12 * time.Second, true, true},
		{30 * time.Second, true, true},
		{31 * time.Second, false, false},
	} {
		if f.Exclude(c.refused, 10*time.Second, begin.Add(c.after)); f.Excluded != c.want {
			t.Errorf("after %v: %t", c.after, f.Excluded)
		}
	}
}

// TestCheckAlone: the number of processes with their own probes is bounded.
func TestCheckAlone(t *testing.T) {
	f := NewFile[int](7, true)
	files := map[int]*File[int]{1: &f}
	for pid := range MaxAlone {
		if err := CheckAlone(files, pid); err != nil {
			t.Fatal(err)
		}
		f.Paths[pid] = "library"
	}
	if CheckAlone(files, 1) != nil || !errors.Is(CheckAlone(files, MaxAlone), ErrAlone) {
		t.Error("a process with probes is refused, or one too many is not")
	}
	if f.PerProcess = false; CheckAlone(files, MaxAlone) != nil {
		t.Error("refused although all processes share the probes")
	}
	if CountOf(files, 7) != 1 || CountOf(files, model.CgroupID(8)) != 0 {
		t.Error("the owner of the file")
	}
}

// TestSearches: an owner may have a part of the searches. A result that nothing takes is dropped.
func TestSearches(t *testing.T) {
	done, dropped := make(chan struct{}), make(chan int, MaxSearches)
	s := NewSearches(source, done, func(r *int) { dropped <- *r })
	begin := func(owner model.CgroupID) { s.Begin(owner, new(int), func(r *int) { *r = int(owner) + 1 }) }
	for range MaxSearchesOfOwner {
		if !s.HasRoom(1) {
			t.Fatal("no room")
		}
		begin(1)
	}
	if s.HasRoom(1) || !s.HasRoom(2) || !s.HasRoom(0) {
		t.Error("room for too many searches of an owner, or none for others")
	}
	for s.Running() < MaxSearches {
		begin(0)
	}
	if s.HasRoom(0) || s.HasRoom(2) {
		t.Error("room for too many searches")
	}
	for range MaxSearches / 2 {
		s.Ended(model.CgroupID(*<-s.Results - 1))
	}
	close(done)
	for range MaxSearches / 2 {
		<-dropped
	}
}

// TestEntryDetached: a source learns that the entry of a function is detached while its return is still probed.
func TestEntryDetached(t *testing.T) {
	g, path := newGate(t), code(t)
	h := start(t, program(t, "manymaps"), path, "2", "2")
	m, f := newManager(t, g), NewFile[uint64](0, false)
	var seen []byte
	c := Change[uint64]{
		File: &f, Paths: []string{path}, Offset: func(offset uint64) uint64 { return offset }, Halves: f.Missing(Target[uint64]{Place: site}, true),
		Attach:        func(h Half[uint64]) func(string) (io.Closer, error) { return g.probes(h.Place)[0].Attach },
		EntryDetached: func() { seen = append(seen, instruction(t, h.pid, path, site)) },
	}
	m.Begin(&c, time.Now())
	m.Take(<-m.Results, time.Now())
	if len(seen) > 0 || len(f.Links) != 2 {
		t.Fatalf("attached: %x, %d probes", seen, len(f.Links))
	}
	c.Halves, c.Attach = f.Unwanted(func(uint64) bool { return false }), nil
	m.Begin(&c, time.Now())
	m.Take(<-m.Results, time.Now())
	if !slices.Equal(seen, []byte{trap}) || f.HasProbes() {
		t.Errorf("instructions when the entry was detached %#x, want one trap; %d probes are left", seen, len(f.Links))
	}
}
