// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// Objects dumps the objects of one device, of the given types or of all types, and finds the process of each object.
// Resource tracking reports the thread that created an object until that thread ends. After that, the process is the
// creator of the protection domain or context of the object, or of another object in the context. Kernel objects are
// omitted.
func Objects(dial func() (*Conn, error), d Device, types []model.ObjectType, deadline time.Time) ([]model.Object, error) {
	wanted := func(t model.ObjectType) bool { return len(types) == 0 || slices.Contains(types, t) }
	dumps := make([][]record, len(tables))
	domains, contexts := map[uint32]record{}, map[uint32]record{}
	var errs []error
	for i, t := range tables {
		if !wanted(t.typ) && !slices.Contains(ownerTypes, t.typ) {
			continue
		}
		records, err := dump(dial, Request{Cmd: t.cmd, Index: &d.Index, Attrs: allQueuePairs}, deadline, t.parse)
		switch {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
			continue // contexts and SRQs before 5.15
		case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT):
			return nil, sysfs.ErrGone
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
					Device: d.Name, Index: d.Index, Type: t.typ,
					ID: r.id, PID: int(owner(r, domains, contexts)), Bytes: r.bytes, Memory: r.memory,
					RemoteQPN: r.remote, Port: r.port, QPType: r.qpType, QPState: r.state,
				})
			}
		}
	}
	return objects, errors.Join(errs...)
}

// ownerTypes are the types that show the processes of other objects. Listing them needs no firmware command, and
// processes have few of them.
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
