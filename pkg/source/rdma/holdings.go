// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

const holdingsEvery = 15 * time.Second

// readHoldings counts the objects of each process, at most every 15 s.
func (s *Source) readHoldings(ctx context.Context, now time.Time) []model.Holding {
	if s.opt.Holdings == nil || !s.genuine || !s.enabled || !s.opt.Holdings() {
		s.holdings, s.holdingsRead = nil, time.Time{}
		return nil
	}
	if now.Sub(s.holdingsRead) < holdingsEvery {
		return s.holdings
	}
	ctx, cancel := context.WithTimeout(ctx, s.opt.Deadline)
	defer cancel()
	objects, err := s.Objects(ctx)
	if err != nil {
		s.opt.Logger.Info("RDMA objects of processes", zap.Error(err))
	}
	s.holdings, s.holdingsRead = nil, now
	if objects != nil {
		s.holdings = holdings(objects, s.opt.CgroupOf)
	}
	return s.holdings
}

// holdings counts the objects of each process, with the current cgroup of the process: at the next refresh it may have
// ended. Objects of unknown processes count for the device only.
func holdings(objects []model.Object, cgroupOf func(int) (model.CgroupID, error)) []model.Holding {
	type key struct {
		device string
		pid    int
		typ    model.ObjectType
		memory model.Memory
	}
	sums := map[key]model.Holding{}
	for _, o := range objects {
		if o.PID == 0 {
			continue
		}
		k := key{o.Device, o.PID, o.Type, o.Memory}
		h := sums[k]
		h.Device, h.PID, h.Type, h.Memory = o.Device, o.PID, o.Type, o.Memory
		h.Count++
		h.Bytes += o.Bytes
		sums[k] = h
	}
	all := make([]model.Holding, 0, len(sums))
	cgroups := map[int]model.CgroupID{}
	for _, h := range sums {
		id, known := cgroups[h.PID]
		if !known && cgroupOf != nil {
			if of, err := cgroupOf(h.PID); err == nil {
				id = of
			}
			cgroups[h.PID] = id
		}
		h.Cgroup = id
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b model.Holding) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Type, b.Type),
			cmp.Compare(a.Memory, b.Memory))
	})
	return all
}
