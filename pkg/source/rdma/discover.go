// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// moving is the longest time from the first announcement of a change until class/infiniband shows it. A device that
// moves to another network namespace is announced, then its clients detach, and then the device leaves
// (rdma_dev_change_netns).
const moving = 10 * time.Second

// unchanged reports whether class/infiniband has the devices of the last listing.
func (s *Source) unchanged(now time.Time) bool {
	select {
	case <-s.changes.Changed():
		s.changed = now
	default:
	}
	return s.listed.After(s.changed.Add(moving)) && now.Sub(s.listed) < s.changes.Interval(0)
}

// discover updates the set of devices by listing class/infiniband, unless it is unchanged. A device that was removed
// and came back has another inode.
func (s *Source) discover(now time.Time) error {
	if s.unchanged(now) {
		return nil
	}
	s.listed = time.Time{}
	s.round++
	seen, err := s.list()
	if err != nil || seen == 0 {
		// The open directory stays empty after the modules were unloaded.
		s.closeClass()
		if seen, err = s.list(); err != nil {
			return err
		}
	}
	s.listed = now
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

// list marks the present devices and returns their number.
func (s *Source) list() (seen int, err error) {
	s.refused = nil
	if s.class < 0 {
		fd, err := s.reader.Openat(unix.AT_FDCWD, s.root, unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w", s.root, err)
		}
		s.class, s.genuine = fd, s.isSysfs(s.root)
	}
	err = s.reader.Entries(s.class, func(e boundedfile.Entry) {
		k, ok := s.known[string(e.Name)]
		if ok && k.inode == e.Inode {
			k.round = s.round
			seen++
			return
		}
		name := string(e.Name)
		switch why := sysfs.WhyRefused(name, sysfs.MaxDeviceName); {
		case name == "." || name == "..":
			return
		case why != "":
			s.refused.Add("device", name, why)
			return
		case seen >= sysfs.MaxDevices:
			s.refused.Add("device", name, fmt.Sprintf("there are more than %d", sysfs.MaxDevices))
			return
		}
		if ok {
			s.drop(name, k)
		}
		s.node = nil
		k = &known{inode: e.Inode, round: s.round}
		if s.chosen(name) {
			path := filepath.Join(s.root, name)
			k.device = s.newDevice(name, path, path+"/device")
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
		s.reader.Close(s.class)
		s.class = -1
	}
}
