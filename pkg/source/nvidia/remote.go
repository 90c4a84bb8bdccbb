// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/gpuuse"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const (
	// answerTimeout is how long Read waits for the child, which itself takes at most wire.ReadTimeout. lastAnswer is how long the last
	// answer replaces a late answer, on a busy machine.
	answerTimeout = 3 * wire.ReadTimeout
	lastAnswer    = 10 * time.Second
	// endTimeout is how long the child has to close the library.
	endTimeout = time.Second
	// pingInterval is how often the child has to answer.
	pingInterval = 5 * time.Second
)

var (
	errEnded = errors.New("the process that reads NVML ended")
	errHung  = errors.New("calls into NVML have not returned")
)

// hungError is an errHung with the keys of the devices, the device that hung first first. It has no keys if the child itself does not
// answer.
type hungError struct {
	keys []string
	all  bool // no device answers
}

func (e *hungError) Error() string {
	if len(e.keys) == 0 {
		return "the process that reads NVML does not answer"
	}
	return fmt.Sprintf("%v, first of %s", errHung, e.keys[0])
}

func (e *hungError) Unwrap() error { return errHung }

// session is the time from opening to closing the library. Its devices do not change.
type session interface {
	// read returns the current values. It returns an error only without values.
	read(ctx context.Context) (model.Snapshot, error)
	// tend does what is due between reads. It does not block.
	tend()
	// end closes the library.
	end()
	// known returns the devices for the next session, by their keys.
	known() map[string]wire.KnownDevice
	// open lists the device nodes that the library has open.
	open() []string
	// split lists the addresses of the GPUs with MIG instances that this session does not read.
	split() []string
}

// start has the parameters of a session, and where it reports.
type start struct {
	wire.Start
	logger *zap.Logger

	xids     *wire.XIDs
	notify   func(why error)                       // called when a device has answered for the first time, or to end the session
	cgroupOf func(pid int) (model.CgroupID, error) // may be nil
	children *children                             // counts the children of all sessions
	uses     *gpuuse.Table                         // adds up the uses in all sessions; nil if the session only lists instances
}

// remoteSession is a session in the child.
type remoteSession struct {
	start
	process *child.Process
	wire.Connection
	opened chan error // whether the library is open, and then nothing

	mu      sync.Mutex
	number  uint64        // of the last request
	asked   time.Time     // when it was sent; zero if it is answered
	pending chan struct{} // closed when the read in progress is answered; nil without a read
	last    *wire.Reply   // last answer with a snapshot
	lastAt  time.Time
	pinged  time.Time // when the last request without a read was sent
	devices map[string]wire.KnownDevice
	splits  []string // addresses of the GPUs with instances that the session does not read
	cgroups map[int]cgroupOfProcess
	ending  bool // the socket is closed on purpose
}

// cgroupOfProcess is the cgroup of a process when it was listed.
type cgroupOfProcess struct {
	id     model.CgroupID
	listed time.Time
}

// openRemote starts the child and waits until it has opened the library.
func openRemote(ctx context.Context, st start) (session, error) {
	log := &outputLog{log: st.logger}
	process, err := child.Start(child.Program{Path: "/proc/self/exe", Args: []string{wire.Argument}}, log)
	if err != nil {
		return nil, fmt.Errorf("starting the process that reads NVML: %w", err)
	}
	s := &remoteSession{
		start: st, process: process, Connection: wire.Connection{Socket: process.Socket}, opened: make(chan error, 1),
		devices: st.Before, cgroups: map[int]cgroupOfProcess{},
	}
	if st.Instances == wire.WithGPU && len(st.Addresses) > 0 { // another child reads them, by their addresses
		st.Instances = wire.GPMOnly
	}
	st.XIDs, st.MaxProcs = st.xids.All(), runtime.GOMAXPROCS(0)
	if err := s.Send(wire.Message{Version: wire.Version, Start: &st.Start}); err != nil {
		s.end()
		return nil, fmt.Errorf("%w: %w", errEnded, err)
	}
	go safely.Do("nvidia", s.receiveAll)
	timer := time.NewTimer(st.HangLimit)
	defer timer.Stop()
	select {
	case err = <-s.opened:
	case <-timer.C:
		err = &hungError{}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

// receiveAll receives messages until the child ends.
func (s *remoteSession) receiveAll() {
	m, err := s.Receive()
	for err == nil {
		s.handle(m)
		m, err = s.Receive()
	}
	s.mu.Lock()
	s.answered(nil)
	s.mu.Unlock()
	if s.process.End(endTimeout) {
		err = s.process.Err()
	}
	why := errEnded
	if err != nil && !errors.Is(err, io.EOF) {
		why = fmt.Errorf("%w: %w", errEnded, err)
	}
	select {
	case s.opened <- why:
	default:
	}
	s.report(why)
}

// report calls notify, unless the session is ending.
func (s *remoteSession) report(why error) {
	s.mu.Lock()
	ending := s.ending
	s.mu.Unlock()
	if !ending {
		s.notify(why)
	}
}

func (s *remoteSession) handle(m wire.Message) {
	switch {
	case m.Opened != nil:
		reason := error(nil)
		switch {
		case m.Version != wire.Version:
			reason = wire.ErrMessage
		case m.Opened.Absent:
			reason = model.WithReason(errors.New(m.Opened.Error), model.ErrAbsent)
		case m.Opened.Loaded:
			reason = model.WithReason(errors.New(m.Opened.Error), model.ErrLibraryInit)
		case m.Opened.Error != "":
			reason = model.WithReason(errors.New(m.Opened.Error), model.ErrLibrary)
		}
		select {
		case s.opened <- reason:
		default:
		}
	case m.Answer != nil:
		s.mu.Lock()
		s.answered(m.Answer)
		s.mu.Unlock()
		if len(m.Answer.Hung) > 0 {
			s.report(&hungError{m.Answer.Hung, m.Answer.Silent})
		}
	case m.XID != nil:
		s.xids.Set(m.XID.UUID, m.XID.XID)
	case m.Listed != nil:
		s.resolve(m.Listed)
		if s.uses != nil {
			s.uses.Add(s.round(m.Listed))
		}
	case m.Reopen != "":
		s.report(errors.New(m.Reopen))
	case m.Log != nil:
		fields := make([]zap.Field, 0, len(m.Log.Fields))
		for name, value := range m.Log.Fields {
			fields = append(fields, zap.Any(name, value))
		}
		if entry := s.logger.Check(m.Log.Level, m.Log.Text); entry != nil {
			entry.Write(fields...)
		}
	}
}

// round returns the uses of a listing. Where processes use MIG instances, the driver reports the activity of instances only.
func (s *remoteSession) round(l *wire.Listing) *gpuuse.Round {
	r := &gpuuse.Round{GPU: l.UUID, Whole: l.Whole, Active: l.Active}
	for _, u := range l.Instances {
		r.Uses = append(r.Uses, gpuuse.Use{Instance: u.Instance, Unknown: u.Unknown, Busy: u.Busy})
	}
	if l.Split {
		return r
	}
	for _, u := range l.Processes {
		r.Uses = append(r.Uses, gpuuse.Use{Cgroup: s.cgroups[u.PID].id, Unknown: u.Unknown, Busy: u.Busy})
	}
	return r
}

// answered records the answer to the last request, or nil if there is no answer.
func (s *remoteSession) answered(a *wire.Reply) {
	if a != nil {
		s.devices, s.splits = a.Known, a.Split
		if a.Number == s.number {
			s.asked = time.Time{}
		}
		if a.Snapshot == nil {
			return
		}
		for i, p := range a.Snapshot.GPUProcesses {
			a.Snapshot.GPUProcesses[i].Cgroup = s.cgroups[p.PID].id
		}
		if s.uses != nil {
			a.Snapshot.GPUUses = s.uses.Facts()
		}
		s.last, s.lastAt = a, time.Now()
	}
	if s.pending != nil {
		close(s.pending)
		s.pending = nil
	}
}

// resolve finds the cgroups of listed processes at once, because some end before the next read. An ended process keeps the cgroup of an
// earlier list. Processes that are no longer listed are dropped.
func (s *remoteSession) resolve(l *wire.Listing) {
	now := time.Now()
	pids := make([]int, 0, len(l.Processes))
	for _, p := range l.Processes {
		if p.Listed {
			pids = append(pids, p.PID)
		}
	}
	found := make(map[int]model.CgroupID, len(pids))
	for _, pid := range pids {
		if s.cgroupOf != nil {
			if id, err := s.cgroupOf(pid); err == nil {
				found[pid] = id
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pid := range pids {
		id, ok := found[pid]
		if !ok {
			id = s.cgroups[pid].id
		}
		s.cgroups[pid] = cgroupOfProcess{listed: now, id: id}
	}
	maps.DeleteFunc(s.cgroups, func(_ int, p cgroupOfProcess) bool {
		return now.Sub(p.listed) > 3*s.Options.Interval+s.HangLimit
	})
}

// ask sends a request, unless an answer is outstanding.
func (s *remoteSession) ask(read bool) {
	s.number++
	if s.asked.IsZero() {
		s.asked = time.Now()
	}
	if read {
		s.pending = make(chan struct{})
	}
	// A failure also ends receiveAll.
	_ = s.Send(wire.Message{Request: &wire.Request{Number: s.number, Read: read}})
}

func (s *remoteSession) read(ctx context.Context) (model.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	s.mu.Lock()
	if s.pending == nil {
		s.ask(true)
	}
	pending := s.pending
	s.mu.Unlock()
	select {
	case <-pending:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.last == nil || time.Since(s.lastAt) > lastAnswer:
		return model.Snapshot{}, &hungError{}
	case s.last.Error != "":
		return *s.last.Snapshot, errors.New(s.last.Error)
	}
	return *s.last.Snapshot, nil
}

func (s *remoteSession) tend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.asked.IsZero():
		if time.Since(s.pinged) >= pingInterval {
			s.pinged = time.Now()
			s.ask(false)
		}
	case time.Since(s.asked) > s.HangLimit:
		go safely.Do("nvidia", func() { s.report(&hungError{}) })
	}
}

// end lets the child close the library and exit, and kills a child that does not. The descriptors of a child in uninterruptible sleep
// stay open; nothing can close them.
func (s *remoteSession) end() {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	if !s.process.End(endTimeout) {
		s.children.abandon(s.process)
	}
}

func (s *remoteSession) known() map[string]wire.KnownDevice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.devices
}

func (s *remoteSession) split() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.splits
}

func (s *remoteSession) open() []string { return deviceNodes(s.process.PID()) }
