// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	counters map[counterKey]counter
	started  time.Time // of the first listing
}

func newLister(o Options) *lister {
	return &lister{
		o: o, timeout: 2 * time.Second, limit: 250 * time.Millisecond,
	}
}

// maxClients bounds the memory that containers can make the lister use.
const maxClients = 1 << 14

// errBounded reports that a limit was exceeded and some results are missing.
var errBounded = errors.New("left out")

// use identifies one process on one GPU.
type use struct {
	gpu string // UUID
	pid int
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
	scan := scan{before: l.counters, after: map[counterKey]counter{}, now: now.Sub(l.started), usages: map[use]*usage{}}
	wanted := func(minor uint32) bool { return uuids[minor] != "" }
	deadline := time.Now().Add(l.timeout)
	hanging, clients := 0, 0
	for i, pid := range pids {
		if time.Now().After(deadline) {
			problems = append(problems, fmt.Errorf("%d of %d processes in %v: the rest is %w", i, len(pids), l.timeout, errBounded))
			break
		}
		nodes, err := l.calls.Do(context.Background(), pid, l.limit, func() (map[uint32][]drm.Client, error) {
			return clientsOf(l.o.Procfs, pid, wanted), nil
		})
		if err != nil {
			hanging++
		}
		for minor, list := range nodes {
			for _, c := range list {
				if clients++; clients <= maxClients {
					scan.client(use{uuids[minor], pid}, c)
				}
			}
		}
	}
	if clients > maxClients {
		problems = append(problems, fmt.Errorf("more than %d opens of GPUs: some are %w", maxClients, errBounded))
	}
	if hanging > 0 {
		problems = append(problems, fmt.Errorf("reading of %d processes hangs in the driver: they are %w", hanging, errBounded))
	}
	l.counters = scan.after
	return l.processes(scan.usages), errors.Join(problems...)
}

// clientsOf returns the clients that a process has open, by the minor number of the node, of the wanted nodes.
func clientsOf(procfs string, pid int, wanted func(minor uint32) bool) map[uint32][]drm.Client {
	var clients map[uint32][]drm.Client
	drm.Files(procfs, pid, wanted, func(minor uint32, fdinfo []byte) {
		c, ok := drm.ParseFdinfo(fdinfo)
		if !ok || c.Driver != "i915" && c.Driver != "xe" {
			return
		}
		if clients == nil {
			clients = map[uint32][]drm.Client{}
		}
		clients[minor] = append(clients[minor], c)
	})
	return clients
}

// processes converts usages to the model. The cgroup is resolved now: a process that ends later keeps it.
func (l *lister) processes(usages map[use]*usage) []model.GPUProcess {
	list := make([]model.GPUProcess, 0, len(usages))
	for k, u := range usages {
		p := model.GPUProcess{GPU: k.gpu, PID: k.pid, Memory: u.memory}
		if l.o.CgroupOf != nil {
			if id, err := l.o.CgroupOf(k.pid); err == nil {
				p.Cgroup = id
			}
		}
		if u.known {
			p.Engines = make([]model.Figure, 0, len(u.engines))
			for _, name := range slices.Sorted(maps.Keys(u.engines)) {
				p.Engines = append(p.Engines, model.Figure{Name: name, Value: u.engines[name]})
			}
		}
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b model.GPUProcess) int {
		return cmp.Or(strings.Compare(a.GPU, b.GPU), a.PID-b.PID)
	})
	return list
}
