// SPDX-License-Identifier: Apache-2.0

// Package rdma reads RDMA devices: attributes and counters from /sys/class/infiniband, hardware
// counters and objects from RDMA netlink.
//
// A scrape consists of system calls, and on hardware each file of counters/ is a firmware
// command. So devices are listed when the kernel announces a change, files are read by pread on
// descriptors that stay open, one netlink request per port reads the hardware counters, and constant
// attributes are read once.
//
// A device in another network namespace (exclusive mode of the RDMA subsystem) is found there
// by a search in the background, and then read like a local device. Physical functions report
// the traffic of virtual functions that have no local HCA, such as functions of virtual machines.
//
// Devices fail independently. The goroutine that reads a device may be abandoned. A
// device that hangs loses only its own values until it returns. A device that fails is read at
// growing intervals. An unreadable file drops only its own counter.
package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/qpcounter"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/pkg/source/rdma/vf"
)

// Options configure a Source. The zero value reads all devices of /sys, without netlink.
type Options struct {
	// Sysfs is the mount point of sysfs; default /sys.
	Sysfs string
	// Include and Exclude select devices by name; nil includes all and excludes none. Files
	// of an excluded device are never opened: drivers of restricted functions log an error
	// at every read.
	Include, Exclude *regexp.Regexp
	// Deadline is the time limit for one device; default 2 s.
	Deadline time.Duration
	// Netlink reads RDMA netlink, only for devices of a real sysfs, never for a copy; nil
	// disables it. It must be created with the same options.
	Netlink *Netlink
	// Holdings reports, at each Read, whether to count objects by process: yes while no
	// probe counts them in the kernel. nil means no.
	Holdings func() bool
	// QPCounters selects the use of counters that mlx5 binds queue pairs to: none ("off" or
	// ""), read the bound ones ("use"), or also bind new queue pairs ("manage"), from the
	// first Read on; the kernel goes on with it after Close. "manage" needs CAP_NET_ADMIN and kernel 6.15. Both need
	// Netlink and CgroupOf.
	QPCounters string
	// CgroupOf returns the cgroup of a process, for these counters and for Holdings; nil if
	// cgroups are not read.
	CgroupOf func(pid int) (model.CgroupID, error)
	// Procfs is the mount point of procfs; default /proc.
	Procfs string
	// Namespaces returns, without delay, the network namespaces of containers. Each Read
	// calls it. Devices moved to one of them are searched there, which needs CAP_SYS_ADMIN.
	// nil means none.
	Namespaces func() []model.Namespace
	// Hotplug announces devices; nil: class/infiniband is listed at each Read.
	Hotplug *hotplug.Watcher
	// Logger receives one line for each state change of a device; default none.
	Logger *zap.Logger
	// Now is the clock for backoff; default time.Now.
	Now func() time.Time
}

// keptFiles is the maximum number of files kept open, at most half of RLIMIT_NOFILE. Each costs 4 KiB of kernel memory.
// Further files are opened for each read.
const keptFiles = 8192

// Source reads the RDMA devices of a node.
type Source struct {
	opt Options
	*Netlink
	kept atomic.Int64

	mu      sync.Mutex    // held by Read and Close
	reader  *sysfs.Reader // for the listing
	class   int           // class/infiniband, -1 while not open
	genuine bool          // class is on a real sysfs
	changes *hotplug.Subscription
	changed time.Time // of the last announcement
	listed  time.Time // of the last complete listing
	round   uint64
	known   map[string]*known
	devices []*device          // in the namespace of the sensor, sorted by name
	moved   map[string]*device // in other namespaces, by name
	refused sysfs.Refused      // names of devices in class/infiniband
	logged  map[string]bool
	node    *node // nil after the set of devices changed

	nodeCall     hang.Call[*node]
	resourceCall hang.Call[[]model.Resource]

	functions *vf.Functions

	qps *qpcounter.Counters

	holdings     []model.Holding
	holdingsRead time.Time
}

// known is an entry of class/infiniband; device is nil if the entry is excluded.
type known struct {
	inode  uint64
	round  uint64
	device *device
}

func (o *Options) setDefaults() {
	o.Sysfs, o.Procfs = cmp.Or(o.Sysfs, "/sys"), cmp.Or(o.Procfs, "/proc")
	if o.Deadline <= 0 {
		o.Deadline = 2 * time.Second
	}
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
	}
}

// New creates a Source. It reads nothing yet: Read reports missing HCAs.
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
		reader:  sysfs.NewReader(),
		class:   -1,
		changes: o.Hotplug.Devices("infiniband"),
		known:   map[string]*known{},
		logged:  map[string]bool{},

		functions: vf.New(o.Netlink.root, o.Deadline),
	}
	s.qps = qpcounter.New(qpcounter.Options{
		Mode: o.QPCounters, CgroupOf: o.CgroupOf, Netlink: s.enabled,
		Class: s.root, Genuine: func(path string) bool { return s.isSysfs(path) },
		Chosen: s.chosen, Deadline: s.deadline, Now: o.Now, Logger: o.Logger,
	})
	kept := uint64(keptFiles)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err == nil {
		kept = min(kept, limit.Cur/2)
	}
	s.kept.Store(int64(kept))
	return s, nil
}

// Name returns "rdma".
func (s *Source) Name() string { return "rdma" }

// Forget drops the totals of these cgroups.
func (s *Source) Forget(cgroups []model.CgroupID) { s.qps.Forget(cgroups) }

// Close ends the manager of queue pair counters, which leaves queue pairs bound. Then it waits for
// a Read in progress and closes all descriptors. A hanging device closes its own when it returns.
func (s *Source) Close() error {
	s.qps.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, k := range s.known {
		s.drop(name, k)
	}
	s.devices = nil
	s.readableMoved(nil)
	s.closeClass()
	return nil
}

// Read fills HCAs, including those in other network namespaces, DeviceStates, recent VFs and,
// through netlink, Resources, Domains, Holdings and Traffic. Without an HCA it returns ErrAbsent.
// DeviceStates report the failures of single devices; the error covers all devices.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.opt.Now()
	if err := s.discover(now); err != nil {
		return model.Snapshot{}, fmt.Errorf("rdma: %w", err)
	}
	s.qps.Manage(s.dial)
	var spaces []uint64
	if s.searches() {
		spaces = s.search.start(s.opt.Namespaces(), now)
	}
	moved := s.readableMoved(spaces)
	seen := len(s.devices)
	devices := append(s.devices[:seen:seen], moved...)
	snap := model.Snapshot{
		HCAs:         make([]model.HCA, 0, len(devices)),
		DeviceStates: make([]model.DeviceState, 0, len(devices)+1),
	}
	var n *node
	if seen > 0 || s.searches() {
		n = s.readNode(ctx)
	}
	round := hang.NewRound(len(devices)+1, sysfs.InFlight)
	resources := s.queueResources(round, seen > 0)
	for _, d := range devices {
		s.queueDevice(round, d, now, n)
	}
	round.Wait(ctx)
	var resourceErr error
	snap.Resources, resourceErr = s.answerResources(resources, seen > 0)
	readings := make([]*reading, len(devices))
	for i, d := range devices {
		readings[i] = s.answerDevice(d, now)
	}

	for _, r := range readings {
		if r != nil {
			snap.HCAs = append(snap.HCAs, r.hca)
			snap.Resources = append(snap.Resources, r.resources...)
			snap.Domains = append(snap.Domains, r.domains...)
			snap.KernelIDs = append(snap.KernelIDs, r.kernelIDs...)
		}
	}
	slices.SortFunc(snap.HCAs, func(a, b model.HCA) int { return strings.Compare(a.Name, b.Name) })
	findManagement(snap.HCAs)
	for _, d := range devices {
		snap.DeviceStates = append(snap.DeviceStates, d.state)
	}
	snap.DeviceStates = append(snap.DeviceStates, s.search.state(spaces, now)...)
	snap.DeviceStates = append(snap.DeviceStates, s.hidden(n, moved, now)...)
	snap.Traffic = s.qps.Traffic(snap.DeviceStates)
	snap.DeviceStates = append(snap.DeviceStates, s.qps.States()...)
	snap.DeviceStates = append(snap.DeviceStates, s.refusedState(readings)...)
	if len(readings) == 0 {
		return snap, s.absent()
	}
	vfs, states := s.functions.Read(snap.HCAs, s.enabled && s.genuine, now)
	snap.VFs, snap.DeviceStates = vfs, append(snap.DeviceStates, states...)
	if seen > 0 {
		snap.Holdings = s.readHoldings(ctx, now)
	}
	return snap, resourceErr
}

// absent returns the reason why there is nothing to read.
func (s *Source) absent() error {
	reason := fmt.Errorf("no device in %s: load the driver of the HCA", s.root)
	if n := len(s.known); n > 0 {
		reason = fmt.Errorf("all %d devices of %s are excluded by the device filters", n, s.root)
	}
	return model.WithReason(reason, model.ErrAbsent)
}

// queueDevice adds the calls for a device to round, unless the device is paused.
func (s *Source) queueDevice(round *hang.Round, d *device, now time.Time, n *node) {
	if d.pause.Waiting(now) {
		return
	}
	if d.found != nil {
		n = d.found.node
	}
	d.queue(round, s.opt.Deadline, now, n)
}

// answerDevice returns what was read of a device. For a device in another namespace that could not be read it returns a
// reading without counters.
func (s *Source) answerDevice(d *device, now time.Time) *reading {
	r := s.judgeDevice(d, now)
	switch {
	case d.found == nil:
	case r == nil:
		r = &reading{hca: d.found.hca}
	default:
		r.hca.Index, r.hca.Netns = d.found.hca.Index, d.found.hca.Netns
	}
	return r
}

// judgeDevice sets the state of a device. It returns nil if no value could be read. The state of a device with only
// failing counters is failed.
func (s *Source) judgeDevice(d *device, now time.Time) *reading {
	if d.pause.Waiting(now) {
		return nil
	}
	r, err := d.answer()
	if err == nil {
		err = d.unreadable(&r)
	}
	state, reason := model.StateOK, ""
	switch {
	case errors.Is(err, hang.ErrStuck):
		state, reason = model.StateStuck, fmt.Sprintf("%v: its driver may hang", err)
	case errors.Is(err, sysfs.ErrGone):
		state, reason = model.StateAbsent, err.Error()
	case err != nil:
		state, reason = model.StateFailed, err.Error()
		if d.pause.Failed(now); d.pause.Waiting(now) {
			state = model.StateQuarantined
			reason = fmt.Sprintf("not read for %v: %v", d.pause.Left(now), err)
		}
	default:
		d.pause = hang.Backoff{}
		if err := r.err(); err != nil {
			reason = err.Error()
		} else if n := r.counters.Silent; n > 0 {
			reason = fmt.Sprintf("without counters: %d files never had a value, the first ones are in %s", n, r.counters.SilentIn)
		}
		switch c := r.counters; {
		case errors.Is(r.query, hang.ErrStuck):
			state = model.StateStuck
			reason = fmt.Sprintf("state, rate and LIDs of its ports: %v: its driver, or that of a network interface, may hang", r.query)
		case r.query != nil:
			state, reason = model.StateFailed, fmt.Sprintf("state, rate and LIDs of its ports: %v", r.query)
		case c.Good+c.Bad == 0 && c.Silent > 0:
			state = model.StateUnsupported
		case c.Good > 0 || c.Bad == 0:
		case c.Paused == c.Bad:
			state = model.StateQuarantined // the ports are still reported
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
