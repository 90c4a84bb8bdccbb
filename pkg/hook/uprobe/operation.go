// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/safely"
)

// The operations, as in accelscope_uprobe_attach_seconds.
const (
	attachOperation = "attach"
	detachOperation = "detach"
)

// Operation attaches or detaches probes of a file. Each call is made and measured separately: a fork waits for one
// call, because other threads get their turn between two calls.
type Operation struct {
	Source string
	// Paths open the file: some of the processes that map it may have ended.
	Paths []string
	// Owners are the owners of the processes that map it; 0 is an unknown owner.
	Owners []uint64
	// Probes are to be attached or detached.
	Probes []Probe
	// Done is called in the goroutine of the Gate when the operation has ended. It must not block.
	Done func(*Operation)

	detach  bool
	closing *sync.WaitGroup // probes that are being closed
	err     error           // the first error
	// begun is the number of probes whose change has begun or failed. abandoned: Shutdown has taken the others. Guarded
	// by Gate.mu.
	begun     int
	abandoned bool
}

// Probe is one probe of an Operation.
type Probe struct {
	Offset uint64
	// Attach attaches it through a path of the file, with Attach of this package. Not used to detach.
	Attach func(path string) (io.Closer, error)
	// Link is the attached probe, or nil.
	Link io.Closer
	// Detached is called when the probe has been detached from all processes, before the next probe of the operation is. Grace
	// periods need not have ended. It may be nil.
	Detached func()
	// Err is why the probe is not attached, or still attached.
	Err error
}

// attach attaches probes, and returns at once.
func (g *Gate) attach(o *Operation) { g.enqueue(o) }

// detach detaches probes, and returns at once. If Link is not nil when it is done, the probe is still attached.
func (g *Gate) detach(o *Operation) {
	o.detach = true
	g.enqueue(o)
}

// Err returns the first error of the probes.
func (o *Operation) Err() error { return o.err }

func (o *Operation) name() string {
	if o.detach {
		return detachOperation
	}
	return attachOperation
}

func (g *Gate) finish(o *Operation) {
	g.mu.Lock()
	abandoned := o.abandoned
	g.mu.Unlock()
	if abandoned {
		return // its result is not awaited
	}
	for i := range o.Probes {
		p := &o.Probes[i]
		if (p.Link != nil) == o.detach && p.Err == nil {
			p.Err = safely.ErrPanicked
		}
		if o.err == nil {
			o.err = p.Err
		}
	}
	if o.Done != nil {
		o.Done(o)
	}
}

// do makes the calls, up to the first call that must not be made.
func (g *Gate) do(o *Operation) {
	if len(o.Probes) == 0 {
		return
	}
	o.closing = &sync.WaitGroup{}
	defer o.closing.Wait()
	f, err := g.openAny(o)
	if err != nil {
		g.fail(o, 0, err)
		return
	}
	defer f.Close()
	path := fmt.Sprint("/proc/self/fd/", f.Fd()) // of the file that was looked at, even if the other path changes
	for i := range o.Probes {
		v, err := g.look(f, o)
		if !g.begins(o, i) {
			return
		}
		if err == nil {
			err = g.call(o, &o.Probes[i], path, v)
		}
		if err != nil {
			o.closing.Wait()
			g.fail(o, i, err)
			return
		}
		if i == 0 {
			g.removeLeft(o.Source, v, f)
		}
	}
}

// begins records that the calls before a probe were made. It reports false if Shutdown has taken the other probes away.
func (g *Gate) begins(o *Operation, probe int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !o.abandoned {
		o.begun = probe + 1
	}
	return !o.abandoned
}

// abandon takes from a hanging operation the probes that it has not begun to change.
func (g *Gate) abandon(o *Operation) []Probe {
	g.mu.Lock()
	defer g.mu.Unlock()
	o.abandoned = true
	return o.Probes[o.begun:]
}

// fail sets the error of all probes from a position on that have no error yet.
func (g *Gate) fail(o *Operation, from int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o.abandoned {
		return
	}
	for i := from; i < len(o.Probes); i++ {
		if p := &o.Probes[i]; p.Err == nil && (p.Link != nil) == o.detach {
			p.Err = err
		}
	}
}

func (g *Gate) openAny(o *Operation) (*os.File, error) {
	err := fmt.Errorf("%w: no path of the file", ErrDeferred)
	for _, path := range o.Paths {
		var f *os.File
		if f, err = g.opening.Do(context.Background(), path, openLimit, func() (*os.File, error) { return g.open(path) }); err == nil {
			return f, nil
		}
	}
	return nil, err
}

// look returns an error if the probes of a file must not be changed now.
func (g *Gate) look(f *os.File, o *Operation) (view, error) {
	var held map[holder]bool
	for n := range looksWhileHeld {
		if n > 0 {
			time.Sleep(lookPause)
		}
		v, err := g.eyes.look(f, o.offsets(), g.opts.MaxMappings)
		if err != nil {
			return v, fmt.Errorf("%w: %w", ErrDeferred, err)
		}
		if v.mappings > g.opts.MaxMappings {
			return v, fmt.Errorf("%w: the file has more than %d mappings (--probe.max-mappings)", ErrRefused, g.opts.MaxMappings)
		}
		g.mu.Lock()
		err = g.breaker.check(v.mapping, o.Owners)
		ending := !g.endBy.IsZero()
		over := ending && (!o.detach || time.Now().After(g.endBy))
		g.mu.Unlock()
		if over {
			return v, fmt.Errorf("%w: the sensor ends", ErrDeferred)
		}
		if err != nil && !ending {
			return v, err
		}
		if v.more { // one of the others may hold it all the time
			continue
		}
		if held = still(held, v.held); len(held) == 0 {
			return v, nil
		}
	}
	for h := range held {
		return view{}, fmt.Errorf("%w: process %d, which maps the file, holds its mmap_lock", ErrDeferred, h.pid)
	}
	return view{}, fmt.Errorf("%w: many processes that map the file hold their mmap_lock", ErrDeferred)
}

func (o *Operation) offsets() []uint64 {
	offsets := make([]uint64, len(o.Probes))
	for i := range o.Probes {
		offsets[i] = o.Probes[i].Offset
	}
	return offsets
}

// still returns the processes that hold their lock at this look and at all looks before.
func still(before map[holder]bool, now []holder) map[holder]bool {
	out := map[holder]bool{}
	for _, h := range now {
		if before == nil || before[h] {
			out[h] = true
		}
	}
	return out
}

// call changes one probe, and opens the breaker if forks may have waited too long. It does not wait for the grace
// periods of detached probes, so that they pass together.
func (g *Gate) call(o *Operation, p *Probe, path string, v view) error {
	key := durationKey{o.Source, o.name()}
	if !o.detach {
		c := g.eyes.start(o.Source, func() { p.Link, p.Err = p.Attach(path) })
		forks, err := g.released(c, v.mappings, false)
		g.observe(key, c.took)
		return g.judge(o, path, v, forks, err)
	}
	g.closing <- struct{}{}
	c := g.eyes.start(o.Source, func() {
		err := p.Link.Close()
		p.Link, p.Err = nil, err
	})
	safely.Go(o.closing, o.Source, func() {
		defer func() { <-g.closing }()
		<-c.ended
		g.observe(key, c.took)
		if g.eyes.unmeasured != nil { // otherwise the time that forks wait is known earlier
			_ = g.judge(o, path, v, max(c.took-graceAllowed, 0), c.err)
		}
	})
	forks, err := g.released(c, v.mappings, true)
	if p.Detached != nil {
		p.Detached()
	}
	return g.judge(o, path, v, forks, err)
}

// judge opens the breaker of a file if forks may have waited too long.
func (g *Gate) judge(o *Operation, path string, v view, forks time.Duration, err error) error {
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDeferred, err)
	}
	g.observeForks(durationKey{o.Source, o.name()}, forks)
	if forks <= g.opts.Limit {
		return nil
	}
	err = fmt.Errorf("%w: forks could wait %v while the kernel changed a probe (--probe.attach-limit): %s", ErrRefused,
		forks.Round(time.Millisecond), o.name())
	g.mu.Lock()
	g.breaker.open(v.mapping, o.Owners, err)
	g.mu.Unlock()
	g.opts.Logger.Warn("probes of a file are not changed any more", zap.String("source", o.Source), zap.String("path", path),
		zap.Int("mappings", v.mappings), zap.Error(err))
	return err
}
