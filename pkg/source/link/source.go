// SPDX-License-Identifier: Apache-2.0

// Package link reads the links of the network interfaces behind the ports of HCAs: pause and priority flow control,
// forward error correction, the reason why a link is down, and losses of the carrier.
//
// Most facts come from the drivers: by DCB netlink, generic netlink "ethtool" and the ioctls of `ethtool -S`. Up to
// Linux 6.12 the kernel holds RTNL, the single lock of network configuration, during these requests, and a driver may
// hang: mlx5 for 60 s per command of its firmware. So there is one reader for all interfaces, in the background, which
// makes one request at a time:
//
//   - An interface is read every 30 s, its configuration and its module every 5 minutes. A reading ends after a second; the rest
//     follows the next time.
//   - All readings together take at most a tenth of the time (budget.go). An interface that is repeatedly slow is read at growing
//     intervals.
//   - While a request hangs, no other request is made: it would wait for RTNL as well. The facts of all interfaces stay, with the time
//     of their reading.
//
// The counters of the carrier come from files that need neither RTNL nor the driver. They are read when the kernel
// announces a change of the interface and before drivers are asked, also while a request hangs. Where announcements may
// be missing (package hotplug), they are read every 5 s.
package link

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source.
type Options struct {
	Sysfs            string           // default /sys
	Include, Exclude *regexp.Regexp   // of names of HCAs; nil includes all and excludes none
	Module           ModuleDetail     // what is read of modules
	Mlxlink          string           // path of the tool mlxlink; empty: bit errors of the firmware are not read
	Hotplug          *hotplug.Watcher // may be nil
	Logger           *zap.Logger

	kernel  kernel                 // default: the host's. Only tests set this and isSysfs
	isSysfs func(path string) bool // default hotplug.IsSysfs
}

const (
	poll     = 5 * time.Second // interval of rounds while something is unfinished, or changes may not be announced
	limit    = time.Second     // per reading of an interface
	maxFlaps = 256             // flaps that are kept
)

// Source reads links. Its methods may be called concurrently.
type Source struct {
	o      Options
	call   hang.Call[func()] // uses o.kernel
	ctx    context.Context   // ends with Close
	cancel context.CancelFunc
	done   sync.WaitGroup
	ready  chan struct{} // closed after the first round
	tool   *mlxlink      // nil unless enabled
	// hcas and links announce changes of HCAs and of the interfaces in indexes. A message about another interface sets
	// others: the interface may be behind a port, too.
	hcas, links *hotplug.Subscription
	indexes     atomic.Pointer[map[int]bool]
	others      atomic.Bool

	// The fields below belong to run.
	netdevs   map[string]*netdev // by name
	hanging   *job
	searched  time.Time
	searchErr error
	again     bool // search twice: a new HCA has its GIDs later
	budget    budget
	flaps     []model.LinkFlap
	flapCount uint64
	buf       []byte
	logged    map[string]model.State

	mu    sync.Mutex
	facts model.Snapshot
	err   error
}

type netdev struct {
	driverReader // of the call while a call is in progress
	watch        *carrierWatch
	link         model.Link
	changed      bool      // the carrier has changed since the last reading
	backup       bool      // its bond does not send on it
	bondDown     bool      // the bond that its port follows was set down
	due          time.Time // of the next reading
	backoff      hang.Backoff
	err          error // of the last reading
}

// job is a call in progress: the reading of an interface, or the search for interfaces.
type job struct {
	*hang.Pending[func()]
	netdev *netdev // nil for the search
	began  time.Time
}

// New starts to read links.
func New(o Options) (*Source, error) {
	s := newSource(o)
	if o.Mlxlink != "" {
		tool, err := newMlxlink(o.Mlxlink)
		if err != nil {
			return nil, err
		}
		s.tool = tool
		safely.Go(&s.done, s.Name(), func() { tool.run(s.ctx) })
	}
	safely.Go(&s.done, s.Name(), s.run)
	return s, nil
}

func newSource(o Options) *Source {
	o.Sysfs, o.Logger = cmp.Or(o.Sysfs, "/sys"), cmp.Or(o.Logger, zap.NewNop())
	if o.kernel == nil {
		o.kernel = &hostKernel{}
	}
	if o.isSysfs == nil {
		o.isSysfs = hotplug.IsSysfs
	}
	s := &Source{
		o: o, ready: make(chan struct{}), netdevs: map[string]*netdev{}, buf: make([]byte, 64), budget: newBudget(time.Now()),
		logged: map[string]model.State{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.err = s.state()
	s.indexes.Store(&map[int]bool{})
	s.hcas, s.links = o.Hotplug.Devices("infiniband"), o.Hotplug.Interfaces(s.announced)
	return s
}

// announced reports whether a message about an interface is about one of the interfaces behind ports.
func (s *Source) announced(index int) bool {
	known := (*s.indexes.Load())[index]
	if !known {
		s.others.Store(true)
	}
	return known
}

// Name returns "link".
func (s *Source) Name() string { return "link" }

// Close ends the reading. A request that hangs ends when its driver returns.
func (s *Source) Close() error {
	s.cancel()
	s.done.Wait()
	s.call.Close(s.o.kernel.close)
	return nil
}

// Read returns Links, LinkFlaps and, if enabled, BitErrors, and the states of interfaces that are not ok. The first
// call waits until each interface was asked once, or until a request hangs. Without an interface behind a port it
// returns model.ErrAbsent.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	select {
	case <-s.ready:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.facts, s.err
}

func (s *Source) chosen(device string) bool {
	return (s.o.Include == nil || s.o.Include.MatchString(device)) && (s.o.Exclude == nil || !s.o.Exclude.MatchString(device))
}

func (s *Source) run() {
	timer := time.NewTimer(poll)
	defer timer.Stop()
	defer s.readyNow()
	for {
		s.watchCarriers(time.Now())
		for s.step() {
		}
		s.publish(time.Now())
		s.readyNow()
		timer.Reset(s.pause(time.Now()))
		select {
		case <-s.ctx.Done():
			return
		case <-s.hcas.Changed():
			s.search(time.Now())
			s.again = true
		case <-s.links.Changed():
		case <-timer.C:
		}
	}
}

// pause returns the time until the next round, if no change is announced before: until a call is due.
func (s *Source) pause(now time.Time) time.Duration {
	if s.hanging != nil || s.tool != nil { // the tool's results come at any time
		return poll
	}
	next := s.searched.Add(s.searchInterval())
	for _, n := range s.netdevs {
		if n.due.Before(next) {
			next = n.due
		}
	}
	return min(max(poll, next.Sub(now)), s.links.Interval(poll))
}

// searchInterval returns the time between two searches for interfaces.
func (s *Source) searchInterval() time.Duration {
	if s.others.Load() {
		return interval
	}
	return s.links.Interval(interval)
}

// search makes the next round search for interfaces.
func (s *Source) search(now time.Time) {
	s.others.Store(true)
	s.searched = now.Add(-interval)
}

func (s *Source) readyNow() {
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

func (s *Source) step() bool {
	if h := s.hanging; h != nil {
		if !h.Returned() {
			return false
		}
		s.hanging = nil
		s.finish(h, false)
	}
	if s.ctx.Err() != nil {
		return false
	}
	j := s.start(time.Now())
	if j == nil {
		return false
	}
	s.publish(time.Now()) // it may hang
	if _, err := j.Wait(s.ctx); errors.Is(err, hang.ErrStuck) {
		s.hanging = j
		return false
	}
	s.finish(j, true)
	return true
}

// start starts the call that has been due for the longest time, if the budget allows.
func (s *Source) start(now time.Time) *job {
	if now.Sub(s.searched) >= s.searchInterval() || s.searched.IsZero() {
		s.others.Store(s.again)
		s.again = false
		return s.launch(nil, func() (func(), error) {
			found, err := find(s.o.Sysfs, s.chosen)
			if s.tool == nil || !s.o.isSysfs(s.o.Sysfs) {
				return func() { s.update(found, err, now) }, nil
			}
			of, failed := functions(s.o.Sysfs, s.chosen, found)
			return func() {
				s.tool.update(of)
				s.update(found, errors.Join(err, failed), now)
			}, nil
		})
	}
	var next *netdev
	for _, n := range s.netdevs {
		if !now.Before(n.due) && !n.backoff.Waiting(now) && (next == nil || n.due.Before(next.due)) {
			next = n
		}
	}
	if next == nil || !s.budget.open(now) || !s.o.isSysfs(s.o.Sysfs) {
		return nil
	}
	changed := next.changed
	next.changed = false
	return s.launch(next, func() (func(), error) {
		begin := time.Now()
		complete, err := next.read(s.o.kernel, changed, limit)
		facts := next.facts()
		return func() { next.finish(facts, complete, err, begin) }, nil
	})
}

func (s *Source) launch(n *netdev, fn func() (func(), error)) *job {
	// A call may take longer than limit if its last request does.
	return &job{s.call.Start(2*limit, fn), n, time.Now()}
}

func (s *Source) finish(j *job, inTime bool) {
	now := time.Now()
	apply, err := j.Wait(context.Background())
	if j.netdev == nil {
		if s.searched = now; err != nil { // a panic
			s.searchErr = err
			return
		}
		apply()
		return
	}
	n := j.netdev
	if n.due = now.Add(interval); err != nil {
		n.err = err
	} else {
		apply()
	}
	took := now.Sub(j.began)
	s.budget.spend(took)
	if !inTime || took > limit {
		n.backoff.Failed(now)
	} else {
		n.backoff = hang.Backoff{}
	}
}

func (n *netdev) finish(facts model.Link, complete bool, err error, begin time.Time) {
	facts.Read = n.link.Read
	if complete && err == nil {
		facts.Read = begin
	}
	n.link, n.err = facts, err
	n.watch.explain(facts.Phy)
}

// update replaces the interfaces by the found interfaces. A new index means another interface.
func (s *Source) update(found []iface, err error, now time.Time) {
	s.searched, s.searchErr = now, err
	if err != nil {
		return
	}
	netdevs, indexes := make(map[string]*netdev, len(found)), make(map[int]bool, len(found))
	for _, i := range found {
		indexes[i.index], indexes[i.bondIndex] = true, true
		n := s.netdevs[i.name]
		if n == nil || n.index != i.index {
			n = &netdev{due: now, link: model.Link{Netdev: i.name, Driver: i.driver}}
			n.moduleDetail, n.absent[stepModule] = s.o.Module, s.o.Module.Off
		}
		if i.speed == 0 {
			i.speed = n.speed
		}
		n.iface = i
		netdevs[i.name] = n
	}
	s.netdevs = netdevs
	s.indexes.Store(&indexes)
	s.watchCarriers(now) // after indexes: a later change is announced
}

// watchCarriers reads the carriers. An IPoIB interface's carrier is not the link's: it also needs the subnet manager.
func (s *Source) watchCarriers(now time.Time) {
	for _, n := range s.netdevs {
		if n.infiniband {
			continue
		}
		dir := filepath.Join(s.o.Sysfs, "class/net", n.name)
		n.backup = n.bond != "" && readBackup(dir, s.buf)
		n.bondDown = n.follows && readSetDown(filepath.Join(s.o.Sysfs, "class/net", n.bond), s.buf)
		var last carrierReading
		if n.watch != nil {
			last = n.watch.last
		}
		r, ok := readCarrier(dir, s.buf, last)
		switch {
		case !ok:
			s.others.Store(true) // it has another name, or is gone
			continue
		case n.watch == nil:
			n.watch = &carrierWatch{last: r}
			continue
		case r.changes != n.watch.last.changes:
			n.changed, n.due = true, now
			if n.bond != "" { // its speed, too
				s.search(now)
			}
		}
		if flap, ended := n.watch.observe(r, now); ended {
			s.addFlap(n, flap)
		}
	}
}

// addFlap adds a flap to the list, with the first port of the interface.
func (s *Source) addFlap(n *netdev, f model.LinkFlap) {
	s.flapCount++
	f.ID, f.Netdev = s.flapCount, n.name
	if len(n.ports) > 0 {
		f.Device, f.Port = n.ports[0].device, n.ports[0].number
	}
	s.flaps = append(s.flaps, f)
	s.flaps = s.flaps[max(0, len(s.flaps)-maxFlaps):]
}
