// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/datapath/returnprobe"
)

const (
	// watchInterval is the time between checks for a device, if devices may not be announced, and between checks for
	// probes that are still to be detached after a release.
	watchInterval = 500 * time.Millisecond
	// followPause is the time in which further announcements usually follow. A driver reload waits for this at most.
	followPause = 50 * time.Millisecond
	// retryInterval is the time until the next attempt after a site could not be probed, and between attempts to attach the hooks.
	retryInterval = 30 * time.Second
	// removeInterval is the time between checks for processes that have ended.
	removeInterval = time.Second
	// nameInterval is the time between reads of HCA names while a name is missing: the HCA appeared later, or moved to another network
	// namespace.
	nameInterval = 2 * time.Second
	// maxEvents is the number of events that wait while the loop attaches probes to a file that thousands of processes map: two for each
	// context of a large job.
	maxEvents = 16384
	// maxSuspects is the number of suspicions that wait.
	maxSuspects = 64
	// maxExisting is the number of queue pairs from before the hooks that are searched per process and device.
	maxExisting = 16
)

// loop follows the devices, and runs everything else in one goroutine, which owns all fields except the shared meter.
type loop struct {
	opts      *Options
	meter     *meter
	processes *processes
	searches  *searches
	tracker   *tracker
	prober    *prober
	switcher  *switcher
	pace      *pace

	events   chan event
	suspects chan []model.CgroupID // cgroups to survey on suspicion
	done     chan struct{}         // closed when the goroutine ends
	safety   *returnprobe.Safety   // nil until determined
	namedAt  time.Time
	retry    hook.Retry
	devices  *hotplug.Subscription
}

func newLoop(opts *Options, m *meter) *loop {
	done, kept := make(chan struct{}), &keptFiles{ids: map[locate.FileID]bool{}}
	l := &loop{
		opts: opts, meter: m, pace: &pace{}, events: make(chan event, maxEvents),
		suspects: make(chan []model.CgroupID, maxSuspects), done: done,
		processes: &processes{opts: opts, byPID: map[int]*watched{}},
		devices:   opts.Hotplug.Devices("infiniband_verbs"),
	}
	l.searches = &searches{
		Searches: uprobe.NewSearches(model.DataPathSource, done, (*searchResult).drop),
		opts:     opts, processes: l.processes, kept: kept, find: locate.New(opts.Procfs).Find, retriesOf: map[model.CgroupID]int{},
	}
	l.prober = &prober{
		opts: opts, meter: m, processes: l.processes, kept: kept,
		files: map[locate.FileID]*file{}, manager: uprobe.NewManager[locate.Site](opts.Gate, model.DataPathSource, opts.Logger, done),
		ended: func(f *file, now time.Time) {
			l.switcher.beginCounting(f, now)
			l.pace.changed = true
		},
	}
	l.tracker = &tracker{
		opts: opts, meter: m, processes: l.processes, searches: l.searches, prober: l.prober, pace: l.pace,
		absent: map[uint32]bool{}, last: readings{spent: map[int][groups]time.Duration{}},
	}
	l.switcher = &switcher{
		opts: opts, meter: m, processes: l.processes, prober: l.prober, pace: l.pace,
		schedule: schedule{limit: opts.Budget, length: opts.SurveyLength, interval: opts.SurveyInterval, suspicion: suspicionLength},
	}
	return l
}

// run is the loop. Only this goroutine decides what is attached and detached; the Gate does it.
func (l *loop) run(ctx context.Context) {
	defer close(l.done)
	defer l.release("")
	defer l.prober.shutdown() // also after a panic: nothing else limits what probes cost
	look := time.NewTimer(watchInterval)
	defer look.Stop()
	announced := false
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.devices.Changed():
			if !announced {
				announced = true
				look.Reset(followPause)
			}
		case <-look.C:
			l.follow(ctx)
			l.prober.changeFormer(time.Now())
			look.Reset(l.untilLook(announced))
			announced = false
		case e := <-l.events:
			l.handleEvent(e)
		case a := <-l.searches.Results:
			l.tracker.handleFound(a)
		case r := <-l.prober.manager.Results:
			l.prober.manager.Take(r, time.Now())
		case cgroups := <-l.suspects:
			l.switcher.suspect(cgroups, time.Now())
		case <-wake.C:
		}
		l.handleQueued()
		if l.prober.kernel == nil {
			continue
		}
		now := time.Now()
		l.nameMissing(ctx, now)
		next := l.tracker.retryDue(now)
		l.searches.start(l.prober.perProcess)
		l.tracker.markFound(false)
		if !now.Before(l.pace.next()) {
			l.pace.due = l.step()
			l.tracker.markFound(true)
			l.tracker.removeEnded(now)
		}
		if at := l.pace.next(); at.Before(next) {
			next = at
		}
		wake.Reset(time.Until(next))
	}
}

func (l *loop) handleEvent(e event) {
	if l.prober.kernel != nil { // otherwise it is older than the last release
		l.tracker.observe(e)
	}
}

// handleQueued handles the events and results that wait.
func (l *loop) handleQueued() {
	for range len(l.events) {
		l.handleEvent(<-l.events)
	}
	for {
		select {
		case a := <-l.searches.Results:
			l.tracker.handleFound(a)
		default:
			return
		}
	}
}

// follow attaches the hooks while there is a device. It releases the hooks with the last device, because they would keep a driver from
// being reloaded.
func (l *loop) follow(ctx context.Context) {
	present := hasEntries(filepath.Join(l.opts.Sysfs, "class/infiniband_verbs"))
	switch {
	case !present && l.prober.kernel != nil:
		l.release("no RDMA device: the hooks come with the next one")
	case !present:
		l.retry = hook.Retry{} // the modules of the next device may be others
	case present && l.prober.kernel == nil && !l.retry.Waiting(time.Now()):
		l.attach(ctx)
	}
}

// untilLook returns the time until the next check for a device. An announced device may not be there yet, so the next check comes soon.
func (l *loop) untilLook(announced bool) time.Duration {
	interval := l.devices.Interval(watchInterval)
	switch {
	case announced || len(l.prober.former) > 0:
		return watchInterval
	case l.retry.Pending():
		return min(interval, retryInterval)
	}
	return interval
}

// hasEntries reports whether a directory has entries other than abi_version.
func hasEntries(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(4)
	return slices.ContainsFunc(names, func(name string) bool { return name != "abi_version" })
}

// newKernel is newKernel if return probes are safe.
func (l *loop) newKernel(ctx context.Context) (*kernel, []model.Hook, error) {
	if l.safety == nil {
		result := returnprobe.Try(ctx, l.opts.Logger)
		l.safety, l.prober.perProcess = &result, result.PerProcess
	}
	if err := l.safety.Refused; err != nil {
		return nil, unattached(err.Error(), model.StateUnsupported), err
	}
	return newKernel(*l.opts)
}

func (l *loop) attach(ctx context.Context) {
	k, hooks, err := l.newKernel(ctx)
	l.meter.setKernel(k, hooks, err)
	if err != nil {
		l.retry.Failed(time.Now())
		return
	}
	l.retry = hook.Retry{}
	l.prober.kernel = k
	l.nameDevices(ctx)
	go safely.Do(model.DataPathSource, func() { l.receive(ctx, k) })
	existing, err := k.existing()
	if err != nil {
		l.opts.Logger.Warn("existing connections are not counted on the data path", zap.Error(err))
	}
	for _, e := range fewOfEach(existing) {
		e.existed = true
		l.tracker.observe(e)
	}
	l.opts.Logger.Info("data path hooks attached")
}

// fewOfEach returns the first queue pairs of each process on each device, which have the same functions as the others, or
// one of a few sets.
func fewOfEach(existing []event) (few []event) {
	type user struct{ tgid, device uint32 }
	of := map[user]int{}
	for _, e := range existing {
		key := user{e.key.Tgid, e.device}
		if of[key]++; of[key] <= maxExisting {
			few = append(few, e)
		}
	}
	return few
}

func (l *loop) receive(ctx context.Context, k *kernel) {
	for {
		e, err := k.events.next()
		if err != nil {
			return // closed
		}
		select {
		case l.events <- e:
		case <-ctx.Done():
			return
		}
	}
}

// nameDevices reads the names of the HCAs.
func (l *loop) nameDevices(ctx context.Context) {
	if l.opts.DeviceNames == nil {
		return
	}
	l.namedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	names, err := l.opts.DeviceNames(ctx)
	if err != nil {
		l.opts.Logger.Debug("cannot read the names of the devices", zap.Error(err))
		return
	}
	l.meter.setNames(names)
}

// nameMissing reads the names again while a series has an HCA without a name.
func (l *loop) nameMissing(ctx context.Context, now time.Time) {
	if now.Sub(l.namedAt) < nameInterval {
		return
	}
	if l.meter.lacksName() {
		l.nameDevices(ctx)
	}
}

// step counts, begins and ends surveys, attaches and detaches probes, and returns the time of the next step.
func (l *loop) step() time.Time {
	now := time.Now()
	l.pace.begin(now)
	loads, err := l.tracker.count(now)
	if err == nil {
		l.switcher.limit(now, loads)
	}
	l.pace.read(time.Now())
	return l.switcher.advance(now, err != nil)
}

// release detaches the hooks and keeps the series. Probes are detached when the Gate does it, at the end of the sensor by shutdown.
func (l *loop) release(reason string) {
	if l.prober.kernel == nil {
		return
	}
	err := l.meter.release(unattached(reason, model.StateAbsent))
	if err != nil && !errors.Is(err, os.ErrClosed) {
		l.opts.Logger.Warn("the last counts are lost", zap.Error(err))
	}
	l.prober.release()
	l.tracker.release()
	*l.pace = pace{}
}
