// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// file is a provider that processes map. Its probes hit all of these processes, and stay attached while the file is kept, so that the
// next process is counted from its first call.
type file struct {
	uprobe.File[locate.Site]
	id    locate.FileID
	sites map[locate.Site]bool
	// kept and home are nil if the probes end with the last process that maps the file.
	kept *locate.Kept
	home *locate.Process // the file is kept while this process exists; nil: a file of an image
	// opened opens the file while the file is not kept. Operations last longer than a process, and with it its path, may exist.
	opened *locate.Kept
	// added: no operation has tried to probe some of the sites yet.
	added bool
	// chosen: a process that is to be counted has mapped the file. The file stays probed for other processes.
	chosen bool
	survey survey
	// wanted are the groups that are to be probed. on are the wanted groups whose possible sites all have probes.
	wanted, on [groups]bool
	// probed is the time since which a group is probed (CLOCK_MONOTONIC, ns), by the pid of target.
	probed [groups]map[int]uint64
	// attached is the time of a target's first probe (CLOCK_MONOTONIC, ns).
	attached   map[target]uint64
	switchedOn [groups]uint64
	// failed are targets without probes because of errors. delayed is why the last operation was put off.
	failed  map[target]failure
	delayed error
}

type (
	target = uprobe.Target[locate.Site]
	half   = uprobe.Half[locate.Site]
)

func returns(f locate.Function) bool { return functionPrograms[f].ret != "" }

// failure is why and when a target could not be probed.
type failure struct {
	err error
	at  time.Time
}

// due reports whether to try again. A refused target is refused again.
func (f failure) due() bool { return !hook.Refused(f.err) && time.Since(f.at) >= retryInterval }

func newFile(id locate.FileID, owner model.CgroupID, perProcess bool) *file {
	return &file{
		File: uprobe.NewFile[locate.Site](owner, perProcess), id: id,
		sites: map[locate.Site]bool{}, attached: map[target]uint64{}, failed: map[target]failure{},
	}
}

// probedSince returns the time since which the posts of a process and these sites are probed (CLOCK_MONOTONIC, ns), 0 if not. Detached
// groups and targets that cannot be probed do not count: a provider may have further functions for other processes.
func (f *file) probedSince(pid int, sites []locate.Site) uint64 {
	if !f.PerProcess {
		pid = 0
	}
	since := f.probed[posts][pid]
	for _, s := range sites {
		t := target{Place: s, PID: pid}
		if f.attached[t] == 0 && f.failed[t].err == nil && f.wanted[groupOf(s.Function)] {
			return 0
		}
		if since != 0 {
			since = max(since, f.attached[t])
		}
	}
	return since
}

// setProbed sets the time since which a group is probed, for each process with probes at all sites and without a time.
func (f *file) setProbed(group int, at uint64) {
	if f.probed[group] == nil {
		f.probed[group] = map[int]uint64{}
	}
	for _, pid := range f.PIDs() {
		if f.probed[group][pid] == 0 && len(f.unprobed(group, pid)) == 0 {
			f.probed[group][pid] = at
		}
	}
}

// unprobed returns the probes of a group that a process lacks, except refused ones.
func (f *file) unprobed(group, pid int) (missing []half) {
	for s := range f.sites {
		t := target{Place: s, PID: pid}
		if groupOf(s.Function) == group && !hook.Refused(f.failed[t].err) {
			missing = append(missing, f.Missing(t, returns(s.Function))...)
		}
	}
	return missing
}

// lacks reports whether a process lacks probes of a group, except refused ones.
func (f *file) lacks(group int) bool {
	return slices.ContainsFunc(f.PIDs(), func(pid int) bool { return len(f.unprobed(group, pid)) > 0 })
}

// failure returns why a site of a group is not probed although the kernel has its program, nil if all are.
func (f *file) failure(group int) error {
	for t, failed := range f.failed {
		if groupOf(t.Place.Function) == group && !hook.Refused(failed.err) {
			return failed.err
		}
	}
	return nil
}

// isProbed reports whether posts of a process are counted, all or in surveys: a context of this file needs no change of probes.
func (f *file) isProbed(pid int) bool { return !f.added && f.probedSince(pid, nil) != 0 }

// tracedSince returns the time since which all sites are probed without a break (CLOCK_MONOTONIC, ns), 0 if a site is not probed.
func (f *file) tracedSince() uint64 {
	if len(f.failed) > 0 || !f.on[posts] || !f.on[polls] {
		return 0
	}
	return max(f.switchedOn[posts], f.switchedOn[polls])
}

// isDelayed reports whether an operation is in progress, or put off.
func (f *file) isDelayed() bool { return f.Changing() || f.delayed != nil && f.wanted[posts] }

// probes returns the number of targets that are probed.
func (f *file) probes() (n int) {
	for h := range f.Links {
		n += toInt[int](!h.Return)
	}
	return n
}

// openPaths returns the path through which the file is probed, if it could be opened.
func (f *file) openPaths() []string {
	for _, k := range []*locate.Kept{f.kept, f.opened} {
		if k != nil {
			return []string{k.Path()}
		}
	}
	return nil
}

// open opens the file through the path of a process, unless it is open.
func (f *file) open(procfs, path string) (err error) {
	if f.kept == nil && f.opened == nil {
		f.opened, err = locate.Keep(procfs, path)
	}
	return err
}

// close closes the file, which has no probes, unless the file is kept.
func (f *file) close() {
	if f.opened != nil {
		f.opened.Close()
		f.opened = nil
	}
}

// leave removes a process. change detaches probes that only this process has.
func (f *file) leave(pid int) {
	delete(f.Paths, pid)
	if !f.PerProcess {
		return
	}
	for group := range groups {
		delete(f.probed[group], pid)
	}
	maps.DeleteFunc(f.attached, func(t target, _ uint64) bool { return t.PID == pid })
	maps.DeleteFunc(f.failed, func(t target, _ failure) bool { return t.PID == pid })
}
