// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// noIndex is the index of a device that netlink does not list: 0 is a valid index.
const noIndex = math.MaxUint32

// nodeRetry is the interval at which an incomplete node is read again: a device appears in sysfs before netlink and
// uverbs list it. What is missing after nodeTries readings stays missing for long, such as a uverbs device whose module
// is not loaded: then the interval is nodeLater.
const (
	nodeRetry = 15 * time.Second
	nodeTries = 4
	nodeLater = 5 * time.Minute
)

// node holds the netlink and uverbs data of all devices. It is read once for each set of
// devices.
type node struct {
	read     time.Time
	tries    int  // number of reads for this set of devices
	complete bool // nothing is missing
	uverbs   map[string]sysfs.CharDevice
	devices  map[string]nldev.Device // devices that netlink lists, by name
	opener
	away bool // in another namespace, so readResources of the Source does not cover it
}

// index returns the netlink index of the device with this name and GUID.
func (n *node) index(name, guid string) uint32 {
	if d, ok := n.devices[name]; ok && d.GUID == guid {
		return d.Index
	}
	return noIndex
}

// readNode returns the data of all devices. If the call takes too long it returns the previous data and calls again at
// the next read. It uses at most a quarter of the deadline, because the device reads wait for it.
func (s *Source) readNode(ctx context.Context) *node {
	now := s.opt.Now()
	if s.node != nil && (s.node.complete || now.Sub(s.node.read) < s.node.wait()) {
		return s.node
	}
	verbs := filepath.Join(s.opt.Sysfs, "class/infiniband_verbs")
	limit := s.opt.Deadline / 4
	deadline := time.Now().Add(limit)
	netlink := s.enabled && s.genuine
	n, err := s.nodeCall.Do(ctx, limit, func() (*node, error) {
		n := &node{uverbs: sysfs.CharDevices(verbs), opener: s.opener()}
		if !netlink {
			return n, nil
		}
		all, err := nldev.Devices(s.dial, deadline)
		if err != nil {
			return n, err
		}
		n.devices = map[string]nldev.Device{}
		for _, d := range all {
			n.devices[d.Name] = d
		}
		return n, nil
	})
	if err != nil && s.node == nil {
		s.opt.Logger.Info("RDMA devices are read without netlink", zap.Error(err))
	}
	switch {
	case n != nil:
		n.read, n.complete, n.tries = now, s.complete(n, netlink), 1
		if s.node != nil {
			n.tries += s.node.tries
		}
		s.node = n
	case s.node == nil:
		return &node{opener: s.opener()}
	}
	return s.node
}

// wait returns the time until an incomplete node is read again.
func (n *node) wait() time.Duration {
	if n.tries < nodeTries {
		return nodeRetry
	}
	return nodeLater
}

// complete reports whether n contains all devices. Management devices have no uverbs device.
func (s *Source) complete(n *node, netlink bool) bool {
	for _, d := range s.devices {
		listed, ok := n.devices[d.name]
		if netlink && !ok || n.uverbs[d.name].Name == "" && !listed.SMI {
			return false
		}
	}
	return true
}

// queueResources adds the call that reads the number of objects of each device in the own network namespace (RES_GET).
func (s *Source) queueResources(round *hang.Round, devices bool) *hang.Pending[[]model.Resource] {
	if !devices || !s.enabled || !s.genuine {
		return nil
	}
	deadline := time.Now().Add(s.opt.Deadline)
	p := s.resourceCall.Queue("resources", s.opt.Deadline, func() ([]model.Resource, error) { return nldev.Resources(s.dial, deadline) })
	if p != nil {
		round.Add(p, nil)
	}
	return p
}

// answerResources returns nil without an error if the numbers are not read, or the kernel does not have them.
func (s *Source) answerResources(p *hang.Pending[[]model.Resource], devices bool) ([]model.Resource, error) {
	if !devices {
		return []model.Resource{}, nil
	}
	if !s.enabled || !s.genuine {
		return nil, nil
	}
	all, err := s.resourceCall.Answer(p)
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
