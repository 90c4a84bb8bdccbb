// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// A lister lists the processes that use the GPUs, from the fdinfo of their device nodes. It keeps the counters of the
// last listing. It is not safe for concurrent use.
type lister struct {
	o        Options
	timeout  time.Duration // for all processes together
	limit    time.Duration // for one process
	calls    hang.Group[int, map[uint32][]drm.Client]
	counters drm.Counters
	started  time.Time // of the first listing
}

func newLister(o Options) *lister {
	return &lister{
		o: o, timeout: drm.ListTimeout, limit: drm.ProcessLimit,
	}
}

// list returns the processes that have memory of a GPU or have used its engines, sorted; uuids are the GPUs by the minor
// numbers of their nodes. A client that several processes have is credited to the lowest PID, which is usually the one
// that opened it. An error comes with the readable part.
func (l *lister) list(uuids map[uint32]string, now time.Time) ([]model.GPUProcess, error) {
	pids, err := drm.Processes(l.o.Procfs, l.o.Holders)
	problems := []error{err}
	if l.started.IsZero() {
		l.started = now
	}
	scan := scan{counters: &l.counters, now: now.Sub(l.started), usages: map[drm.Use]*usage{}}
	l.counters.Begin()
	wanted := func(minor uint32) bool { return uuids[minor] != "" }
	deadline := time.Now().Add(l.timeout)
	hanging, clients := 0, 0
	for i, pid := range pids {
		if time.Now().After(deadline) {
			problems = append(problems, drm.Timeout(i, len(pids), l.timeout))
			break
		}
		nodes, err := l.calls.Do(context.Background(), pid, l.limit, func() (map[uint32][]drm.Client, error) {
			return drm.Clients(l.o.Procfs, pid, wanted, parseFdinfo), nil
		})
		if err != nil {
			hanging++
		}
		for minor, list := range nodes {
			for _, c := range list {
				if clients++; clients <= drm.MaxClients {
					scan.client(drm.Use{GPU: uuids[minor], PID: pid}, c)
				}
			}
		}
	}
	if clients > drm.MaxClients {
		problems = append(problems, drm.TooMany())
	}
	if hanging > 0 {
		problems = append(problems, fmt.Errorf("reading of %d processes hangs in the driver: they are %w", hanging, drm.ErrBounded))
	}
	processes := drm.GPUProcesses(scan.usages, l.o.CgroupOf, func(p *model.GPUProcess, u *usage) {
		p.Memory, p.Engines = u.memory, u.engines.Figures()
	})
	return processes, errors.Join(problems...)
}

// parseFdinfo parses the fdinfo of a client of i915 or xe.
func parseFdinfo(text []byte) (drm.Client, bool) {
	c, ok := drm.ParseFdinfo(text)
	return c, ok && (c.Driver == "i915" || c.Driver == "xe")
}
