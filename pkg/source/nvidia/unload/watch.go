// SPDX-License-Identifier: Apache-2.0

// Package unload detects that a tool is about to unload the NVIDIA driver, or to change MIG instances. Both fail while
// a process has the driver open.
//
// rmmod and the driver container read the reference count of the module before they call delete_module, and they do not
// try again. The system call comes too late as a signal, so this package uses what happens before it:
//
//   - labels of the node: GPU Operator and MIG manager pause the clients of the driver with them;
//   - the ready file of the driver container, which its preStop hook removes;
//   - the stop of nvidia-persistenced, which comes first. Its crash, and any end of the fabric manager, are not signals.
//
// The driver may be opened again when the signal is over, when another instance of the driver is loaded, or after 15
// minutes.
package unload

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/safely"
)

const (
	// interval is the time between two checks. Labels, the ready file and the end of a process cause a check at once.
	interval = time.Second
	// idle is the interval without a loaded driver.
	idle = 5 * interval
	// longest is the maximum duration of one signal.
	longest = 15 * time.Minute
)

// Options configures Watch.
type Options struct {
	Sysfs, Procfs string // mount points
	Run           string // /run of the node
	Node          *Node  // nil if labels are not read
	Logger        *zap.Logger
}

// Handler is called by Watch, from one goroutine.
type Handler struct {
	// Release is called when the driver must be released, and again if the reason changes. most is the maximum time.
	Release func(reason string, most time.Duration)
	// Resume is called when the driver may be opened again. It has the reason of the last call of Release.
	Resume func(reason string)
}

// Watch calls the handler until the context ends.
func Watch(ctx context.Context, o Options, h Handler) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ready := &readyFile{run: o.Run, log: o.Logger}
	directories := newDirectories(o.Logger, ready.directories()...)
	safely.Go(&wg, "nvidia", func() { directories.watch(ctx, notify) })
	daemons := newDaemons(o)
	defer daemons.close()
	var labels nodeLabels
	if o.Node != nil {
		safely.Go(&wg, "nvidia", func() {
			o.Node.watch(ctx, o.Logger, func(l map[string]string) { labels.set(l); notify() })
		})
	}

	var d decision
	timer := time.NewTimer(idle)
	defer timer.Stop()
	reason := ""
	for {
		directories.add()
		signals := append(daemons.signals(notify), ready.signals()...)
		signals = append(signals, labels.signals()...)
		driver := loaded(o.Sysfs)
		next, left := d.decide(time.Now(), signals, driver)
		if next != reason {
			report(o.Logger, h, reason, next, left)
			reason = next
		}
		timer.Reset(pause(driver, reason))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// pause returns the time until the next check. While there is a reason another instance of the driver is awaited.
func pause(driver uint64, reason string) time.Duration {
	if driver == 0 && reason == "" {
		return idle
	}
	return interval
}

// report calls the handler for a changed reason.
func report(log *zap.Logger, h Handler, old, reason string, left time.Duration) {
	if reason == "" {
		log.Info("the NVIDIA driver may be opened again", zap.String("released", old))
		h.Resume(old)
		return
	}
	log.Info("the NVIDIA driver must be released", zap.String("reason", reason))
	h.Release(reason, left)
}
