// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Target is a function in one process, or (PID 0) in all processes that map its file. P identifies the function and its
// place in the file.
type Target[P comparable] struct {
	Place P
	PID   int
}

// Half is one probe of a target: at the entry of the function, or at its return.
type Half[P comparable] struct {
	Target[P]
	Return bool
}

// File is a file that processes map, and its probes, which hit all of these processes.
type File[P comparable] struct {
	Owner      model.CgroupID // of the first process that mapped the file
	Paths      map[int]string // path to open the file, by process that maps it
	PerProcess bool           // each process has its own probes
	Links      map[Half[P]]io.Closer
	Excluded   bool // see Exclude

	turn   turn
	wait   wait
	barred time.Time
}

// NewFile returns a file without processes.
func NewFile[P comparable](owner model.CgroupID, perProcess bool) File[P] {
	return File[P]{Owner: owner, PerProcess: perProcess, Paths: map[int]string{}, Links: map[Half[P]]io.Closer{}}
}

// HasProbes reports whether probes are attached, or being changed.
func (f *File[P]) HasProbes() bool { return len(f.Links) > 0 || f.Changing() }

// Changing reports whether an operation is in progress.
func (f *File[P]) Changing() bool { return f.turn.taken }

// PIDs returns the processes of the targets of a function.
func (f *File[P]) PIDs() []int {
	if !f.PerProcess {
		return []int{0}
	}
	return slices.Collect(maps.Keys(f.Paths))
}

// Missing returns the probes that a target lacks. The return of a function comes first: a call with only its entry seen would
// be taken for a call in progress.
func (f *File[P]) Missing(t Target[P], returns bool) (missing []Half[P]) {
	for _, h := range []Half[P]{{t, true}, {t, false}} {
		if f.Links[h] == nil && (returns || !h.Return) {
			missing = append(missing, h)
		}
	}
	return missing
}

// Unwanted returns the attached probes of places that are not wanted, and of processes that do not map the file anymore. The
// entry of a function comes first.
func (f *File[P]) Unwanted(wanted func(P) bool) (unwanted []Half[P]) {
	for h := range f.Links {
		if _, mapped := f.Paths[h.PID]; wanted(h.Place) && (h.PID == 0 || mapped) {
			continue
		}
		entry, ret := Half[P]{h.Target, false}, Half[P]{h.Target, true}
		if h.Return && f.Links[entry] != nil {
			continue // it follows the entry
		}
		if unwanted = append(unwanted, h); !h.Return && f.Links[ret] != nil {
			unwanted = append(unwanted, ret)
		}
	}
	return unwanted
}

// Exclude sets Excluded: whether a process that maps the file refuses probes, or did so within the pause before now. The pause
// begins with the exclusion, so that processes that come and go do not have probes changed more often.
func (f *File[P]) Exclude(refused bool, pause time.Duration, now time.Time) {
	if refused && !f.Excluded {
		f.barred = now.Add(pause)
	}
	f.Excluded = refused || now.Before(f.barred)
}

// Waits reports whether a file without probes must wait, because the consent of a process that maps it is awaited.
func (f *File[P]) Waits(awaited bool, now time.Time) bool {
	return f.wait.lasts(awaited && !f.HasProbes(), now)
}

// MaxAlone is the number of processes of a source that may have their own probes. Each process has some thirty links, and each
// probe asks all links of its place whether they are for the process.
const MaxAlone = 256

// ErrAlone is why further processes do not get their own probes.
var ErrAlone = fmt.Errorf("%w: more than %d processes, and each needs probes of its own on this kernel", model.ErrUnsupported, MaxAlone)

// A mapped is a File of any P, or has one embedded.
type mapped interface {
	owner() model.CgroupID
	alone() map[int]string
}

func (f *File[P]) owner() model.CgroupID { return f.Owner }

// alone returns the processes that have their own probes of the file.
func (f *File[P]) alone() map[int]string {
	if !f.PerProcess {
		return nil
	}
	return f.Paths
}

// CheckAlone returns ErrAlone if a process cannot get its own probes, because too many other processes have theirs.
func CheckAlone[K comparable, F mapped](files map[K]F, pid int) error {
	alone := map[int]bool{}
	for _, f := range files {
		for pid := range f.alone() {
			alone[pid] = true
		}
	}
	if !alone[pid] && len(alone) >= MaxAlone {
		return ErrAlone
	}
	return nil
}

// CountOf returns the number of files that processes of an owner brought. A process may map any number of files, and each
// source has a limit for them.
func CountOf[K comparable, F mapped](files map[K]F, owner model.CgroupID) (n int) {
	for _, f := range files {
		if f.owner() == owner {
			n++
		}
	}
	return n
}
