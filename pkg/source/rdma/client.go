// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// Netlink reads RDMA netlink. Other sources list objects and device names with it.
type Netlink struct {
	enabled          bool
	root             string // path of class/infiniband
	include, exclude *regexp.Regexp
	deadline         time.Duration
	dial             func() (*nldev.Conn, error)
	isSysfs          func(path string) bool

	listCall    hang.Call[[]nldev.Device]
	objectCalls hang.Group[string, []model.Object] // by device; limited by maxHungDevices
	countCall   hang.Call[map[model.ObjectTable]uint64]
	search      search // for devices in other network namespaces, which a Source starts
}

// NewNetlink returns a client for the devices that o chooses. It opens nothing yet.
func NewNetlink(o Options) *Netlink {
	o.setDefaults()
	n := newNetlink(o)
	n.enabled = true
	return n
}

func newNetlink(o Options) *Netlink {
	n := &Netlink{
		root:    filepath.Join(o.Sysfs, "class/infiniband"),
		include: o.Include, exclude: o.Exclude, deadline: o.Deadline,
		dial: nldev.Dial, isSysfs: hotplug.IsSysfs,
	}
	n.objectCalls.Limit = maxHungDevices
	n.search.netlink, n.search.sysfs, n.search.procfs = n, o.Sysfs, o.Procfs
	n.search.in = func(of model.Namespace) opener {
		space := namespace{of, o.Procfs, n.dial}
		return opener{space.dial, space.open}
	}
	return n
}

// maxHungDevices is more than the virtual functions that hang with their physical function, so that other HCAs are
// still listed.
const maxHungDevices = 128

// opener opens the devices in class/infiniband, and RDMA netlink in the sensor's network namespace.
func (n *Netlink) opener() opener {
	return opener{n.dial, func(device string) (int, error) {
		return boundedfile.Open(unix.AT_FDCWD, n.root+"/"+device, unix.O_DIRECTORY)
	}}
}

func (n *Netlink) chosen(name string) bool {
	return (n.include == nil || n.include.MatchString(name)) && (n.exclude == nil || !n.exclude.MatchString(name))
}

// Objects dumps the RDMA objects of processes on all devices, of the given types or of all types, from the resource
// tracking of the kernel. The driver queries the firmware for each QP, so QPs are listed at the start and to reconcile,
// never in a scrape. With an error it returns the objects of the dumps that succeeded.
func (n *Netlink) Objects(ctx context.Context, types ...model.ObjectType) ([]model.Object, error) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(10 * time.Second)
	}
	limit := time.Until(deadline)
	all, err := n.listDevices(ctx, deadline)
	if err != nil {
		return nil, fmt.Errorf("rdma: objects: %w", err)
	}
	devices := slices.DeleteFunc(all, func(d nldev.Device) bool { return !n.chosen(d.Name) })
	found := make([][]model.Object, len(devices))
	errs := make([]error, len(devices))
	safely.Each(len(devices), sysfs.InFlight, func(i int) {
		d := devices[i]
		found[i], errs[i] = n.objectCalls.Do(ctx, d.Name, limit, func() ([]model.Object, error) {
			return nldev.Objects(n.dial, d, types, deadline)
		})
		if errs[i] != nil {
			errs[i] = fmt.Errorf("rdma: objects of %s: %w", d.Name, errs[i])
		}
	})
	objects := slices.Concat(found...)
	if objects == nil {
		objects = []model.Object{} // listed, and empty
	}
	return objects, errors.Join(errs...)
}

// ObjectCounts returns the number of objects in each table of the kernel's resource tracking, kernel objects included
// (RES_GET). It needs no driver. With an error, devices are missing.
func (n *Netlink) ObjectCounts(ctx context.Context) (map[model.ObjectTable]uint64, error) {
	deadline := time.Now().Add(n.deadline)
	devices, err := n.listDevices(ctx, deadline)
	if err != nil {
		return nil, fmt.Errorf("rdma: number of objects: %w", err)
	}
	counts, err := n.countCall.Do(ctx, n.deadline, func() (map[model.ObjectTable]uint64, error) {
		return n.countObjects(devices, deadline)
	})
	if err != nil {
		return counts, fmt.Errorf("rdma: number of objects: %w", err)
	}
	return counts, nil
}

func (n *Netlink) countObjects(devices []nldev.Device, deadline time.Time) (map[model.ObjectTable]uint64, error) {
	counts := map[model.ObjectTable]uint64{}
	c, err := n.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var errs []error
	for _, d := range devices {
		if !n.chosen(d.Name) {
			continue
		}
		all, err := c.Resources(d.Index, true, deadline)
		for _, r := range all {
			counts[model.ObjectTable{Index: d.Index, Type: r.Type}] = r.Count
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", d.Name, err))
		}
	}
	return counts, errors.Join(errs...)
}

// DeviceNames returns the current device names by RDMA netlink index, which a rename does not change. Devices in other
// network namespaces have the names that the last search found.
func (n *Netlink) DeviceNames(ctx context.Context) (map[uint32]string, error) {
	all, err := n.listDevices(ctx, time.Now().Add(n.deadline))
	if err != nil {
		return nil, fmt.Errorf("rdma: device names: %w", err)
	}
	names := make(map[uint32]string, len(all))
	for _, f := range n.search.latest() {
		names[f.hca.Index] = f.hca.Name
	}
	for _, d := range all {
		names[d.Index] = d.Name
	}
	return names, nil
}

func (n *Netlink) listDevices(ctx context.Context, deadline time.Time) ([]nldev.Device, error) {
	if !n.enabled {
		return nil, fmt.Errorf("%w: RDMA netlink is switched off", model.ErrUnsupported)
	}
	// A netlink request would load ib_core.
	if names, err := os.ReadDir(n.root); len(names) == 0 && (err == nil || errors.Is(err, os.ErrNotExist)) {
		return nil, nil
	}
	if !n.isSysfs(n.root) {
		return nil, fmt.Errorf("%w: %s is not in a sysfs", model.ErrUnsupported, n.root)
	}
	return n.listCall.Do(ctx, time.Until(deadline), func() ([]nldev.Device, error) {
		return nldev.Devices(n.dial, deadline)
	})
}
