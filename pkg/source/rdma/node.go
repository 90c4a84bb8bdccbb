// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// noIndex stands for a device that netlink does not know: 0 is an index.
const noIndex = math.MaxUint32

// nodeRetry is after what time the node is read again when it lacks something:
// a device shows in sysfs before netlink and uverbs know it.
const nodeRetry = 15 * time.Second

// node is what is read for all devices together, once for each set of devices.
type node struct {
	read    time.Time
	whole   bool // nothing is missing
	uverbs  map[string]charDevice
	devices map[string]nlDevice // what netlink knows, by name
	dial    func() (*conn, error)
	open    func(device string) (int, error) // its directory; nil for that in class/infiniband
	away    bool                             // in another namespace: the dump of readResources hides it
}

// index gives the netlink index of the device that the files show.
func (n *node) index(name, guid string) uint32 {
	if d, ok := n.devices[name]; ok && d.guid == guid {
		return d.index
	}
	return noIndex
}

// readNode gives what is known when the answer does not come in time, and asks
// again at the next read. It takes a quarter of the time at most: the devices,
// which wait for it, need the rest.
func (s *Source) readNode(ctx context.Context) *node {
	now := s.opt.Now()
	if s.node != nil && (s.node.whole || now.Sub(s.node.read) < nodeRetry) {
		return s.node
	}
	verbs := filepath.Join(s.opt.Sysfs, "class/infiniband_verbs")
	patience := s.opt.Deadline / 4
	deadline := time.Now().Add(patience)
	netlink := s.enabled && s.genuine
	n, err := s.nodeCall.Do(ctx, patience, func() (*node, error) {
		n := &node{uverbs: charDevices(verbs), dial: s.dial}
		if !netlink {
			return n, nil
		}
		devices, err := dump(s.dial, request{cmd: cmdGet}, deadline, parseDevice)
		if err != nil {
			return n, err
		}
		n.devices = map[string]nlDevice{}
		for _, d := range devices {
			n.devices[d.name] = d
		}
		return n, nil
	})
	if err != nil && s.node == nil {
		s.opt.Logger.Info("RDMA devices are read without netlink", zap.Error(err))
	}
	switch {
	case n != nil:
		n.read, n.whole = now, s.whole(n, netlink)
		s.node = n
	case s.node == nil:
		return &node{}
	}
	return s.node
}

// whole says whether n knows all devices.
func (s *Source) whole(n *node, netlink bool) bool {
	for _, d := range s.devices {
		if _, ok := n.devices[d.name]; netlink && !ok || n.uverbs[d.name].name == "" {
			return false
		}
	}
	return true
}

// charDevice is the uverbs device of an HCA.
type charDevice struct {
	name string // uverbsN
	pci  string // the function behind it
}

// charDevices reads which uverbsN belongs to which device, by its name
// (/sys/class/infiniband_verbs/uverbsN/ibdev). This class has no namespaces:
// those of devices that were moved to another one are there, too. Of two devices
// of the same name, in different namespaces, nothing is said.
func charDevices(dir string) map[string]charDevice {
	r := reader{buffer: make([]byte, bufferSize), kept: new(atomic.Int64)}
	fd, err := r.openat(unix.AT_FDCWD, dir, unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer r.close(fd)
	names, err := r.list(fd, func(name string) bool { return validDevice(name) && name != "abi_version" })
	if err != nil {
		return nil
	}
	of := map[string]charDevice{}
	for _, name := range names {
		device := r.line(fd, name+"/ibdev")
		if device == "" {
			continue
		}
		if _, twice := of[device]; twice {
			of[device] = charDevice{}
			continue
		}
		path := dir + "/" + name
		of[device] = charDevice{name: name, pci: pciAddress(r.link(path) + "/" + r.link(path+"/device"))}
	}
	return of
}

// readResources asks how many objects each device in sight has (RES_GET). It gives
// nil without an error where the kernel cannot tell.
func (s *Source) readResources(ctx context.Context) ([]model.Resource, error) {
	deadline := time.Now().Add(s.opt.Deadline)
	all, err := s.resourceCall.Do(ctx, s.opt.Deadline, func() ([]model.Resource, error) {
		return dump(s.dial, request{cmd: cmdResGet}, deadline, parseSummary)
	})
	if errors.Is(err, model.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("rdma: resources: %w", err)
	}
	mine := all[:0]
	for _, r := range all {
		if s.chosen(r.Device) {
			mine = append(mine, r)
		}
	}
	return mine, nil
}
