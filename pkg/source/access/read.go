// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// Read returns DeviceOpens, DeviceHandles, Hooks, Maps and Losses.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: s.hooks}
	if s.sensor == nil {
		clear(s.forget)
		if s.failed != nil {
			return snap, s.failed
		}
		return snap, fmt.Errorf("no driver of HCAs or GPUs: %w", model.ErrAbsent)
	}
	s.totals.Forget(s.forget)
	if s.sensor.counts {
		snap.DenialsUnseen = s.sensor.denialsUnseen
		snap.DeviceOpens = make([]model.Series[model.OpenKey, model.Opens], 0, s.sensor.object.Entries[opensMap])
	}
	opened := map[handle]bool{}
	err := s.sensor.each(func(k gen.DevicesAccessKey, v *gen.DevicesAccessCount) bool {
		if s.forget[model.CgroupID(k.Cgroup)] {
			return true
		}
		snap.DeviceOpens = append(snap.DeviceOpens, model.Series[model.OpenKey, model.Opens]{
			Cgroup: model.CgroupID(k.Cgroup), Key: s.nodeOf(k.Rdev).key(), Value: model.Opens{Allowed: v.Allowed, Denied: v.Denied},
		})
		if v.Allowed > 0 {
			opened[handle{model.CgroupID(k.Cgroup), k.Rdev}] = true
		}
		return false
	})
	if err != nil {
		return snap, err
	}
	snap.DeviceOpens = s.totals.AppendTo(snap.DeviceOpens)
	s.addHandles(&snap, opened)
	err = errors.Join(s.sensor.object.Owners.Settle(s.forget), s.sensor.self(&snap))
	clear(s.forget)
	snap.Losses = append(snap.Losses, model.Loss{Reason: "device_handles_full", Count: s.lost})
	return snap, errors.Join(err, s.files, s.stuck(), hook.Failures(s.hooks))
}

func (s *Source) stuck() error {
	if s.began.IsZero() || time.Since(s.began) < stuckAfter {
		return nil
	}
	return fmt.Errorf("listing open files has not ended since %s: a driver hangs in closing one",
		s.began.UTC().Format(time.RFC3339))
}

func (n node) key() model.OpenKey { return model.OpenKey{Device: n.name, Class: n.class} }

// nodeOf returns the node of a counted number. Its name may be newer than the last scan.
func (s *Source) nodeOf(rdev uint32) node {
	class, known := s.nodes.classes[rdev>>minorBits], s.nodes.named[rdev]
	if known.name == "" && class != "" && rdev&minorMask != minorMask {
		s.nodes.link(s.o.Sysfs, rdev, class)
	}
	return s.nodes.of(rdev)
}

// addHandles adds the open files of the last listing, and zeros for devices that were opened and are closed again.
func (s *Source) addHandles(snap *model.Snapshot, opened map[handle]bool) {
	if !s.listed || s.stuck() != nil {
		return
	}
	snap.DeviceHandles = make([]model.DeviceHandles, 0, len(s.open.counts))
	add := func(k handle, count uint64) {
		node := s.nodeOf(k.rdev)
		snap.DeviceHandles = append(snap.DeviceHandles, model.DeviceHandles{
			Cgroup: k.cgroup, Device: node.name, Class: node.class, Count: count,
		})
	}
	for k, count := range s.open.counts {
		if s.forget[k.cgroup] {
			delete(s.open.counts, k)
			continue
		}
		delete(opened, k)
		add(k, count)
	}
	if s.open.lost > 0 {
		return // some files were not counted, perhaps a file of this device
	}
	for k := range opened {
		add(k, 0)
	}
}

// Holders returns the processes that had a device node of a GPU open at the last listing, and false if they are
// unknown.
func (s *Source) Holders() ([]int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.listed || s.stuck() != nil {
		return nil, false
	}
	var pids []int
	for pid, gpu := range s.open.pids {
		if gpu {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, true
}
