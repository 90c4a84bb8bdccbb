// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// faults are all faults of the soak.
func (k *soak) faults() []fault {
	l := k.load
	var killed *exec.Cmd
	all := []fault{
		{
			"SIGKILL of the sensor",
			[]string{"sensor"},
			func() error { k.onMain(func() { killed = k.killSensor() }); return nil },
			func() error {
				if err := k.awaitEnd(killed); err != nil {
					return err
				}
				k.onMain(k.startSensor)
				return nil
			},
		},
		{
			"SIGKILL of containerd",
			[]string{"containerd", "dockerd"},
			l.containerd.Crash,
			func() error { return l.containerd.Start(k.ctx) },
		},
		{
			"SIGKILL of dockerd",
			[]string{"dockerd"},
			l.docker.Crash,
			func() error { return l.docker.Start(k.ctx) },
		},
		{
			"SIGSTOP of every socket peer",
			[]string{"containerd", "dockerd", "collector"},
			func() error { return errors.Join(l.containerd.Pause(), l.docker.Pause(), l.collector.Pause()) },
			func() error { return errors.Join(l.collector.Resume(), l.docker.Resume(), l.containerd.Resume()) },
		},
		{
			"collector away",
			[]string{"collector"},
			func() error { l.collector.Kill(); return nil },
			l.startCollector,
		},
	}
	return slices.Concat(all, k.deviceFaults(), k.tenantFaults(), k.limitFaults(), k.more.faults(k))
}

// killSensor returns the process, which need not have ended.
func (k *soak) killSensor() *exec.Cmd {
	k.outage(k.roundBegan)
	k.checkNames()
	cmd := k.s.cmd
	if err := cmd.Process.Kill(); err != nil {
		k.t.Error(err)
	}
	k.s, k.result.last = nil, nil
	return cmd
}

// awaitEnd waits for the end of a killed sensor: hanging calls of mounts must return before.
func (k *soak) awaitEnd(killed *exec.Cmd) error {
	if killed == nil { // the soak has ended before
		return k.ctx.Err()
	}
	ended := make(chan struct{})
	go func() {
		_ = killed.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-k.ctx.Done():
		return k.ctx.Err()
	case <-time.After(recoveryLimit):
		return errors.New("the killed sensor does not end")
	}
}

// repeated returns a fault that runs something until it is healed.
func (k *soak) repeated(name string, uses []string, run func(context.Context) error) fault {
	var running sync.WaitGroup
	var stop context.CancelFunc
	var failed error
	return fault{
		name, uses,
		func() error {
			var ctx context.Context
			ctx, stop = context.WithCancel(k.ctx)
			running.Go(func() { failed = run(ctx) })
			return nil
		},
		func() error { stop(); running.Wait(); return failed },
	}
}
