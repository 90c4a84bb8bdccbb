// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// meter reads the kernel's maps, adds the counts to series, and makes the snapshot of a scrape. The loop and Read share it: its methods
// lock mu, unless their comments say that the caller does. Nothing waits while holding mu.
type meter struct {
	opts *Options

	mu        sync.Mutex
	kernel    *kernel // nil while there is no device
	hooks     []model.Hook
	failed    error
	unprobed  error
	names     deviceNames
	fold      *fold
	forgotten map[model.CgroupID]bool
	contextTable
	// open are the open contexts that are counted, as of the last drain. Their keys have no number, as in the kernel.
	open  map[gen.DatapathContextKey]openContext
	stats model.DataPathStats
}

func newMeter(opts *Options) *meter {
	return &meter{
		opts:         opts,
		hooks:        unattached("no RDMA device: the hooks come with the first one", model.StateAbsent),
		names:        newDeviceNames(),
		fold:         newFold(opts.Budget, opts.SurveyInterval),
		forgotten:    map[model.CgroupID]bool{},
		contextTable: newContextTable(),
		open:         map[gen.DatapathContextKey]openContext{},
	}
}

// forget removes the series of cgroups at the next fill.
func (m *meter) forget(cgroups []model.CgroupID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range cgroups {
		m.forgotten[id] = true
	}
}

// fill reads the kernel's maps and adds all series to a snapshot.
func (m *meter) fill(snap *model.Snapshot) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	snap.Hooks, snap.Outstanding, snap.Stalled = m.hooks, []model.Outstanding{}, []model.StalledQueuePair{}
	snap.QueuePairWaits = []model.QueuePairWait{}
	err := errors.Join(m.failed, m.unprobed)
	if m.kernel != nil {
		err = errors.Join(err, m.drain(nil), m.fillOutstanding(snap), m.kernel.object.Owners.Settle(m.forgotten), m.kernel.maps.fill(snap))
	}
	m.fold.forget(m.forgotten)
	clear(m.forgotten)
	now := time.Now()
	m.fold.fill(snap, m.names.of, func(file locate.FileID, ended time.Time) (none [groups]bool) {
		if isOutdated(ended, now, m.opts.SurveyInterval) {
			return none
		}
		return m.places[file].limited
	})
	snap.Coverage = m.coverage()
	stats := m.stats
	stats.Attached = m.kernel != nil
	stats.LimitRatio, stats.Late = m.fold.limitRatio(), m.fold.late
	snap.DataPath = &stats
	return err
}

// drain adds the counts since the last step. The caller holds mu. ended has the processes that have ended.
func (m *meter) drain(ended map[uint32]*endedProcess) error {
	clear(m.open)
	err := m.kernel.maps.eachContext(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, closed bool) {
		m.add(key, stat, closed || ended[key.Tgid] != nil)
		if !closed && stat.Chosen != 0 {
			m.open[gen.DatapathContextKey{Context: key.Context, Tgid: key.Tgid}] = m.traceOf(key, stat)
		}
	})
	return errors.Join(err, m.kernel.maps.latencies(m.fold.addLatency))
}

// add adds the counts of a context. While calls of some file are counted in surveys only, counts wait until the file of the context is
// known, or the context or its process has ended. The caller holds mu.
func (m *meter) add(key gen.DatapathContextKey, stat *gen.DatapathContextStat, ended bool) {
	if _, located := m.contexts[key]; located || ended || !m.limited {
		m.fold.add(key, stat, m.placeOf(key))
	}
}

// catchUp adds the counts up to now, if there is a device.
func (m *meter) catchUp() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kernel == nil {
		return nil
	}
	return m.drain(nil)
}

// setKernel sets the kernel whose maps are read, or nil and the reason.
func (m *meter) setKernel(k *kernel, hooks []model.Hook, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel, m.hooks, m.failed = k, hooks, err
}

// release adds the last counts and stops reading the maps. It keeps the series.
func (m *meter) release(hooks []model.Hook) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limited = false // no context is located any more
	err := m.drain(nil)
	m.fold.endAll()
	m.kernel, m.hooks, m.unprobed = nil, hooks, nil
	m.contextTable = newContextTable()
	m.stats.Probes, m.stats.Processes = 0, 0
	return err
}

// setFailed sets the error that Read returns.
func (m *meter) setFailed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = err
}

// setNames sets the names of the HCAs by index.
func (m *meter) setNames(names map[uint32]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names.update(names, m.fold)
}

// lacksName reports whether a series has an HCA without a name.
func (m *meter) lacksName() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fold.hasDevice(func(index uint32) bool { return m.names.of(index) == "" })
}

// context returns the state of a context with located functions.
func (m *meter) context(key gen.DatapathContextKey) (c contextState, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok = m.contexts[key]
	return c, ok
}

func (m *meter) setContext(key gen.DatapathContextKey, c contextState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contexts[key] = c
}

// removeContext removes the state of a context that was closed.
func (m *meter) removeContext(key gen.DatapathContextKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.contexts, key)
}

// allContexts returns the states of all contexts with located functions.
func (m *meter) allContexts() map[gen.DatapathContextKey]contextState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.contexts)
}

// contextsOf returns the contexts with functions in a file.
func (m *meter) contextsOf(id locate.FileID) []gen.DatapathContextKey {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []gen.DatapathContextKey
	for key, c := range m.contexts {
		if c.file == id {
			keys = append(keys, key)
		}
	}
	return keys
}

// setUnlocated records the result of a search for the functions of a queue pair.
func (m *meter) setUnlocated(e *event, err error) {
	if e.qp == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.contextTable.setUnlocated(e, err)
}

// setExcluded sets the files that must not have probes. Their contexts lack calls from then on.
func (m *meter) setExcluded(excluded map[locate.FileID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.excluded = excluded
	for key, c := range m.contexts {
		if excluded[c.file] {
			m.fold.markLate(key)
		}
	}
}

// setPlace sets how the calls of a file are counted from now on, before probes are attached or detached. ended: a survey has just ended.
func (m *meter) setPlace(id locate.FileID, v *survey, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ended {
		m.fold.endSurvey(id, v)
	}
	m.places[id] = place{file: id, limited: v.limited, surveyed: v.counting}
	m.limited = m.limited || v.isLimited()
}

// setFiles sets which files exist, whether each lacks probes that it should have, whether calls of some are counted in surveys only, and
// how many surveys have begun.
func (m *meter) setFiles(off map[locate.FileID]bool, limited bool, surveys model.SurveyCounts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limited, m.off, m.stats.Surveys = limited, off, surveys
	maps.DeleteFunc(m.places, func(id locate.FileID, _ place) bool {
		_, exists := off[id]
		return !exists
	})
}

// reading has the counters of a verbs context.
type reading struct {
	key    gen.DatapathContextKey
	stat   gen.DatapathContextStat
	closed bool
}

// readings are the counters of all contexts and the cost of probes by process, as a step reads them.
type readings struct {
	contexts []reading
	spent    map[int][groups]time.Duration
}

// read copies the counters of all contexts and adds up their cost by process. correct: it also corrects the numbers of contexts and rings
// of each owner, which limit them.
func (m *meter) read(r *readings, correct bool) error {
	r.contexts = r.contexts[:0]
	clear(r.spent)
	pay := func(tgid uint32, ns [groups]uint64) {
		sum := r.spent[int(tgid)]
		for c := range groups {
			sum[c] += time.Duration(ns[c])
		}
		r.spent[int(tgid)] = sum
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.kernel.maps.eachContext(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, closed bool) {
		r.contexts = append(r.contexts, reading{key, *stat, closed})
		pay(key.Tgid, stat.SpentNs)
	})
	if err == nil && correct {
		found := map[uint64]int64{}
		for i := range r.contexts {
			found[r.contexts[i].stat.Owner]++
		}
		err = errors.Join(m.kernel.object.Owners.Correct(contextsOfOwner, found), m.kernel.correctRings())
	}
	return errors.Join(err, m.kernel.unknownCosts(func(tgid uint32, stat *gen.DatapathUnknownCost) { pay(tgid, stat.SpentNs) }))
}

// probeState is how far the files are probed.
type probeState struct {
	// tracedSince is the time since which all functions of a file are probed without a break (CLOCK_MONOTONIC, ns).
	tracedSince map[locate.FileID]uint64
	unprobeable map[locate.FileID]bool // files with functions that could not be probed
	unprobed    error                  // why some functions could not be probed
	probes      int
}

// count adds the readings of a step to the series.
func (m *meter) count(now time.Time, read []reading, loads []processLoad, probed probeState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tracedSince, m.unprobed, m.unprobeable = probed.tracedSince, probed.unprobed, probed.unprobeable
	for i := range read {
		r := &read[i]
		m.add(r.key, &r.stat, r.closed)
		if m.isLate(r.key, &r.stat) {
			m.fold.markLate(r.key)
		}
	}
	for _, l := range loads {
		m.fold.update(now, l.pid, l.cgroup, l.cpu, l.spent[posts]+l.spent[polls], l.surveyed)
	}
	m.stats.Processes, m.stats.Probes = uint64(len(loads)), uint64(probed.probes)
}

// endedProcess is what a process had when it ended.
type endedProcess struct {
	contexts []gen.DatapathContextKey
	cgroup   model.CgroupID
	spent    time.Duration
}

// removeProcesses adds the last counts of processes that have ended to the series and
// removes their entries from the kernel's maps. probed: see wasLate.
func (m *meter) removeProcesses(tgids []uint32, probed func(pid int, ns uint64) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	over := map[uint32]*endedProcess{}
	for _, tgid := range tgids {
		over[tgid] = &endedProcess{}
	}
	err := m.drain(over)
	err = errors.Join(err, m.kernel.unknownCosts(func(tgid uint32, cost *gen.DatapathUnknownCost) {
		if b := over[tgid]; b != nil {
			b.cgroup = model.CgroupID(cost.Cgroup)
			b.spent += time.Duration(cost.SpentNs[posts] + cost.SpentNs[polls])
		}
	}))
	err = errors.Join(err, m.kernel.maps.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		b := over[key.Tgid]
		if b == nil {
			return
		}
		b.cgroup = model.CgroupID(stat.Cgroup)
		b.contexts = append(b.contexts, key)
		b.spent += time.Duration(stat.SpentNs[posts] + stat.SpentNs[polls])
		if m.wasLate(key, stat, probed) {
			m.fold.markLate(key)
		}
	}))
	ended := func(tgid uint32) bool { return over[tgid] != nil }
	m.endProcesses(ended)
	var contexts []gen.DatapathContextKey
	for tgid, b := range over {
		contexts = append(contexts, b.contexts...)
		if len(b.contexts) > 0 || b.cgroup != 0 {
			m.fold.finish(int(tgid), b.cgroup, b.spent)
		}
	}
	err = errors.Join(err, m.kernel.removeProcesses(slices.Collect(maps.Keys(over)), contexts...))
	m.fold.endProcesses(ended)
	return err
}

// removeClosed adds the last counts of closed contexts to the series and removes their
// entries from the kernel's maps. The counters of a closed context do not change, but it
// may have durations that were not read.
func (m *meter) removeClosed(read []reading, probed func(pid int, ns uint64) bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var closed []*reading
	for i := range read {
		if read[i].closed {
			closed = append(closed, &read[i])
		}
	}
	var err error
	if len(closed) > 0 {
		err = m.drain(nil)
	}
	for _, c := range closed {
		if m.wasLate(c.key, &c.stat, probed) {
			m.fold.markLate(c.key)
		}
		m.fold.endContext(c.key)
		delete(m.contexts, c.key)
		err = errors.Join(err, m.kernel.removeContext(c.key))
	}
	return err
}
