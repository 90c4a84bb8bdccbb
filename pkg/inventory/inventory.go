// SPDX-License-Identifier: Apache-2.0

// Package inventory remembers which GPUs, HCAs and modules the node has had, and which of their links were up, and
// compares each refresh with them.
//
// Sources only list present devices. They do not know an earlier state, neither across a restart nor when nothing is
// left to read. All conditions about an earlier state are here: a missing device (missing.go, modules.go), and a link
// between GPUs that is down (links.go). The memory is a small file (file.go), which survives restarts of the sensor and
// the node. A refresh does not wait for the file.
package inventory

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options of an Inventory.
type Options struct {
	// Dir is the file's directory; empty: in memory only.
	Dir string
	// Host is the node's root directory (etc/machine-id), Procfs the mount point of its procfs
	// (sys/kernel/random/boot_id), Sysfs of its sysfs (bus/pci/devices/*/driver). A file of another machine or sysfs is
	// not used.
	Host, Procfs, Sysfs string
	ReadOnly            bool
	// Unwatched reports whether an HCA's name is left out, so that its state is unknown; nil: every HCA is watched.
	Unwatched func(hca string) bool
	// Logger receives a line for each missing, returned, replaced or accepted device.
	Logger *zap.Logger
}

const (
	// maxDevices is the number of remembered devices. The largest nodes have some dozens.
	maxDevices = 512
	// saveEvery is how often the file is written without a change.
	saveEvery = time.Hour
	// retryEvery is how often a failed write is repeated, and new names and places are written.
	retryEvery = time.Minute
	// driverWait is how long after the sensor's start a driver may be loaded, for example because it is compiled at
	// boot.
	driverWait = 15 * time.Minute
	// acceptedFor is how long an accepted loss is remembered: as long as alerts look back.
	acceptedFor = 48 * time.Hour
)

type key struct {
	kind model.DeviceKind
	id   string
}

// Inventory remembers the devices of the node, so that a device that is gone is reported, across restarts of the sensor too.
type Inventory struct {
	o     Options
	owner owner
	file  *keeper // nil: in memory only

	mu      sync.Mutex
	devices map[key]*device
	listed  listed    // empty between comparisons
	started time.Time // the first comparison
	saved   time.Time // when the file was last handed to the writer
	changed bool      // changed since saved
	renamed bool      // a device has another name or place since saved; these may alternate
}

// New reads the file of an earlier sensor, if usable, and starts the writer. Close ends the writer.
func New(o Options) *Inventory {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	i := &Inventory{o: o, devices: map[key]*device{}, listed: newListed(), owner: owner{
		Machine: line(filepath.Join(o.Host, "etc/machine-id")), Sysfs: o.Sysfs,
		boot: line(filepath.Join(o.Procfs, "sys/kernel/random/boot_id")),
	}}
	if o.Dir == "" {
		return i
	}
	devices, replaceable := load(o.Dir, i.owner, o.Logger)
	for _, d := range devices {
		i.devices[d.key()] = d
	}
	if !o.ReadOnly && replaceable {
		i.file = newKeeper(o.Dir, o.Logger)
	}
	return i
}

// line returns the first line of a small file, or "" if it cannot be read.
func line(path string) string {
	const limit = 64
	b, err := boundedfile.ReadOnce(path, make([]byte, limit))
	if err != nil {
		return ""
	}
	return boundedfile.Line(b, limit)
}

// Compare sets Missing and the link problems of GPUs in the facts of a refresh, and remembers what is present. It does
// not wait for the file.
func (i *Inventory) Compare(now time.Time, facts *model.Snapshot, states []model.SourceState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.started.IsZero() {
		i.started = now
	}
	defer i.listed.clear() // also after a panic
	i.listed.fill(facts, states)
	for _, d := range i.listed.devices {
		i.remember(d, now)
	}
	i.judgeMissing(i.listed, now)
	i.judgeLinks(facts)
	i.forget(i.listed, now)
	facts.Missing = i.missing(i.listed)
	if i.due(now) {
		i.save(now)
	}
}

// remember adds or updates a listed device.
func (i *Inventory) remember(d device, now time.Time) {
	if d.Seen.IsZero() { // a module that was read before this refresh
		d.Seen = now
	}
	d.First, d.Boot = d.Seen, i.owner.boot
	old := i.devices[d.key()]
	if old == nil {
		// An unreadable device has only its place.
		if known := d.anonymous() && i.at(d.Kind, d.Slot) != nil; !known && d.check() == nil && i.room(d.Kind) {
			added := d // so that d stays on the stack
			i.devices[d.key()], i.changed = &added, true
		}
		return
	}
	d.First, d.Links, d.Enough, d.up, d.fewer = old.First, old.Links, old.Enough, old.up, old.fewer
	if d.Serial == "" { // an unreadable device has no serial number
		d.Serial = old.Serial
	}
	if !old.Gone.IsZero() {
		i.o.Logger.Info("a device is back", old.fields()...)
	}
	i.changed = i.changed || !old.Gone.IsZero() || old.Serial != d.Serial || old.Boot != d.Boot
	i.renamed = i.renamed || old.Slot != d.Slot || old.Name != d.Name
	*old = d
}

func (i *Inventory) at(kind model.DeviceKind, slot string) *device {
	for _, d := range i.devices {
		if d.Kind == kind && d.Slot == slot {
			return d
		}
	}
	return nil
}

// room reports whether there is room for another device of a kind. If necessary, the device that has been missing or
// unknown for longest is forgotten. Modules do not take the room of other devices.
func (i *Inventory) room(kind model.DeviceKind) bool {
	limit, count := maxDevices, 0
	if kind == model.KindModule {
		limit = maxModules
	}
	var oldest *device
	for _, d := range i.devices {
		if (d.Kind == model.KindModule) != (kind == model.KindModule) {
			continue
		}
		count++
		if since := d.lost(); !since.IsZero() && (oldest == nil || since.Before(oldest.lost())) {
			oldest = d
		}
	}
	if count < limit || oldest == nil {
		return count < limit
	}
	delete(i.devices, oldest.key())
	return true
}

// forget forgets devices whose loss was accepted long ago. A device without a driver would be found again.
func (i *Inventory) forget(l listed, now time.Time) {
	for k, d := range i.devices {
		if !l.undrivenAt(d.Slot) && !d.Accepted.IsZero() && now.Sub(d.Accepted) > acceptedFor {
			delete(i.devices, k)
			i.changed = true
		}
	}
}

// missing returns the missing devices, sorted. An HCA whose name is left out is missing for that reason. Devices of a
// disabled source are unknown.
func (i *Inventory) missing(l listed) []model.MissingDevice {
	list := []model.MissingDevice{}
	for _, d := range i.sorted() {
		out := d.unwatched(i.o.Unwatched)
		if _, reads := l.complete[d.Source]; !reads || d.unknown || d.Gone.IsZero() && !out {
			continue
		}
		list = append(list, model.MissingDevice{
			Kind: d.Kind, ID: d.ID, Slot: d.Slot, Name: d.Name, Port: d.Port, Serial: d.Serial, Seen: d.Seen, Since: d.Gone,
			Rebooted: d.Boot != "" && i.owner.boot != "" && d.Boot != i.owner.boot, Excused: out || d.unmissed(),
		})
	}
	return list
}

func (i *Inventory) sorted() []*device {
	list := make([]*device, 0, len(i.devices))
	for _, d := range i.devices {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b *device) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID)) })
	return list
}

// Accept accepts the present state of devices with these IDs, names, slots or serial numbers, or of all devices:
// missing devices are no longer missed, and links that are down are not expected to be up. It returns a line for each
// change.
func (i *Inventory) Accept(now time.Time, names []string) (accepted []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, d := range i.sorted() {
		switch {
		case d.unknown || len(names) > 0 && !d.isNamed(names):
			continue
		case !d.Gone.IsZero() && !d.unmissed():
			d.Accepted = now
			accepted = append(accepted, d.String()+" is missing")
		case d.Gone.IsZero() && len(d.down()) > 0:
			accepted = append(accepted, d.String()+" has links that are down: "+numbers(d.down()))
			d.Links, d.Enough = slices.Clone(d.up), len(d.up)+1
		case d.Gone.IsZero() && d.fewer:
			accepted = append(accepted, fmt.Sprintf("%s has fewer links that are up than other GPUs: %d", d, len(d.up)))
			d.Enough = len(d.up) + 1
		default:
			continue
		}
		i.o.Logger.Info("a device was accepted as it is", d.fields()...)
	}
	if len(accepted) > 0 {
		i.save(now)
	}
	return accepted
}

// due reports whether to write the file now.
func (i *Inventory) due(now time.Time) bool {
	age := now.Sub(i.saved)
	again := i.renamed || i.file != nil && i.file.failed.Load()
	return i.changed || age >= saveEvery || again && age >= retryEvery
}

// save hands the devices to the writer.
func (i *Inventory) save(now time.Time) {
	i.saved, i.changed, i.renamed = now, false, false
	if i.file == nil {
		return
	}
	text, err := encode(i.owner, i.sorted())
	if err != nil { // a clock beyond the year 9999
		i.o.Logger.Warn("the inventory cannot be written", zap.Error(err))
		return
	}
	i.file.write(text)
}

// Close writes the file once more, within a second.
func (i *Inventory) Close() error {
	if i.file == nil {
		return nil
	}
	i.mu.Lock()
	i.save(time.Now())
	i.mu.Unlock()
	return i.file.close()
}
