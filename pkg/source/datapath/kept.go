// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"

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
	pid := found.home.PID()
	if known := s.homes[pid]; known != nil && known.Exited() { // another process has its number
		s.checkKept()
	}
	home := found.home
	if known := s.homes[pid]; known != nil {
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
		kept, same = kept+1, same+1
		if home == found.home {
			s.homes[pid], found.home = home, nil
		}
	}
}

// checkKept ends what is kept for homes that have ended, and files that no process maps
// and that changed.
func (s *Source) checkKept() {
	for _, f := range s.files {
		if f.kept != nil && (f.home.Exited() || len(f.paths) == 0 && f.kept.Changed()) {
			f.unkeep()
			s.detachUnused(f)
		}
	}
	s.closeHomes()
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

// closeHomes closes the homes of no kept file.
func (s *Source) closeHomes() {
	used := map[*locate.Process]bool{}
	for _, f := range s.files {
		used[f.home] = true
	}
	maps.DeleteFunc(s.homes, func(_ int, home *locate.Process) bool {
		if !used[home] {
			home.Close()
		}
		return !used[home]
	})
}

func (f *file) unkeep() {
	if f.kept != nil {
		f.kept.Close()
	}
	f.kept, f.home = nil, nil
}

// closeHome closes a home that keeps no file.
func (r *searchResult) closeHome() {
	if r.home != nil {
		r.home.Close()
	}
}
