// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// releaseTimeout is how long Release and Resume wait for the keeper.
const releaseTimeout = 5 * time.Second

// release is a time in which the library is closed, so that the driver can be unloaded, a GPU
// reset or a MIG instance destroyed.
type release struct {
	module uint64        // inode of the directory of the driver's module in sysfs; 0 if it is not loaded
	done   chan struct{} // closed when the library is closed

	gone bool // the driver is, or was, not loaded

	// Under the lock of the Source.
	reason string
	until  time.Time
	// requested is the end that Release requested, held the reason of a Hold.
	requested time.Time
	held      string
	isClosed  bool
	resumed   bool     // by an operator
	closed    []string // device nodes that were closed
}

// err returns the error of reads during the release.
func (r *release) err() error {
	return fmt.Errorf("%s, until %s: %w", r.reason, r.until.Format(time.DateTime), model.ErrReleased)
}

// Release closes the library, and keeps it closed until the driver has been reloaded, until Resume, or for d. It returns when the library
// is closed, or after releaseTimeout. A Release during another Release replaces its reason, and never shortens it.
func (s *Source) Release(reason string, d time.Duration) model.LibraryStatus {
	until := time.Now().Add(d)
	return s.release(until, func(r *release) {
		r.reason = reason
		if until.After(r.requested) {
			r.requested = until
		}
	})
}

// Hold is Release for a signal that the driver is about to be unloaded. It also ends with EndHold. During a Release, the library stays
// closed until both have ended.
func (s *Source) Hold(reason string, d time.Duration) model.LibraryStatus {
	return s.release(time.Now().Add(d), func(r *release) {
		r.held = reason
		if r.requested.IsZero() {
			r.reason = reason
		}
	})
}

// EndHold ends a Hold with this reason.
func (s *Source) EndHold(reason string) {
	s.mu.Lock()
	if r := s.released; r != nil && r.held == reason {
		r.held, r.until = "", r.requested
	}
	s.mu.Unlock()
	s.wake(nil)
}

// release closes the library until a time, and sets the reason.
func (s *Source) release(until time.Time, set func(*release)) model.LibraryStatus {
	s.mu.Lock()
	if s.released == nil {
		module := moduleInode(s.o.Sysfs)
		s.released = &release{module: module, gone: module == 0, done: make(chan struct{})}
	}
	r := s.released
	set(r)
	if until.After(r.until) {
		r.until = until
	}
	s.cancel()
	s.mu.Unlock()
	s.wake(nil)
	select {
	case <-r.done:
	case <-s.done:
	case <-time.After(releaseTimeout):
	}
	return s.Status()
}

// Resume ends a release. It returns when the library is open, or when the attempt has failed,
// or after releaseTimeout.
func (s *Source) Resume() model.LibraryStatus {
	s.mu.Lock()
	if s.released != nil {
		s.released.until, s.released.resumed = time.Time{}, true
	}
	s.mu.Unlock()
	s.wake(nil)
	for end := time.Now().Add(releaseTimeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		status := s.Status()
		if status.State != model.StateReleased && status.Reason != errOpening.Error() {
			break
		}
	}
	return s.Status()
}

// Status returns whether the library is open.
func (s *Source) Status() model.LibraryStatus {
	status := model.LibraryStatus{State: model.StateFailed}
	s.mu.Lock()
	current, err := s.session, s.err
	if r := s.released; r != nil {
		status.Until, status.Closed = r.until, r.closed
		if r.isClosed {
			err = r.err()
		}
	}
	s.mu.Unlock()
	switch {
	case current != nil:
		status.State, status.Open = model.StateOK, current.open()
	case errors.Is(err, model.ErrReleased):
		status.State, status.Reason = model.StateReleased, err.Error()
	case errors.Is(err, model.ErrAbsent):
		status.State, status.Reason = model.StateAbsent, err.Error()
	default:
		status.Reason = err.Error()
	}
	for _, p := range s.children.remaining() {
		status.Open = append(status.Open, deviceNodes(p.PID())...)
	}
	return status
}

// stayReleased closes the library during a release, and reports whether the release lasts.
func (s *Source) stayReleased() bool {
	s.mu.Lock()
	r, current := s.released, s.session
	s.mu.Unlock()
	if r == nil {
		return false
	}
	if !r.isClosed {
		var open []string
		if current != nil {
			open = current.open()
		}
		s.tearDown()
		s.mu.Lock()
		r.closed, r.isClosed = open, true
		s.o.Logger.Info("NVML is released", zap.String("reason", r.reason), zap.Time("until", r.until), zap.Strings("closed", open))
		s.mu.Unlock()
		defer close(r.done)
	}
	module := moduleInode(s.o.Sysfs)
	r.gone = r.gone || module == 0
	reloaded := module != 0 && (r.gone || module != r.module)
	s.mu.Lock()
	over := reloaded || !time.Now().Before(r.until)
	if over {
		s.released = nil
	}
	why := r.err()
	s.mu.Unlock()
	if !over {
		s.set(nil, why)
		return true
	}
	if s.operator = s.operator || r.forReset(); reloaded {
		s.unloaded()
	}
	s.earliest = time.Time{}
	s.set(nil, errOpening)
	s.o.Logger.Info("the release of NVML has ended", zap.Bool("driver_reloaded", reloaded))
	return false
}

// forReset reports whether an operator ended a release whose reason was a reset.
func (r *release) forReset() bool {
	return r.resumed && strings.Contains(strings.ToLower(r.reason), "reset")
}

// moduleInode returns the inode of /sys/module/nvidia, which changes with each load of the driver, or 0 without a driver.
func moduleInode(sysfs string) uint64 {
	info, err := os.Stat(filepath.Join(sysfs, "module/nvidia"))
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return stat.Ino
}
