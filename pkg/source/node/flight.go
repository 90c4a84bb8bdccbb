// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// errHangs says that the kernel has not answered yet. The words are those of
// node_exporter's label device_error.
var errHangs = errors.New("mountpoint timeout")

// flight is a part that may hang in a driver: it is read in a goroutine of its
// own, of which there is never more than one.
type flight struct {
	part
	running chan landing // nil while none runs
	late    bool         // the one that runs has had its time
}

// landing is what one read of a part gave.
type landing struct {
	node model.Node
	err  error
}

func (f *flight) start(now time.Time) {
	if f.running != nil {
		return
	}
	f.running, f.late = make(chan landing, 1), false
	go func(done chan<- landing) {
		var l landing
		defer func() {
			if p := recover(); p != nil { // nobody else would: this is not the engine's goroutine
				l = landing{err: fmt.Errorf("panic: %v", p)}
			}
			done <- l
		}()
		l.err = f.read(now, &l.node)
	}(f.running)
}

// wait takes what was read into n. One that was late once is not waited for
// again, and what it reads then is too old to be used.
func (f *flight) wait(ctx context.Context, timer *time.Timer, n *model.Node) error {
	l := f.landed(ctx, timer)
	if l == nil {
		f.late = true
		return errHangs
	}
	f.running = nil
	if f.late {
		return errHangs
	}
	if l.node.Filesystems != nil {
		n.Filesystems = l.node.Filesystems
	}
	if l.node.NetDevs != nil {
		n.NetDevs = l.node.NetDevs
	}
	if l.node.NetClasses != nil {
		n.NetClasses = l.node.NetClasses
	}
	if l.node.Chips != nil {
		n.Chips = l.node.Chips
	}
	return l.err
}

// landed is nil while the read has not come back.
func (f *flight) landed(ctx context.Context, timer *time.Timer) *landing {
	select {
	case l := <-f.running:
		return &l
	default:
	}
	if f.late {
		return nil
	}
	select {
	case l := <-f.running:
		return &l
	case <-timer.C:
		timer.Reset(0) // for the others
	case <-ctx.Done():
	}
	return nil
}
