// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// prober has the files of the processes, and has their probes attached and detached. The loop uses it; the Gate attaches and detaches in
// goroutines of its own.
type prober struct {
	opts      *Options
	meter     *meter
	processes *processes
	kept      *keptFiles

	kernel     *kernel // nil while there is no device
	perProcess bool    // each process has probes of its own
	files      map[locate.FileID]*file
	former     []*file // with probes from before the last release
	manager    *uprobe.Manager[locate.Site]
	ended      func(*file, time.Time) // called after a change of a file
	closing    []*kernel              // from before the last release: an operation may still attach their programs
}

// maxFilesOfOwner bounds the probed files of an owner: a process may map any number of copies of a provider. All pods of a node may be
// one owner.
const maxFilesOfOwner = 256

// errFilesOfOwner is why a process of an owner is not probed.
var errFilesOfOwner = fmt.Errorf("%w: the processes of its owner map %d provider files", model.ErrUnsupported, maxFilesOfOwner)

// addSites adds the sites of a process to their files, and reports whether a site is not probed.
func (p *prober) addSites(pid int, l locate.Found) (unprobed bool) {
	for _, site := range l.Sites {
		f := p.files[site.File]
		if f == nil {
			var owner model.CgroupID
			if w := p.processes.byPID[pid]; w != nil {
				owner = p.processes.ownerOf(w)
			}
			f = newFile(site.File, owner, p.perProcess)
			p.files[site.File] = f
		}
		if err := f.open(p.opts.Procfs, l.Paths[site.File]); err != nil {
			p.opts.Logger.Debug("a provider cannot be opened", zap.Error(err))
		}
		f.Paths[pid] = l.Paths[site.File]
		f.added = f.added || !f.sites[site]
		f.sites[site] = true
		unprobed = unprobed || !f.isProbed(pid)
	}
	return unprobed
}

// hasRoomFor reports whether an owner may have the files of sites probed.
func (p *prober) hasRoomFor(owner model.CgroupID, sites []locate.Site) bool {
	return !slices.ContainsFunc(sites, func(at locate.Site) bool { return p.files[at.File] == nil }) ||
		uprobe.CountOf(p.files, owner) < maxFilesOfOwner
}

// leave detaches probes that only this process needs.
func (p *prober) leave(pid int) {
	for _, f := range p.files {
		f.leave(pid)
		p.change(f, time.Now())
		p.detachUnused(f)
	}
}

// closeUnused closes files without a process and probes that are not kept.
func (p *prober) closeUnused() {
	for id, f := range p.files {
		if len(f.Paths) == 0 && f.kept == nil && !f.HasProbes() {
			f.close()
			delete(p.files, id)
		}
	}
}

// probedBefore reports whether all files were probed for a process before a time (CLOCK_MONOTONIC, ns).
func (p *prober) probedBefore(pid int, ns uint64) bool {
	for _, f := range p.files {
		if since := f.probedSince(pid, nil); since == 0 || ns < since {
			return false
		}
	}
	return true
}

// probeState returns how far the files are probed.
func (p *prober) probeState() probeState {
	s := probeState{tracedSince: make(map[locate.FileID]uint64, len(p.files)), unprobeable: map[locate.FileID]bool{}}
	for _, w := range p.processes.byPID {
		s.unprobed = cmp.Or(s.unprobed, w.refused)
	}
	for id, f := range p.files {
		s.probes += f.probes()
		s.tracedSince[id] = f.tracedSince()
		s.unprobed = cmp.Or(f.delayed, s.unprobed)
		if len(f.failed) > 0 {
			s.unprobeable[id] = true
			s.unprobed = cmp.Or(f.failure(posts), f.failure(polls), s.unprobed)
		}
	}
	return s
}

// release detaches the hooks. Probes are detached when the Gate does it.
func (p *prober) release() {
	k := p.kernel
	p.kernel = nil
	k.detach()
	p.closing = append(p.closing, k)
	p.closeFormer()
	for _, f := range p.files {
		p.unkeep(f)
		f.wanted, f.on, f.survey = [groups]bool{}, [groups]bool{}, survey{}
		if f.HasProbes() {
			p.former = append(p.former, f)
		} else {
			f.close()
		}
	}
	clear(p.files)
}
