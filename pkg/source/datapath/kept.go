// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Bounds of the files that are kept: of all, and of those with one home.
const (
	maxKept       = 64
	maxKeptOfHome = 8
)

// keep keeps the files of a process that was searched while its home exists. It takes
// the home over if it keeps a file.
func (s *Source) keep(found *searchResult) {
	if found.home == nil {
		return
	}
	home := found.home
	if known := s.home(found.home.PID()); known != nil && known.Exited() { // another process has its number
		s.checkKept()
	} else if known != nil {
		home = known
	}
	kept, same := 0, 0
	for _, f := range s.files {
		if f.kept != nil {
			kept++
		}
		if f.home == home {
			same++
		}
	}
	for id, path := range found.Paths {
		f := s.files[id]
		if f == nil || f.kept != nil || kept >= maxKept || same >= maxKeptOfHome {
			continue
		}
		var err error
		if f.kept, err = locate.Keep(s.opts.Procfs, path); err != nil {
			s.opts.Logger.Debug("a provider is not kept", zap.Error(err))
			continue
		}
		f.home = home
		s.setKept(id, true)
		kept, same = kept+1, same+1
		if home == found.home {
			found.home = nil
		}
	}
}

// setKept sets whether a file is kept.
func (s *Source) setKept(id locate.FileID, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept {
		s.kept[id] = true
	} else {
		delete(s.kept, id)
	}
}

// hasUnkept reports whether one of the files is not kept. Searches call it.
func (s *Source) hasUnkept(files map[locate.FileID]string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range files {
		if !s.kept[id] {
			return true
		}
	}
	return false
}

// checkKept ends what is kept for homes that have ended, and files that no process maps
// and that changed.
func (s *Source) checkKept() {
	for _, f := range s.files {
		if f.kept != nil && (f.home.Exited() || len(f.paths) == 0 && f.kept.Changed()) {
			s.unkeep(f)
			s.detachUnused(f)
		}
	}
}

// detachUnused detaches the probes of a file that no process maps and that is not kept.
func (s *Source) detachUnused(f *file) {
	if len(f.paths) > 0 || f.kept != nil {
		return
	}
	f.probed = [budget.Groups]map[int]uint64{}
	for c := range budget.Groups {
		if f.on(c) {
			f.detach(c, &s.detaching)
		}
	}
}

// home returns the home with a PID that keeps files, or nil.
func (s *Source) home(pid int) *locate.Process {
	for _, f := range s.files {
		if f.home != nil && f.home.PID() == pid {
			return f.home
		}
	}
	return nil
}

// unkeep ends what is kept of a file, and closes its home if it was the last file of it.
func (s *Source) unkeep(f *file) {
	if f.kept == nil {
		return
	}
	home := f.home
	f.kept.Close()
	f.kept, f.home = nil, nil
	s.setKept(f.id, false)
	for _, other := range s.files {
		if other.home == home {
			return
		}
	}
	home.Close()
}

// closeHome closes a home that keeps no file.
func (r *searchResult) closeHome() {
	if r.home != nil {
		r.home.Close()
	}
}
