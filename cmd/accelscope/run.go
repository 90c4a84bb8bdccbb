// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/overview"
)

// Limits for ending: first of running scrapes, then of closing the sources.
const (
	drainTimeout = 2 * time.Second
	closeTimeout = uprobe.EndLimit + time.Second // a refresh, then detaching and restoring
)

type runCmd struct {
	sensorFlags
	webFlags
	eventFlags
	controlFlags
}

// run serves until ctx is done.
func (c *runCmd) run(ctx context.Context, log *zap.Logger) error {
	if err := c.validate(); err != nil { // before anything is attached
		return err
	}
	limitMemory(log)
	exported := c.metricsFlags
	if !c.NoSelfMetrics {
		exported.Compat = append(exported.Compat, metrics.Process)
	}
	growHeap(startGrowth)
	s, err := newSensor(c.sensorFlags, c.eventFlags, exported, log)
	growHeap(steadyGrowth)
	if err != nil {
		return err
	}
	defer closeWithin(closeTimeout, s, log)
	defer serveControl(c.controlFlags, s.gpus, s.inventory, log)()
	defer watchUnload(c.sensorFlags, s.gpus, log)()
	if !hasHCA(c.Sysfs) {
		log.Info("no HCA on this node: its series appear with the first one; " +
			"`make demo` in the source tree shows a node with Soft-RoCE")
	}

	if c.Pages {
		s.recorder = overview.NewRecorder(c.History)
	}
	visitors := newClients(log.Named("http"))
	var refreshed atomic.Bool
	ready := func() (bool, []string) {
		if !refreshed.Load() {
			return false, nil
		}
		return true, s.problems()
	}
	handler, err := newHandler(c.webFlags, s.encode, s.known, s.peerShares, ready, visitors, log)
	if err != nil {
		return err
	}
	stopProbes, err := c.serveProbes(ready, log)
	if err != nil {
		return err
	}
	defer stopProbes()
	server := newServer(handler, log)
	server.ConnState = visitors.connState
	served := make(chan error, 1)
	go func() {
		flags := &web.FlagConfig{WebListenAddresses: &c.ListenAddress, WebConfigFile: &c.WebConfig}
		served <- web.ListenAndServe(server, flags, bridge(log))
	}()
	notifySystemd := func(state string) {
		if err := notify(state); err != nil {
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
		case err := <-served:
			return fmt.Errorf("serve: %w", err)
		case <-first:
			first = nil
			if err := s.degraded(); c.Strict && err != nil {
				shutdown(server, log)
				return fmt.Errorf("--strict: %w", err)
			}
			notifySystemd("READY=1")
		case <-ctx.Done():
			log.Info("shutting down")
			notifySystemd("STOPPING=1")
			shutdown(server, log)
			return nil
		}
	}
}

// memoryShare is the part of the memory limit of the cgroup that Go's heap may use. The rest is for the kernel's maps, the
// vendors' libraries and the children.
const memoryShare = 0.75

// limitMemory sets the limit of Go's garbage collector from that of the cgroup, unless GOMEMLIMIT is set.
func limitMemory(log *zap.Logger) {
	if _, err := memlimit.Set(memlimit.WithRatio(memoryShare)); err != nil {
		log.Debug("the memory limit of the cgroup is not known", zap.Error(err))
	}
}

// serveProbes answers probes of the process at their own address, so that other clients do not delay them.
func (f *listenFlags) serveProbes(ready func() (bool, []string), log *zap.Logger) (stop func(), err error) {
	if f.ProbeAddress == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", f.ProbeAddress)
	if err != nil {
		return nil, fmt.Errorf("--web.probe-address: %w", err)
	}
	// Connections are not limited by address, as those of all processes of the node have the same, and end at once instead.
	server := newServer(newProbeHandler(ready), log)
	server.SetKeepAlivesEnabled(false)
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() }, nil
}

// hasHCA reports whether the kernel has an RDMA device.
func hasHCA(sysfs string) bool {
	devices, err := os.ReadDir(filepath.Join(sysfs, "class/infiniband"))
	return err == nil && len(devices) > 0
}

// shutdown stops the server and waits for running scrapes, up to drainTimeout.
func shutdown(server *http.Server, log *zap.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("aborting scrapes that are still running", zap.Error(err))
		_ = server.Close() // the rest ends with the process
	}
}

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
