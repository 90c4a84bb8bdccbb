// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// faults are all faults of the soak.
func (k *soak) faults() []fault {
	l := k.load
	all := []fault{
		{
			"SIGKILL of the sensor",
			[]string{"sensor"},
			func() error { k.onMain(k.killSensor); return nil },
			func() error { k.onMain(k.startSensor); return nil },
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
	return slices.Concat(all, k.deviceFaults(), k.tenantFaults(), k.limitFaults())
}

func (k *soak) killSensor() {
	k.outage(k.roundBegan)
	k.checkNames()
	k.s.kill()
	k.s, k.result.last = nil, nil
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
