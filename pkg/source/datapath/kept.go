// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Bounds of the files that are kept: of all, and of those with one home.
const (
	maxKept       = 64
	maxKeptOfHome = 8
)

// keptFiles are the files that stay probed without a process. The loop sets them, and searches, in goroutines of their own, ask for them.
type keptFiles struct {
	mu  sync.Mutex
	ids map[locate.FileID]bool
}

// set sets whether a file is kept.
func (k *keptFiles) set(id locate.FileID, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if kept {
		k.ids[id] = true
	} else {
		delete(k.ids, id)
	}
}

// haveAll reports whether all of these files are kept.
func (k *keptFiles) haveAll(files map[locate.FileID]string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range files {
		if !k.ids[id] {
			return false
		}
	}
	return true
}

// keep keeps the files of a process that was searched: those of an image while the sensor runs, as any container of the image
// uses them, others while the home of the process exists. It takes over what it keeps.
func (p *prober) keep(found *searchResult) {
	for id := range found.Paths {
		if f := p.files[id]; f != nil && f.kept == nil && found.lower[id] != nil && !f.HasProbes() && p.hasRoom() {
			f.close()
			f.kept = found.lower[id]
			delete(found.lower, id)
			p.kept.set(id, true)
		}
	}
	if found.home == nil {
		return
	}
	home := found.home
	if known := p.home(found.home.PID()); known != nil && known.Exited() { // another process has its number
		p.checkKept()
	} else if known != nil {
		home = known
	}
	same := 0
	for _, f := range p.files {
		if f.home == home {
			same++
		}
	}
	for id, path := range found.Paths {
		f := p.files[id]
		if f == nil || f.kept != nil || same >= maxKeptOfHome || !p.hasRoom() {
			continue
		}
		if err := f.open(p.opts.Procfs, path); err != nil {
			p.opts.Logger.Debug("a provider is not kept", zap.Error(err))
			continue
		}
		f.kept, f.opened, f.home = f.opened, nil, home
		p.kept.set(id, true)
		same++
		if home == found.home {
			found.home = nil
		}
	}
}

// hasRoom reports whether another file can be kept. If not, it ends what is kept of a file of an image that no process maps.
func (p *prober) hasRoom() bool {
	kept := 0
	var unused *file
	for _, f := range p.files {
		if f.kept != nil {
			kept++
			if f.home == nil && len(f.Paths) == 0 {
				unused = f
			}
		}
	}
	if kept >= maxKept && unused != nil {
		p.unkeep(unused)
		p.detachUnused(unused)
		kept--
	}
	return kept < maxKept
}

// checkKept ends what is kept for homes that have ended, and files that no process maps
// and that changed.
func (p *prober) checkKept() {
	for _, f := range p.files {
		if f.kept != nil && (f.home != nil && f.home.Exited() || len(f.Paths) == 0 && f.kept.Changed()) {
			p.unkeep(f)
			p.detachUnused(f)
		}
	}
}

// detachUnused detaches the probes of a file that no process maps and that is not kept.
func (p *prober) detachUnused(f *file) {
	if len(f.Paths) > 0 || f.kept != nil {
		return
	}
	for group := range groups {
		p.want(f, group, false)
	}
	f.probed, f.chosen = [groups]map[int]uint64{}, false
	p.change(f, time.Now())
}

// home returns the home with a PID that keeps files, or nil.
func (p *prober) home(pid int) *locate.Process {
	for _, f := range p.files {
		if f.home != nil && f.home.PID() == pid {
			return f.home
		}
	}
	return nil
}

// unkeep ends what is kept of a file, and closes its home if it was the last file of it.
func (p *prober) unkeep(f *file) {
	if f.kept == nil {
		return
	}
	home := f.home
	f.kept, f.opened, f.home = nil, f.kept, nil
	p.kept.set(f.id, false)
	if home == nil {
		return
	}
	for _, other := range p.files {
		if other.home == home {
			return
		}
	}
	home.Close()
}
