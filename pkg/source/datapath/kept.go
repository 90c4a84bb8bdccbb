// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// maxKept bounds all kept files, maxKeptOfHome the kept files of a home.
const (
	maxKept       = 64
	maxKeptOfHome = 8
)

// keptFiles are files that stay probed without a process. The loop sets them, and searches read them in their own goroutines.
type keptFiles struct {
	mu  sync.Mutex
	ids map[locate.FileID]bool
}

func (k *keptFiles) set(id locate.FileID, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if kept {
		k.ids[id] = true
	} else {
		delete(k.ids, id)
	}
}

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

// keep keeps the files of a searched process: files of an image while the sensor runs, because any container of the image uses them,
// other files while the home of the process exists. It takes over the kept files from the result.
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

// hasRoom reports whether another file can be kept. To make room, it gives up a file of an image that no process maps.
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

// checkKept gives up files whose home has ended, and changed files that no process maps.
func (p *prober) checkKept() {
	for _, f := range p.files {
		if f.kept != nil && (f.home != nil && f.home.Exited() || len(f.Paths) == 0 && f.kept.Changed()) {
			p.unkeep(f)
			p.detachUnused(f)
		}
	}
}

// detachUnused detaches the probes of a file that is neither mapped nor kept.
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

// unkeep gives up a file, and closes its home after the last file of the home.
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
