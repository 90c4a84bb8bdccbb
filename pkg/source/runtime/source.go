// SPDX-License-Identifier: Apache-2.0

// Package runtime follows the container runtimes of a node: containerd by its own API, CRI-O and others by the CRI,
// Docker and Podman by Docker's API.
//
// A scrape sends no request to a runtime. A goroutine per socket subscribes to events, lists the containers, and then
// applies the events. It lists again a second later, because a subscription is not confirmed, and every few minutes,
// because an event may be lost. When the connection breaks, the known containers stay, so that names survive the
// restart of a runtime. The next list is compared with them, and each difference becomes an event marked Reconciled.
//
// The registry is the only source of names and events. Sockets that appear later are found. Each socket is dialed by
// its path each time, because a restarted runtime creates a new socket.
//
// Docker reports its own containers: its namespace in containerd, moby, is left out, because containerd does not have
// their names.
package runtime

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source. The zero value follows the sockets at the default paths.
type Options struct {
	// Sockets lists the sockets to follow; default: the default paths.
	Sockets []Socket
	// Root is where the node's root is mounted; default /.
	Root string
	// Run is where the node's /run is mounted; default ROOT/run.
	Run string
	// Procfs is where procfs is mounted, for the start of processes; default /proc.
	Procfs string
	// CgroupOf returns the cgroup of a container, as a path below the root of the hierarchy, or "" if the id is enough
	// to find it. pid is its first process, or 0, and path is the path that the runtime returns. It returns false for a
	// container without its own cgroup. It may be nil.
	CgroupOf func(pid int, id, path string) (cgroup string, own bool)
	// Labels names the labels and annotations that are kept.
	Labels []string
	// Grace is how long Resolve returns containers after their removal, so that late values have names; default 5
	// minutes.
	Grace time.Duration
	// Logger receives a line for each change of a socket's state; default none.
	Logger *zap.Logger
	// Now is the clock of the grace time; default time.Now.
	Now func() time.Time
}

// Source follows the runtimes of a node.
type Source struct {
	opt      Options
	explicit bool // the user named the sockets
	registry *registry

	end     context.CancelFunc
	running sync.WaitGroup
	// settled is the channel of Ready.
	settled chan struct{}

	// first counts the sockets that New found and that are not settled.
	first sync.WaitGroup

	mu     sync.Mutex
	places []*place
}

// New returns a Source that follows the existing sockets. Without a socket, Read returns an error.
func New(o Options) (*Source, error) {
	o.Root, o.Procfs = cmp.Or(o.Root, "/"), cmp.Or(o.Procfs, "/proc")
	if o.Grace <= 0 {
		o.Grace = 5 * time.Minute
	}
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Source{
		opt: o, explicit: len(o.Sockets) > 0,
		registry: newRegistry(o.Grace, o.Now), settled: make(chan struct{}),
	}
	sockets := o.Sockets
	if !s.explicit {
		sockets = defaultSockets()
	}
	// If a socket is given twice, the API of the first runtime is used.
	for _, kind := range apis() {
		for _, sock := range sockets {
			if sock.Kind == kind {
				s.places = append(s.places, &place{Socket: sock, index: len(s.places)})
			}
		}
	}
	if len(s.places) < len(sockets) {
		return nil, fmt.Errorf("runtime: the kind of a socket is none of %s: %v", kinds(), sockets)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.end = cancel
	s.discover(ctx, true)
	settle := sync.OnceFunc(func() { close(s.settled) })
	time.AfterFunc(readyWithin, settle)
	safely.Go(&s.running, "runtime", func() {
		s.first.Wait()
		settle()
	})
	safely.Go(&s.running, "runtime", func() { s.search(ctx) })
	return s, nil
}

func (s *Source) node() node { return node{s.opt.Root, s.opt.Run} }

// Name is "runtime".
func (s *Source) Name() string { return "runtime" }

// Close stops following the sockets and waits for the goroutines.
func (s *Source) Close() error {
	s.end()
	s.running.Wait()
	return nil
}

const readyWithin = 5 * time.Second

// Ready is closed when each socket that existed at New has been listed or has failed, at the latest after 5 s. A later
// snapshot does not report existing containers as new.
func (s *Source) Ready() <-chan struct{} { return s.settled }

// firstRead is how long the first Read waits for the lists of the runtimes, so that the first scrape has names.
const firstRead = time.Second

// Read fills DeviceStates with a state per socket, and Losses. It sends no request to a runtime. It returns ErrAbsent
// without a socket, and another error if all sockets fail.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	select {
	case <-s.settled:
	default:
		ctx, cancel := context.WithTimeout(ctx, firstRead)
		defer cancel()
		select {
		case <-s.settled:
		case <-ctx.Done():
		}
	}
	snap := model.Snapshot{Losses: s.registry.losses()}
	s.mu.Lock()
	defer s.mu.Unlock()
	followed, usable := 0, 0
	var failed []string
	var errs []error
	var gone string
	for _, p := range s.places {
		switch {
		case p.alias, p.at == "" && !s.explicit:
			continue
		case p.state == model.StateOK:
			usable++
		case p.state == model.StateAbsent:
			gone = p.reason
		default:
			failed, errs = append(failed, p.reason), append(errs, p.err)
		}
		if p.at != "" {
			followed++
		}
		snap.DeviceStates = append(snap.DeviceStates, model.DeviceState{
			Source: s.Name(), Device: p.device, State: p.state, Reason: p.reason,
		})
	}
	switch {
	case followed == 0:
		return snap, absent(s.opt.Root, s.explicit)
	case usable > 0:
	case len(failed) > 0:
		return snap, model.WithReason(fmt.Errorf("runtime: %s", strings.Join(failed, "; ")), errors.Join(errs...))
	default:
		return snap, model.WithReason(errors.New("no runtime serves its socket any more: "+gone), model.ErrAbsent)
	}
	return snap, nil
}

// Resolve fills Containers from memory: existing containers, and containers removed within the grace time. They are nil
// until a runtime was listed. The slice is shared with other callers and must not be changed.
func (s *Source) Resolve(context.Context, []model.CgroupID) (model.Snapshot, error) {
	return model.Snapshot{Containers: s.registry.containers()}, nil
}

// Label returns a label or annotation of a container or of its pod, and whether their labels are known.
func (s *Source) Label(container, name string) (value string, known bool) {
	return s.registry.label(container, name)
}

// Serves reports whether the node has a socket of a runtime, even if the runtime does not answer. It looks at the file
// system.
func (s *Source) Serves() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.places, func(p *place) bool {
		if p.at != "" {
			return true
		}
		_, err := s.node().locate(p.Path)
		return err == nil
	})
}

// Watch subscribes f to every event from now on, in order, one at a time. f must not block or call the Source.
func (s *Source) Watch(f func(model.Event)) { s.registry.watch(f) }

// Snapshot calls f with the existing containers, at one moment between two events: the list contains the effect of the
// earlier events that Watch delivers, and of no later event. f must not block or call the Source. The list belongs to
// f.
func (s *Source) Snapshot(f func([]model.Container)) { s.registry.snapshot(f) }

// Cgroups returns the cgroups of existing containers that their paths alone do not name.
func (s *Source) Cgroups() []string { return s.registry.cgroups() }

func absent(root string, explicit bool) error {
	text := "no socket of a container runtime at the usual places below " + root +
		": mount the node's /run (--path.run), or name it with --runtime.socket"
	if explicit {
		text = "no socket at the places that --runtime.socket names, below " + root
	}
	return model.WithReason(errors.New(text), model.ErrAbsent)
}
