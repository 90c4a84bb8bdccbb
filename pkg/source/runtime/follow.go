// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// A place is a path at which a socket may be. The mutex of the Source guards the changing fields.
type place struct {
	Socket
	index int
	// at is the path of the socket with links resolved, or "" until it is found.
	at     string
	alias  bool // an earlier place is the same socket
	device string
	state  model.State
	reason string
	err    error // the error that reason describes, or nil
	logged model.State
}

// Intervals between searches for missing sockets, and between attempts to follow a failing socket. They double up to
// the maximum.
const (
	minSearch, maxSearch = time.Second, 10 * time.Second
	minPause, maxPause   = 100 * time.Millisecond, 2 * time.Second
	// longLife is the lifetime of a connection after its list from which the next attempt has no longer pause: a list
	// costs the runtime a call per container.
	longLife = 10 * time.Second
)

func (s *Source) search(ctx context.Context) {
	for pause := minSearch; sleep(ctx, pause); pause = min(2*pause, maxSearch) {
		s.discover(ctx, false)
	}
}

func (s *Source) discover(ctx context.Context, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.places {
		if p.at != "" {
			continue
		}
		at, err := s.node().locate(p.Path)
		p.alias = err == nil && s.sameAs(p, at) != nil
		if p.device == "" && !p.alias && (err == nil || s.explicit) {
			p.device = s.device(p)
		}
		if err != nil {
			p.state, p.reason = judge(p, err)
			p.err = err
			continue
		}
		p.at, p.state, p.reason, p.err = at, model.StateFailed, at+" has not answered yet", nil
		settle := func() {}
		if first {
			s.first.Add(1)
			settle = sync.OnceFunc(s.first.Done)
		}
		safely.Go(&s.running, "runtime", func() { s.follow(ctx, p, settle) })
	}
}

// device returns the name of a place in DeviceStates: the runtime or API, and the path if other places have the same
// name.
func (s *Source) device(p *place) string {
	name := nameOfSocket(p.Socket)
	if slices.ContainsFunc(s.places, func(q *place) bool { return q.device == name }) {
		name += ":" + p.Path
	}
	return name
}

func (s *Source) follow(ctx context.Context, p *place, settle func()) {
	defer settle()
	pause := minPause
	var synced time.Time
	f := &socketFeed{registry: s.registry, socket: p.index, cgroupOf: s.opt.CgroupOf, onSync: func() {
		if synced.IsZero() {
			synced = time.Now()
		}
		s.note(p, model.StateOK, "", nil)
		settle()
	}}
	for {
		synced = time.Time{}
		at, err := s.node().locate(p.Path)
		wait := pause
		if err == nil && s.isAlias(p, at) {
			wait = maxSearch
		} else {
			if err == nil {
				err = drivers[p.Kind](ctx, s.opt, at, f)
			}
			if ctx.Err() != nil {
				return
			}
			state, reason := judge(p, err)
			s.note(p, state, reason, err)
			if !synced.IsZero() && time.Since(synced) > longLife {
				wait = minPause
			}
			pause = min(2*wait, maxPause)
		}
		settle()
		// random, so that the sensors of a fleet or the sockets of a node do not reconnect at once
		if !sleep(ctx, wait/2+rand.N(wait/2)) {
			return
		}
	}
}

// isAlias updates whether the place is the same socket as an earlier place, which then reports the containers.
func (s *Source) isAlias(p *place, at string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.sameAs(p, at)
	p.alias = q != nil
	if !p.alias && p.device == "" {
		p.device = s.device(p)
	}
	if p.alias && q.state == model.StateOK { // the earlier place reports all its containers
		s.registry.sync(p.index, nil)
	}
	return p.alias
}

// sameAs returns the first earlier place with the same socket under another path or mount, or nil.
func (s *Source) sameAs(p *place, at string) *place {
	own, err := os.Stat(at)
	if err != nil {
		return nil
	}
	for _, q := range s.places[:p.index] {
		if path, err := s.node().locate(q.Path); err == nil {
			if other, err := os.Stat(path); err == nil && os.SameFile(own, other) {
				return q
			}
		}
	}
	return nil
}

func (s *Source) note(p *place, state model.State, reason string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state != p.logged {
		p.logged = state
		s.opt.Logger.Info("runtime", zap.String("socket", p.at), zap.String("kind", string(p.Kind)),
			zap.String("state", string(state)), zap.String("reason", reason))
	}
	p.state, p.reason, p.err = state, reason, err
}

// judge returns the state for an error, and the reason with a remedy.
func judge(p *place, err error) (model.State, string) {
	reason := clean(fmt.Sprintf("%s: %v", p.Path, err), maxImage)
	switch {
	case err == nil:
		return model.StateFailed, p.Path + ": the connection ended"
	case errors.Is(err, fs.ErrNotExist):
		return model.StateAbsent, p.Path + ": no such socket: the runtime does not run, or its directory is not mounted"
	case errors.Is(err, fs.ErrPermission):
		return model.StateFailed, reason + ": run as root or in the group that owns the socket"
	case errors.Is(err, unix.ECONNREFUSED):
		return model.StateFailed, reason + ": the runtime does not run"
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return model.StateStuck, reason + ": the runtime accepts connections and does not answer; restart it"
	case status.Code(err) == codes.Unimplemented:
		return model.StateFailed, reason + ": it is another kind of socket; name it with --runtime.socket=KIND:PATH"
	}
	return model.StateFailed, reason
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
