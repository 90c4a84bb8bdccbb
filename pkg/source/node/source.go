// SPDX-License-Identifier: Apache-2.0

// Package node reads the state of the node: the values of node_exporter (1.12) for its collectors cpu, diskstats,
// entropy, filefd, filesystem, hwmon, loadavg, meminfo, netclass, netdev, netstat, os, pressure, rapl, sockstat, stat,
// time, uname and vmstat, with the defaults of its flags. A test of cmd/accelscope compares them series for series with
// node_exporter.
//
// Missing series of these collectors: node_cpu_online, node_cpu_isolated, and node_filesystem_purgeable_bytes, a value
// of macOS that is 0 on Linux. Missing default collectors: arp, bcache, bcachefs, bonding, btrfs, conntrack, cpufreq,
// dmi, dmmultipath, edac, fibrechannel, ipvs, kernel_hung, mdadm, nfs, nfsd, nvme, powersupplyclass, schedstat,
// selinux, softnet, tapestats, textfile, thermal_zone, timex, udp_queues, watchdog, xfs and zfs. The package metrics
// has the collector infiniband as a compatibility set. Every line of /proc/meminfo is read, as in node_exporter before
// 1.12, which has a list.
//
// Namespaces: in a container /proc/net and /proc/self show the container's own namespaces. So mount points, interfaces
// and protocols are read below /proc/1, which shows the node's namespaces if the container sees the node's processes,
// and below /proc/self only if /proc/1 cannot be read. sysfs shows the interfaces of the network namespace in which it
// was mounted: if they differ from /proc/1/net/dev, netclass fails with an error. Mount points are accessed below the
// node's root.
//
// Read runs at each scrape, so values that change rarely (limits of sensors, addresses of interfaces, properties from
// udev) are cached for a minute, or until the device is replaced or changes its state.
//
// A failing part does not affect the others, and has a state as a device of this source. A part is left out if the
// kernel lacks its files. Parts that may hang in a driver (network interfaces, sensors, mount points) delay one Read by
// about a second, and are left out until they answer.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/sysfs"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

const (
	// callTimeout is the time limit of a call that may hang: statfs of a mount point, and with a quarter more a part.
	callTimeout = time.Second
	// coldAge is the maximum age of cached values that change rarely.
	coldAge = time.Minute
)

// Options of a Source.
type Options struct {
	// Procfs, Sysfs and Root are the mount points of the node's /proc, /sys and /; these are the defaults.
	Procfs, Sysfs, Root string
	Logger              *zap.Logger
	// Now is the clock; default time.Now.
	Now func() time.Time
}

// A Source reads the node.
type Source struct {
	log      *zap.Logger
	now      func() time.Time
	inline   []part
	slow     []*slowPart
	failures map[string]string // of the last read, by part
	skipped  boundedfile.SkippedCount
}

// part is the equivalent of a collector of node_exporter.
type part struct {
	name string
	read func(now time.Time, n *reading) error
}

// reading has the results of parts, and the skipped lines of their files.
type reading struct {
	model.Node
	skipped boundedfile.SkippedFiles
}

// New returns a Source. It fails without a procfs.
func New(o Options) (*Source, error) {
	o.Procfs, o.Sysfs, o.Root = cmp.Or(o.Procfs, "/proc"), cmp.Or(o.Sysfs, "/sys"), cmp.Or(o.Root, "/")
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
	}
	proc, err := procfs.NewFS(o.Procfs)
	if err != nil {
		return nil, fmt.Errorf("procfs: %w", err)
	}
	s := &Source{log: o.Logger, now: o.Now}
	p := &procReader{dir: o.Procfs, lib: proc, clocks: map[string]*cpuClock{}}
	names := newNames()
	disks := &diskReader{reader: &p.reader, procfs: o.Procfs, sysfs: o.Sysfs, root: o.Root}
	s.inline = []part{
		{"time", func(now time.Time, n *reading) error { n.Time = now; return nil }},
		{"uname", readUname},
		{"os", (&osReader{root: o.Root}).read},
		{"loadavg", p.readLoad},
		{"stat", p.readStat},
		{"meminfo", p.readMemory},
		{"pressure", p.readPressure},
		{"filefd", p.readFiles},
		{"entropy", p.readEntropy},
		{"vmstat", func(_ time.Time, n *reading) error { return p.readVM(names, n) }},
		{"netstat", func(_ time.Time, n *reading) error { return p.readNetstat(names, n) }},
		{"sockstat", p.readSockets},
		{"diskstats", disks.read},
	}
	devs := &netDevReader{procfs: o.Procfs, sysfs: o.Sysfs}
	mounts := newMountReader(o.Procfs, o.Root)
	s.slow = []*slowPart{
		{part: part{"filesystem", mounts.read}},
		{part: part{"netdev", devs.read}},
	}
	if sys, err := sysfs.NewFS(o.Sysfs); err == nil {
		classes := &netClassReader{dir: filepath.Join(o.Sysfs, "class/net"), lib: sys, kept: map[string]*netClass{}}
		if procfile.OtherNetwork(o.Procfs) != nil {
			classes.elsewhere = &netDevReader{procfs: o.Procfs}
		}
		sensors := &hwmonReader{dir: filepath.Join(o.Sysfs, "class/hwmon"), kept: map[string]*chip{}}
		cores := &throttleReader{dir: filepath.Join(o.Sysfs, "devices/system/cpu")}
		s.inline = append(s.inline,
			part{"clocksource", func(_ time.Time, n *reading) error { return readClocksources(sys, n) }},
			part{"throttle", cores.read})
		s.slow = append(s.slow,
			&slowPart{part: part{"netclass", classes.read}}, &slowPart{part: part{"hwmon", sensors.read}},
			&slowPart{part: part{"rapl", (&raplReader{sys: sys}).update}})
	}
	return s, nil
}

// Name is "node".
func (s *Source) Name() string { return "node" }

// Close does nothing. A call that hangs ends when the driver answers.
func (s *Source) Close() error { return nil }

// Read reads all parts. An unreadable part has a DeviceState. A part with skipped lines has the state ok and a reason
// that quotes them. Read returns an error if all parts of procfs are unreadable.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	now := s.now()
	n := &reading{}
	out := model.Snapshot{Node: &n.Node}
	before := s.failures
	s.failures = nil
	record := func(name string, err error) {
		s.recordState(&out, before, name, n.skipped, err)
		s.skipped.Count(n.skipped)
		n.skipped = nil
	}
	for _, p := range s.slow {
		p.start(now)
	}
	for _, p := range s.inline {
		record(p.name, p.read(now, n))
	}
	for _, p := range s.slow {
		record(p.name, p.wait(ctx, n))
	}
	for file, lines := range s.skipped.All() {
		out.SkippedLines = append(out.SkippedLines, model.SkippedLines{File: file, Count: lines})
	}
	for i := range n.Filesystems {
		if f := &n.Filesystems[i]; f.Error == errHangs.Error() {
			record("filesystem "+f.MountPoint, errHangs)
		}
	}
	if n.Stat == nil && n.Memory == nil && n.Load == nil {
		return out, fmt.Errorf("nothing in procfs: %w", model.ErrAbsent)
	}
	return out, nil
}

// recordState adds the state of a part that failed or skipped lines, and logs a new failure. Missing files are not a
// failure: the kernel lacks the part.
func (s *Source) recordState(out *model.Snapshot, before map[string]string, name string, skipped boundedfile.SkippedFiles, err error) {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		err = nil
	}
	if err == nil {
		if quote := skipped.String(); quote != "" { // the engine logs the quote
			out.DeviceStates = append(out.DeviceStates,
				model.DeviceState{Source: "node", Device: name, State: model.StateOK, Reason: quote})
		}
		return
	}
	state, reason := model.StateFailed, err.Error()
	switch {
	case errors.Is(err, errHangs):
		state = model.StateStuck
	case errors.Is(err, model.ErrUnsupported):
		state = model.StateUnsupported
	}
	out.DeviceStates = append(out.DeviceStates,
		model.DeviceState{Source: "node", Device: name, State: state, Reason: reason})
	if before[name] != reason {
		s.log.Warn("a part of the node cannot be read", zap.String("part", name), zap.Error(err))
	}
	if s.failures == nil {
		s.failures = map[string]string{}
	}
	s.failures[name] = reason
}

// readUname calls uname(2).
func readUname(_ time.Time, n *reading) error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	n.Uname = &model.Uname{
		Sysname: unix.ByteSliceToString(u.Sysname[:]), Release: unix.ByteSliceToString(u.Release[:]),
		Version: unix.ByteSliceToString(u.Version[:]), Machine: unix.ByteSliceToString(u.Machine[:]),
		Nodename: unix.ByteSliceToString(u.Nodename[:]), Domainname: unix.ByteSliceToString(u.Domainname[:]),
	}
	return nil
}

// readClocksources reads devices/system/clocksource. The label is the index of the device, as in node_exporter.
func readClocksources(sys sysfs.FS, n *reading) error {
	sources, err := sys.ClockSources()
	if err != nil {
		return fmt.Errorf("clock sources: %w", err)
	}
	for i, c := range sources {
		n.Clocksources = append(n.Clocksources, model.Clocksource{
			Device: fmt.Sprint(i), Current: c.Current, Available: slices.Clone(c.Available),
		})
	}
	return nil
}

// clean returns s as valid UTF-8, as node_exporter does. boundedfile.Line would drop bytes.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
