// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/program"
)

// CloseTimeout limits the closing of the sources: a refresh, then detaching and restoring.
const CloseTimeout = uprobe.EndLimit + time.Second

// Run serves until ctx is done.
func Run(ctx context.Context, o Options) error {
	log := o.Logger
	if err := o.Check(); err != nil { // before anything is attached
		return err
	}
	program.LimitMemory(log)
	if !o.NoSelfMetrics {
		o.Compat = append(o.Compat, metrics.Process)
	}
	program.Starting()
	s, err := New(o)
	program.Started()
	if err != nil {
		return err
	}
	defer s.CloseInTime(log)
	defer control.Serve(o.Socket, s.gpus, s.inventory, log)()
	defer watchUnload(&o, s.gpus, log)()
	if !hasHCA(o.Sysfs) {
		log.Info("no HCA on this node: its series appear with the first one; " +
			"`make demo` in the source tree shows a node with Soft-RoCE")
	}

	s.recorder = overview.NewRecorder(o.Pages && o.History)
	visitors := httpserver.NewClients(log.Named("http"))
	var refreshed atomic.Bool
	ready := func() (bool, []string) {
		if !refreshed.Load() {
			return false, nil
		}
		return true, s.problems()
	}
	handler, err := newHandler(o.WebFlags, backend{s.encode, s.known, s.peerShares, ready, o.Version.Number}, visitors, log)
	if err != nil {
		return err
	}
	server, err := httpserver.Start(o.ListenFlags, handler, ready, visitors, log)
	if err != nil {
		return err
	}
	defer server.StopProbes()
	notifySystemd := func(state string) {
		if err := program.Notify(state); err != nil {
			log.Warn("notifying systemd failed", zap.String("state", state), zap.Error(err))
		}
	}
	first := make(chan struct{})
	go func() {
		defer close(first)
		s.engine.Refresh()
		refreshed.Store(true)
	}()

	for {
		select {
		case err := <-server.Failed():
			return fmt.Errorf("serve: %w", err)
		case <-first:
			first = nil
			if err := s.degraded(); o.Strict && err != nil {
				server.Shutdown()
				return fmt.Errorf("--strict: %w", err)
			}
			notifySystemd("READY=1")
		case <-ctx.Done():
			log.Info("shutting down")
			notifySystemd("STOPPING=1")
			server.Shutdown()
			return nil
		}
	}
}

// hasHCA reports whether the kernel has an RDMA device.
func hasHCA(sysfs string) bool {
	devices, err := os.ReadDir(filepath.Join(sysfs, "class/infiniband"))
	return err == nil && len(devices) > 0
}

// CloseInTime closes the sensor and logs a failure, or that it takes too long.
func (s *Sensor) CloseInTime(log *zap.Logger) { closeWithin(CloseTimeout, s, log) }

// closeWithin closes s and logs a failure or the end of limit. The kernel releases
// everything at the end of the process, which a driver that hangs must not delay.
func closeWithin(limit time.Duration, s io.Closer, log *zap.Logger) {
	done := make(chan error, 1)
	go func() { done <- s.Close() }()
	select {
	case err := <-done:
		if err != nil {
			log.Warn("closing the sources failed", zap.Error(err))
		}
	case <-time.After(limit):
		log.Warn("sources are not closed within the limit; the kernel releases their resources", zap.Duration("limit", limit))
	}
}
