// SPDX-License-Identifier: Apache-2.0

package kernellog

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxTotals      = 4096 // devices and codes
	maxOwned       = 8192 // cgroups, devices and codes
	maxOwnedEach   = 256  // of one cgroup
	maxDevices     = 256  // with a history, or a UUID
	maxHistoryEach = 64   // faults of one device
	maxText        = 512  // bytes
	maxProcess     = 64   // bytes
	// awaitProcess is how long a fault waits for the record with its process.
	awaitProcess = time.Second
	// sameOffBus is the time in which the driver repeats that a GPU fell off the bus.
	sameOffBus = time.Minute
	// sameEvent is the time in which a driver prints several lines about an event.
	sameEvent = time.Second
)

type ledger struct {
	totals  map[model.FaultKey]*model.FaultTotal
	owned   map[ownedKey]uint64
	sizes   map[model.CgroupID]int // number of keys of each cgroup in owned
	devices map[string]*device     // by PCI address
	id      uint64
	lost    uint64 // faults that a full table did not count, or not for their owner
}

type ownedKey struct {
	cgroup model.CgroupID
	key    model.FaultKey
}

type device struct {
	uuid    string
	history []model.Fault
	pending *model.Fault // waits for the record with its process
}

func newLedger() ledger {
	return ledger{
		totals: map[model.FaultKey]*model.FaultTotal{}, owned: map[ownedKey]uint64{}, sizes: map[model.CgroupID]int{},
		devices: map[string]*device{},
	}
}

func (l *ledger) device(address string) *device {
	d := l.devices[address]
	if d == nil && len(l.devices) < maxDevices {
		d = &device{}
		l.devices[address] = d
	}
	return d
}

// add adds a fault, or its end. If the process is in a later record, the fault waits for it. Repeated faults are not
// added.
func (l *ledger) add(f model.Fault, found *line) {
	d := l.device(f.PCIAddress)
	if d == nil {
		l.lost++
		return
	}
	l.settle(d)
	if f.Code == codeOffBus && l.recent(f, xidOffBus, sameOffBus) || found.again && l.recent(f, f.Code, sameEvent) {
		return
	}
	if found.awaits {
		d.pending = &f
		return
	}
	l.commit(d, f)
}

func (l *ledger) recent(f model.Fault, code string, within time.Duration) bool {
	f.Code = code
	t := l.totals[f.FaultKey]
	return t != nil && f.Time.Sub(t.Last) < within
}

// blame adds the process to the waiting fault of a device. It returns the fault, or nil.
func (l *ledger) blame(address string, at time.Time) (waiting *model.Fault) {
	d := l.devices[address]
	if d == nil || d.pending == nil || at.Sub(d.pending.Time) > awaitProcess {
		return nil
	}
	return d.pending
}

func (l *ledger) settle(d *device) {
	if d.pending != nil {
		f := *d.pending
		d.pending = nil
		l.commit(d, f)
	}
}

func (l *ledger) settleBefore(t time.Time) {
	for _, d := range l.devices {
		if d.pending != nil && d.pending.Time.Before(t) {
			l.settle(d)
		}
	}
}

func (l *ledger) commit(d *device, f model.Fault) {
	l.count(&f)
	f.Last = f.Time
	if n := len(d.history); n > 0 && same(&d.history[n-1], &f) {
		d.history[n-1].Repeated++
		d.history[n-1].Last = f.Time
		return
	}
	l.id++
	f.ID, f.UUID = l.id, d.uuid
	f.Text, f.Process = printable(f.Text, maxText), printable(f.Process, maxProcess)
	if len(d.history) >= maxHistoryEach {
		d.history = slices.Delete(d.history, 0, 1)
	}
	d.history = append(d.history, f)
}

// first returns the device with the first fault of a driver with one of the codes since a time, or false.
func (l *ledger) first(driver model.FaultDriver, codes []string, since time.Time) (address string, ok bool) {
	var at time.Time
	var id uint64 // records that are read together have the same time
	for _, d := range l.devices {
		for _, f := range d.history {
			if f.Driver != driver || f.Recovered || f.Last.Before(since) || !slices.Contains(codes, f.Code) {
				continue
			}
			when := f.Time
			if when.Before(since) { // one of its repetitions
				when = f.Last
			}
			if order := when.Compare(at); !ok || order < 0 || order == 0 && f.ID < id {
				address, at, id, ok = f.PCIAddress, when, f.ID, true
			}
		}
	}
	return address, ok
}

// nonfatal reports whether a device had faults with a code since a time, and all of them were nonfatal.
func (l *ledger) nonfatal(driver model.FaultDriver, address, code string, since time.Time) bool {
	found := false
	for key, t := range l.totals {
		if key.Driver == driver && key.Code == code && strings.EqualFold(key.PCIAddress, address) && t.Last.After(since) {
			if found = true; key.Severity != model.FaultNonfatal {
				return false
			}
		}
	}
	return found
}

func same(a, b *model.Fault) bool {
	return a.FaultKey == b.FaultKey && a.PID == b.PID && a.Cgroup == b.Cgroup && a.Earlier == b.Earlier && a.Recovered == b.Recovered
}

func (l *ledger) count(f *model.Fault) {
	t := l.totals[f.FaultKey]
	if f.Recovered {
		if t != nil {
			t.Recovered = f.Time
		}
		return
	}
	if t == nil {
		if len(l.totals) >= maxTotals {
			l.lost++
			return
		}
		t = &model.FaultTotal{FaultKey: f.FaultKey}
		l.totals[f.FaultKey] = t
	}
	t.Last = f.Time
	if f.Earlier {
		return
	}
	t.Count++
	if f.Cgroup == 0 {
		return
	}
	k := ownedKey{f.Cgroup, f.FaultKey}
	if _, known := l.owned[k]; !known {
		if len(l.owned) >= maxOwned || l.sizes[f.Cgroup] >= maxOwnedEach {
			l.lost++
			return
		}
		l.sizes[f.Cgroup]++
	}
	l.owned[k]++
}

func (l *ledger) forget(ended map[model.CgroupID]bool) {
	for k := range l.owned {
		if ended[k.cgroup] {
			delete(l.owned, k)
			delete(l.sizes, k.cgroup)
		}
	}
	for _, d := range l.devices {
		for i := range d.history {
			if ended[d.history[i].Cgroup] {
				d.history[i].Cgroup = 0
			}
		}
	}
}

// snapshot returns the facts in a stable order.
func (l *ledger) snapshot() model.Snapshot {
	s := model.Snapshot{
		Faults: []model.Series[model.FaultKey, model.Count]{}, FaultTotals: []model.FaultTotal{}, FaultHistory: []model.Fault{},
	}
	for k, n := range l.owned {
		s.Faults = append(s.Faults, model.Series[model.FaultKey, model.Count]{Cgroup: k.cgroup, Key: k.key, Value: model.Count(n)})
	}
	for _, t := range l.totals {
		s.FaultTotals = append(s.FaultTotals, *t)
	}
	for _, d := range l.devices {
		s.FaultHistory = append(s.FaultHistory, d.history...)
	}
	slices.SortFunc(s.Faults, func(a, b model.Series[model.FaultKey, model.Count]) int {
		return cmp.Or(cmp.Compare(a.Cgroup, b.Cgroup), compareKeys(&a.Key, &b.Key))
	})
	slices.SortFunc(s.FaultTotals, func(a, b model.FaultTotal) int { return compareKeys(&a.FaultKey, &b.FaultKey) })
	slices.SortFunc(s.FaultHistory, func(a, b model.Fault) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

func compareKeys(a, b *model.FaultKey) int {
	return cmp.Or(strings.Compare(a.PCIAddress, b.PCIAddress), strings.Compare(a.GPUInstance, b.GPUInstance),
		strings.Compare(string(a.Driver), string(b.Driver)), strings.Compare(a.Code, b.Code),
		strings.Compare(string(a.Severity), string(b.Severity)))
}

// printable returns at most limit bytes of printable ASCII. The kernel escapes other bytes in records.
func printable(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s[:min(len(s), limit)])
}
