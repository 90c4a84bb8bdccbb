// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// dumpObjects dumps the objects of some types, or of all, of one device and finds the process of
// each. Resource tracking reports the thread that created an object until that thread ends. After that, the process is
// the creator of the protection domain or context of the object, or of another object in the
// context. Kernel objects are omitted.
func dumpObjects(dial func() (*conn, error), d nlDevice, types []model.ObjectType, deadline time.Time) ([]model.Object, error) {
	wanted := func(t model.ObjectType) bool { return len(types) == 0 || slices.Contains(types, t) }
	dumps := make([][]record, len(tables))
	domains, contexts := map[uint32]record{}, map[uint32]record{}
	var errs []error
	for i, t := range tables {
		if !wanted(t.typ) && !slices.Contains(ownerTypes, t.typ) {
			continue
		}
		records, err := dump(dial, request{cmd: t.cmd, index: &d.index, attrs: allQueuePairs}, deadline, t.parse)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			continue // contexts and SRQs before 5.15
		case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT):
			return nil, errGone
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", t.typ, err))
		}
		dumps[i] = records
		for _, r := range records {
			switch t.typ {
			case model.Context:
				contexts[r.id] = r
			case model.PD:
				domains[r.id] = r
			}
			if r.hasCtx && r.pid != 0 && contexts[r.ctx].pid == 0 {
				contexts[r.ctx] = record{pid: r.pid}
			}
		}
	}
	n := 0
	for _, records := range dumps {
		n += len(records)
	}
	objects := make([]model.Object, 0, n)
	for i, t := range tables {
		for _, r := range dumps[i] {
			if !r.inKernel && wanted(t.typ) {
				objects = append(objects, model.Object{
					Device: d.name, Index: d.index, Type: t.typ,
					ID: r.id, PID: int(owner(r, domains, contexts)), Bytes: r.bytes, Memory: r.memory,
					RemoteQPN: r.remote, Port: r.port, QPType: r.qpType, QPState: r.state,
				})
			}
		}
	}
	return objects, errors.Join(errs...)
}

// ownerTypes are the types with which the processes of other objects are found. Listing them
// needs no firmware command, and processes have few of them.
var ownerTypes = []model.ObjectType{model.Context, model.PD, model.CQ}

func owner(r record, domains, contexts map[uint32]record) uint32 {
	if r.pid == 0 && r.hasPD {
		pd := domains[r.pd]
		r.pid = pd.pid
		if !r.hasCtx {
			r.ctx, r.hasCtx = pd.ctx, pd.hasCtx
		}
	}
	if r.pid == 0 && r.hasCtx {
		r.pid = contexts[r.ctx].pid
	}
	return r.pid
}

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

// holdings counts the objects of each process, with the current cgroup of the process: at the
// next refresh it may have ended. An object with an unknown process remains with the device.
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
