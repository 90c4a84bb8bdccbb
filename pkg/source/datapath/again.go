// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// isPassing reports whether functions may be found, or probed, later.
func isPassing(err error) bool {
	return errors.Is(err, locate.ErrAgain) || errors.Is(err, locate.ErrNotReady) || isFull(err)
}

// isFull reports whether a process has no probes because too many processes have probes.
func isFull(err error) bool {
	return errors.Is(err, uprobe.ErrAlone) || errors.Is(err, errFilesOfOwner)
}

// searchAgain goes on after the functions of a queue pair were not found for a reason that may pass. It searches the queue pair that
// changed its state last, and the next queue pair that changes its state. Until then the context is late. The pause doubles with each
// attempt, and the kernel's programs announce a context MAX_REPEATED times at most: a program that destroys queue pairs all the time does
// not cause endless searches.
func (t *tracker) searchAgain(a attempt) {
	switch {
	case a.qp == 0: // each queue pair of the process is searched
	case a.existed: // it has no entry in the kernel's map yet
		t.retryLater(a)
	case t.searches.noRoom(&a):
		t.giveUp(&a)
	default:
		stat, err := t.prober.kernel.context(a.key)
		if err == nil {
			a.again = true
			t.searches.retryAfter(a, int(stat.Repeated))
		}
	}
}

// searchLast has the next queue pair of a context announced, and searches the queue pair that changed its state last.
func (t *tracker) searchLast(a attempt) {
	last, ok := t.announceAgain(&a.event)
	if ok && last != 0 {
		a.qp, a.tries, a.again = last, 0, false
		t.enqueue(a)
	}
}

// announceAgain has the kernel announce the next queue pair of a context. It returns the queue pair that changed its state last.
func (t *tracker) announceAgain(e *event) (last uint64, ok bool) {
	last, err := t.prober.kernel.announceAgain(e.key)
	if err == nil {
		return last, true
	}
	if !errors.Is(err, model.ErrAbsent) {
		t.meter.setUnlocated(e, err)
		t.opts.Logger.Info("context is not counted on the data path", zap.Uint32("pid", e.key.Tgid), zap.Error(err))
	}
	return 0, false
}

// giveUp ends the attempts at a queue pair. The next queue pair of its context is announced.
func (t *tracker) giveUp(a *attempt) {
	switch {
	case a.existed:
		t.meter.setUnlocated(&a.event, locate.ErrAgain)
	case a.qp != 0:
		t.announceAgain(&a.event)
	}
}
