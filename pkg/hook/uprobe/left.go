// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// leftDir is the directory in bpffs of the links that a sensor has left. Their names begin with the address space of
// the file, which exists as long as the probe.
const leftDir = "accelscope-uprobes"

// EndLimit is how long Shutdown tries to detach: grace periods take seconds on a busy machine, and systemd and the
// kubelet wait half a minute.
const EndLimit = 5 * time.Second

// hangLimit is how long a call that began within EndLimit may take.
const hangLimit = time.Second

// end ends attaching at the end of the sensor. shutdown follows.
func (g *Gate) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.endBy.IsZero() {
		g.endBy = time.Now().Add(EndLimit)
	}
}

// shutdown detaches the remaining probes at the end of the sensor, waits, and retries deferred operations. It pins what
// remains. Links with an open breaker are detached too if no process holds a lock: the kernel would do the same.
func (g *Gate) shutdown(operations []*Operation) {
	g.end()
	g.mu.Lock()
	by := g.endBy
	g.mu.Unlock()
	g.ending.Add(1)
	defer g.ending.Done()
	for pause := lookPause; len(operations) > 0; pause *= 2 {
		operations = g.detachAll(operations, by)
		if time.Until(by) <= pause {
			break
		}
		if len(operations) > 0 {
			time.Sleep(pause)
		}
	}
	for _, o := range operations {
		g.leave(o)
	}
}

// detachAll detaches probes, and returns operations with the probes that are still attached.
func (g *Gate) detachAll(operations []*Operation, by time.Time) (rest []*Operation) {
	for _, o := range operations {
		done := make(chan *Operation, 1)
		o := &Operation{Source: o.Source, Paths: o.Paths, Owners: o.Owners, Probes: attached(o.Probes)}
		if len(o.Probes) == 0 {
			continue
		}
		o.Done = func(o *Operation) { done <- o }
		g.detach(o)
		timer := time.NewTimer(max(time.Until(by.Add(hangLimit)), 0)) // after by, no other call begins
		select {
		case <-done:
			o.Probes = attached(o.Probes)
			rest = append(rest, o)
		case <-timer.C:
			if !g.withdraw(o) { // one of its calls hangs, the others are not made
				o = &Operation{Source: o.Source, Paths: o.Paths, Owners: o.Owners, Probes: g.abandon(o)}
			}
			rest = append(rest, o)
		}
		timer.Stop()
	}
	return rest
}

func attached(probes []Probe) (out []Probe) {
	for _, p := range probes {
		if p.Link != nil {
			p.Err = nil
			out = append(out, p)
		}
	}
	return out
}

type pinner interface{ Pin(path string) error }

// leave pins links, so that the kernel does not detach them at the end of the process.
func (g *Gate) leave(o *Operation) {
	if len(o.Probes) == 0 {
		return
	}
	err := g.pin(o)
	g.opts.Logger.Warn("probes stay attached after the end of the sensor: to detach them now would delay all forks",
		zap.String("source", o.Source), zap.Int("probes", len(o.Probes)), zap.NamedError("pinning", err))
}

func (g *Gate) pin(o *Operation) error {
	dir, err := g.leftDir()
	if err != nil {
		return err
	}
	f, err := g.openAny(o)
	if err != nil {
		return err
	}
	defer f.Close()
	v, err := g.eyes.look(f, o.offsets(), g.opts.MaxMappings)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var errs []error
	for i, p := range o.Probes {
		l, ok := p.Link.(pinner)
		if !ok {
			errs = append(errs, errors.ErrUnsupported)
			continue
		}
		errs = append(errs, l.Pin(filepath.Join(dir, leftName(v.mapping, p.Offset, i))))
	}
	return errors.Join(errs...)
}

func leftName(mapping, offset uint64, i int) string {
	return fmt.Sprintf("%x-%x-%d-%d-%d", mapping, offset, os.Getpid(), time.Now().UnixNano(), i)
}

func offsetOf(name string) (offset uint64, err error) {
	fields := strings.Split(name, "-")
	if len(fields) < 2 {
		return 0, fmt.Errorf("%s: no offset in the name", name)
	}
	return strconv.ParseUint(fields[1], 16, 64)
}

func (g *Gate) leftDir() (string, error) {
	for _, dir := range g.opts.BPFFS {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.BPF_FS_MAGIC {
			return filepath.Join(dir, leftDir), nil
		}
	}
	return "", fmt.Errorf("no bpffs in %q", g.opts.BPFFS)
}

// findLeft finds the files with links that an earlier sensor has left.
func (g *Gate) findLeft() {
	g.left = map[uint64]int{}
	dir, err := g.leftDir()
	if err != nil {
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		id, _, _ := strings.Cut(e.Name(), "-")
		if mapping, err := strconv.ParseUint(id, 16, 64); err == nil {
			g.left[mapping]++
		}
	}
}

// removeLeft detaches the links of a file that an earlier sensor has left, with a look before each. A link that cannot
// be removed now stays until the next operation on the file.
func (g *Gate) removeLeft(source string, v view, f *os.File) {
	if g.left[v.mapping] == 0 {
		return
	}
	delete(g.left, v.mapping)
	dir, err := g.leftDir()
	if err != nil {
		return
	}
	paths, _ := filepath.Glob(filepath.Join(dir, strconv.FormatUint(v.mapping, 16)+"-*"))
	o := &Operation{Source: source, Paths: []string{"/proc/self/fd/" + strconv.Itoa(int(f.Fd()))}}
	for _, path := range paths {
		offset, err := offsetOf(filepath.Base(path))
		var l link.Link
		if err == nil {
			l, err = link.LoadPinnedLink(path, nil)
		}
		if err != nil {
			g.opts.Logger.Debug("a probe of an earlier sensor", zap.Error(err))
			continue
		}
		o.Probes = append(o.Probes, Probe{Offset: offset, Link: pinned{l, path}})
	}
	o.detach, o.closing = true, &sync.WaitGroup{}
	defer o.closing.Wait()
	for i := range o.Probes {
		again, err := g.look(f, o)
		if err == nil {
			err = g.call(o, &o.Probes[i], f.Name(), again)
		}
		if err != nil {
			g.left[v.mapping] = len(o.Probes) - i
			o.closing.Wait()
			for _, p := range attached(o.Probes) {
				_ = p.Link.(pinned).Link.Close() // it stays pinned
			}
			return
		}
	}
}

type pinned struct {
	link.Link
	path string
}

// Close removes the pin, and then closes the last file of the link.
func (p pinned) Close() error { return errors.Join(p.Unpin(), p.Link.Close()) }

var _ io.Closer = pinned{}
