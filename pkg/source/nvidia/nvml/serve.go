// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// Available reports whether this program can be the child, which needs cgo.
const Available = true

// init makes this process the child if it was started with wire.Argument, in any program that contains this package. It
// runs before other packages are initialized, which would cost the child memory.
func init() {
	child.Main(wire.Argument, func(socket *os.File) int { return serve(&wire.Connection{Socket: socket}) })
}

// serve opens the library and answers requests until the sensor closes the connection.
func serve(c *wire.Connection) (status int) {
	if name, err := unix.BytePtrFromString("accelscope-nvml"); err == nil { // name for ps
		_ = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(name)), 0, 0, 0)
	}
	// A service manager signals all processes of a service, but only the sensor ends the child.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	first, err := c.Receive()
	if err != nil || first.Version != wire.Version || first.Start == nil {
		fmt.Fprintln(os.Stderr, "this is not a request of the sensor:", err)
		return 2
	}
	send := func(m wire.Message) { _ = c.Send(m) } // after the end of the sensor there are no more requests
	st := Start{Start: *first.Start}
	runtime.GOMAXPROCS(st.MaxProcs)
	st.Logger = zap.New(&forwarder{LevelEnabler: zapcore.InfoLevel, send: c.Send})
	st.Counts = wire.NewXIDs()
	for uuid, codes := range st.XIDs {
		st.Counts.Set(uuid, model.XID{})
		for _, code := range codes {
			st.Counts.Set(uuid, code)
		}
	}
	st.Counts.Changed = func(uuid string, now model.XID) { send(wire.Message{XID: &wire.XIDCount{UUID: uuid, XID: now}}) }
	st.Listed = func(l wire.Listing) { send(wire.Message{Listed: &l}) }
	woken := make(chan struct{}, 1)
	st.Notify = func(why error) {
		if why != nil {
			send(wire.Message{Reopen: why.Error()})
			return
		}
		select {
		case woken <- struct{}{}:
		default:
		}
	}
	s, err := Open(st, OpenLibrary)
	if err != nil {
		send(wire.Message{Version: wire.Version, Opened: &wire.OpenResult{
			Error: err.Error(), Absent: errors.Is(err, model.ErrAbsent), Loaded: errors.Is(err, model.ErrLibraryInit),
		}})
		return 0
	}
	send(wire.Message{Version: wire.Version, Opened: &wire.OpenResult{}})
	requests := make(chan wire.Request)
	go func() {
		defer close(requests)
		for {
			m, err := c.Receive()
			if err != nil || m.Request == nil {
				return
			}
			requests <- *m.Request
		}
	}()
	tick := time.NewTicker(st.Options.Interval)
	defer tick.Stop()
	for {
		select {
		case r, more := <-requests:
			if !more {
				s.End()
				return 0
			}
			if err := c.Send(wire.Message{Answer: s.answer(r)}); err != nil { // the message is too long
				send(wire.Message{Answer: &wire.Reply{Number: r.Number, Snapshot: &model.Snapshot{}, Error: err.Error()}})
			}
		case <-woken:
			s.Tend()
		case <-tick.C:
			s.Tend()
		}
	}
}

// Open opens the library in this process, and starts a session.
func Open(st Start, open func(wire.Options) (*Library, error)) (*Session, error) {
	l, err := open(st.Options)
	if err != nil {
		return nil, err
	}
	s, err := newSession(st, l)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return s, nil
}

// answer answers a request.
func (s *Session) answer(r wire.Request) *wire.Reply {
	a := &wire.Reply{Number: r.Number, Hung: s.hung(s.HangLimit), Silent: s.silent(), Known: s.Known(), Split: s.Split()}
	if r.Read {
		snapshot, err := s.Read(context.Background())
		if err != nil {
			a.Error = err.Error()
		}
		a.Snapshot = &snapshot
	}
	return a
}
