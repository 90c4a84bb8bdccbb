// SPDX-License-Identifier: Apache-2.0

// Package rdma reads what the kernel tells of RDMA devices: their attributes
// and counters from /sys/class/infiniband, the driver's counters and the
// objects that exist from RDMA netlink.
//
// A scrape is system calls, and on hardware every file of counters/ is a
// command to the firmware. So discovery is one directory listing, files are
// read by pread on descriptors that stay open, the driver's counters come from
// one netlink request per port, and nothing that does not move is read twice.
//
// A device in another network namespace (see the exclusive mode of the RDMA
// subsystem) is looked for there, in the background, and then read as those in
// sight are. What virtual functions do that are out of sight altogether, in virtual
// machines, their physical functions tell.
//
// Devices fail alone. Each is read in a goroutine of its own that can be given
// up; one that hangs costs its own figures until it comes back, one that only
// fails is left alone for longer and longer, and a file that fails costs
// itself.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options are what a Source can be told. The zero value reads all devices of
// /sys, without netlink.
type Options struct {
	// Sysfs is where sysfs is mounted; default /sys.
	Sysfs string
	// Include and Exclude choose devices by name; nil includes all and
	// excludes none. No file of a device that is left out is ever opened: the
	// drivers of restricted functions log an error at every read.
	Include, Exclude *regexp.Regexp
	// Deadline is how long one device may take; default 2 s.
	Deadline time.Duration
	// KeptFiles is how many files may stay open; default 4096, and never more
	// than half of what the process may open. Each costs the kernel 4 KiB.
	// What is above is opened for each read.
	KeptFiles int
	// Netlink reads RDMA netlink, for devices of a real sysfs only, never for a copy of one;
	// nil does without. It is made of the same options.
	Netlink *Netlink
	// Holdings is asked at each Read whether objects are to be counted by
	// process, as they are while no probe counts them in the kernel. nil is no.
	Holdings func() bool
	// QPCounters says what may be done with the counters that mlx5 binds queue
	// pairs to: nothing (off, or empty), reading those that are bound already (use),
	// or binding new ones (manage), from the first Read until Close, which needs
	// CAP_NET_ADMIN and kernel 6.15. Both take Netlink and CgroupOf.
	QPCounters string
	// CgroupOf returns the cgroup of a process, for these counters and for Holdings; nil if
	// cgroups are not read.
	CgroupOf func(pid int) (uint64, error)
	// Procfs is where procfs is mounted; default /proc.
	Procfs string
	// Namespaces tells the network namespaces that containers are in, at each
	// Read and without delay. Devices that were moved to one of them are looked
	// for in it, which needs CAP_SYS_ADMIN. nil is none.
	Namespaces func() []model.Namespace
	// Logger is told once about each change of a device; default none.
	Logger *zap.Logger
	// Now is the clock of the pauses; default time.Now.
	Now func() time.Time
}

// Source reads the RDMA devices of a node.
type Source struct {
	opt Options
	*Netlink
	// devicesIn tells what a network namespace shows, dialIn opens RDMA netlink and
	// openIn the directory of a device there. dialLink opens rtnetlink.
	devicesIn func(n model.Namespace) ([]nlDevice, error)
	dialIn    func(n model.Namespace) (*conn, error)
	openIn    func(n model.Namespace, device string) (int, error)
	dialLink  func() (*conn, error)
	kept      atomic.Int64

	mu      sync.Mutex // held by Read and Close
	reader  reader     // for the listing
	class   int        // class/infiniband, -1 while not open
	genuine bool       // it is on sysfs
	round   uint64
	known   map[string]*known
	devices []*device // sorted by name
	node    *node     // nil when the set of devices changed since it was read

	nodeCall     hang.Call[*node]
	resourceCall hang.Call[[]model.Resource]

	functions functions

	qpTotals qpTotals

	// Close ends the manager whatever a Read waits for.
	managerMu sync.Mutex
	manager   *manager // nil until Read begins it, and after Close
	unmanaged bool     // Close was called

	holdings     []model.Holding
	holdingsRead time.Time
}

// known is a name in class/infiniband; device is nil when it is left out.
type known struct {
	inode  uint64
	round  uint64
	device *device
}

func (o *Options) setDefaults() {
	if o.Sysfs == "" {
		o.Sysfs = "/sys"
	}
	if o.Procfs == "" {
		o.Procfs = "/proc"
	}
	if o.Deadline <= 0 {
		o.Deadline = 2 * time.Second
	}
	if o.KeptFiles == 0 {
		o.KeptFiles = 4096
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// New makes a Source. It reads nothing yet; that there is no HCA is what Read
// says.
func New(o Options) (*Source, error) {
	o.setDefaults()
	if st, err := os.Stat(o.Sysfs); err != nil {
		return nil, fmt.Errorf("rdma: sysfs: %w", err)
	} else if !st.IsDir() {
		return nil, fmt.Errorf("rdma: sysfs: %s is not a directory", o.Sysfs)
	}
	if o.Netlink == nil {
		o.Netlink = newNetlink(o)
	}
	s := &Source{
		opt:     o,
		Netlink: o.Netlink,
		reader:  reader{buffer: make([]byte, bufferSize)},
		class:   -1,
		known:   map[string]*known{},
	}
	s.devicesIn, s.dialIn, s.openIn = s.namespaceDevices, s.dialNamespace, s.openNamespace
	s.dialLink = dialLink
	kept := uint64(max(o.KeptFiles, 0))
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		kept = min(kept, limit.Cur/2)
	}
	s.kept.Store(int64(kept))
	return s, nil
}

// Name is "rdma".
func (s *Source) Name() string { return "rdma" }

// Close gives back what was set to count queue pairs, within Options.Deadline, of
// which an error tells what is not as before, and then all descriptors, when the
// Read that is under way has ended. A device that hangs gives back its own when it
// comes back.
func (s *Source) Close() error {
	unmanaged := s.stopManaging()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.known {
		s.drop(name, k)
	}
	s.devices = nil
	s.movedInSight(nil)
	s.closeClass()
	return unmanaged
}

// Read fills HCAs, those in other network namespaces included, DeviceStates, VFs as
// they were a moment ago and, through netlink, Resources, Holdings and Traffic.
// Without an HCA it gives ErrAbsent. What goes wrong with one device is said
// in its DeviceState; the error is about what concerns all of them.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.discover(); err != nil {
		return model.Snapshot{}, fmt.Errorf("rdma: %w", err)
	}
	s.manage()
	now := s.opt.Now()
	spaces := s.lookForMoved(now)
	moved := s.movedInSight(spaces)
	seen := len(s.devices)
	snap := model.Snapshot{
		HCAs:         make([]model.HCA, 0, seen+len(moved)),
		DeviceStates: make([]model.DeviceState, 0, seen+len(moved)+1),
	}
	var resourceErr error
	var wg sync.WaitGroup
	var n *node
	if seen == 0 {
		snap.Resources = []model.Resource{}
	} else {
		n = s.readNode(ctx)
		if s.enabled && s.genuine {
			wg.Go(func() { snap.Resources, resourceErr = s.readResources(ctx) })
		}
	}
	readings := make([]*reading, seen+len(moved))
	each(len(readings), func(i int) {
		if i < seen {
			readings[i] = s.readDevice(ctx, s.devices[i], now, n)
		} else {
			readings[i] = s.readMoved(ctx, moved[i-seen], now)
		}
	})
	wg.Wait()

	for _, r := range readings {
		if r != nil {
			snap.HCAs = append(snap.HCAs, r.hca)
			snap.Resources = append(snap.Resources, r.resources...)
		}
	}
	slices.SortFunc(snap.HCAs, func(a, b model.HCA) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range s.devices {
		snap.DeviceStates = append(snap.DeviceStates, d.state)
	}
	for _, d := range moved {
		snap.DeviceStates = append(snap.DeviceStates, d.state)
	}
	snap.DeviceStates = append(snap.DeviceStates, s.movedState(spaces, now)...)
	snap.Traffic = s.qpTraffic(snap.DeviceStates)
	snap.DeviceStates = append(snap.DeviceStates, s.counterStates()...)
	if len(readings) == 0 {
		return snap, s.absent()
	}
	vfs, states := s.readFunctions(snap.HCAs, now)
	snap.VFs, snap.DeviceStates = vfs, append(snap.DeviceStates, states...)
	if seen > 0 {
		snap.Holdings = s.readHoldings(ctx, now)
	}
	return snap, resourceErr
}

// absent says why there is nothing to read.
func (s *Source) absent() error {
	if n := len(s.known); n > 0 {
		return absent(fmt.Sprintf("all %d devices of %s are left out by the device filters", n, s.root))
	}
	return absent(fmt.Sprintf("no device in %s: load the driver of the HCA", s.root))
}

// absent is ErrAbsent in words of its own: who tells it says the state already.
type absent string

func (a absent) Error() string { return string(a) }

func (absent) Unwrap() error { return model.ErrAbsent }

// readDevice gives nil when there are no figures; the device's state says why.
// One whose counters all fail has the state of one that failed.
func (s *Source) readDevice(ctx context.Context, d *device, now time.Time, n *node) *reading {
	if d.pause.Waiting(now) {
		return nil
	}
	deadline := time.Now().Add(s.opt.Deadline)
	r, err := d.call.Do(ctx, s.opt.Deadline, func() (reading, error) { return d.read(now, deadline, n) })
	if err == nil && r.none() {
		err = r.err()
	}
	state, reason := model.StateOK, ""
	switch {
	case errors.Is(err, hang.ErrStuck):
		state, reason = model.StateStuck, fmt.Sprintf("%v: its driver may hang", err)
	case errors.Is(err, errGone):
		state, reason = model.StateAbsent, err.Error()
	case err != nil:
		state, reason = model.StateFailed, err.Error()
		if d.pause.Failed(now); d.pause.Waiting(now) {
			state = model.StateQuarantined
			reason = fmt.Sprintf("left alone for %v: %v", d.pause.Left(now), err)
		}
	default:
		d.pause = hang.Backoff{}
		if err := r.err(); err != nil {
			reason = err.Error()
		}
		switch c := r.counters; {
		case c.good > 0 || c.bad == 0:
		case c.paused == c.bad:
			state = model.StateQuarantined // its ports are told all the same
		default:
			state = model.StateFailed
		}
	}
	if state != d.state.State {
		s.opt.Logger.Info("RDMA device", zap.String("device", d.name), zap.String("state", string(state)),
			zap.String("reason", reason))
	}
	d.state = model.DeviceState{Source: s.Name(), Device: d.name, State: state, Reason: reason}
	if err != nil {
		return nil
	}
	return &r
}

// discover brings the set of devices up to date by listing class/infiniband. A
// device that was removed and came back has another inode.
func (s *Source) discover() error {
	s.round++
	seen, err := s.list()
	if err != nil || seen == 0 {
		// The directory of modules that were unloaded stays empty for ever.
		s.closeClass()
		if seen, err = s.list(); err != nil {
			return err
		}
	}
	if seen == len(s.known) && s.node != nil {
		return nil
	}
	s.devices = s.devices[:0]
	for name, k := range s.known {
		switch {
		case k.round != s.round:
			s.drop(name, k)
		case k.device != nil:
			s.devices = append(s.devices, k.device)
		}
	}
	slices.SortFunc(s.devices, func(a, b *device) int { return strings.Compare(a.name, b.name) })
	return nil
}

// list marks what is there and returns how many names are.
func (s *Source) list() (seen int, err error) {
	if s.class < 0 {
		fd, err := s.reader.openat(unix.AT_FDCWD, s.root, unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.root, err)
		}
		s.class, s.genuine = fd, s.isSysfs(s.root)
	}
	err = s.reader.entries(s.class, func(e entry) {
		k, ok := s.known[string(e.name)]
		if ok && k.inode == e.inode {
			k.round = s.round
			seen++
			return
		}
		name := string(e.name)
		if !validDevice(name) || seen >= maxDevices {
			return
		}
		if ok {
			s.drop(name, k)
		}
		s.node = nil
		k = &known{inode: e.inode, round: s.round}
		if s.chosen(name) {
			k.device = newDevice(name, filepath.Join(s.root, name), &s.kept)
			k.device.bound = s.newBoundCounters(name)
		}
		s.known[name] = k
		seen++
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", s.root, err)
	}
	return seen, nil
}

func (s *Source) drop(name string, k *known) {
	delete(s.known, name)
	s.node = nil
	if k.device != nil {
		k.device.release()
	}
}

func (s *Source) closeClass() {
	if s.class >= 0 {
		s.reader.close(s.class)
		s.class = -1
	}
}

// isSysfs tells the kernel's own tree from a copy, of which netlink knows nothing.
func isSysfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.SYSFS_MAGIC
}
