// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// session is the time from opening to closing the library. Its set of devices is constant.
type session struct {
	o         Options
	lib       *library
	addresses []string // as listed by the kernel
	devices   []*device
	driver    model.GPUDriver

	watched   map[nvml.Device]bool
	unwatched bool
	unwatch   chan struct{} // closed to stop the watchers
	quiet     chan struct{} // closed when all watchers have ended
	watchers  sync.WaitGroup
}

// devicesMax bounds the number of devices that the library reports.
const devicesMax = 256

// newSession starts a worker for each device. It uses the kernel's list of devices, so that
// suspended devices are not touched and lost devices keep a name; without the list it uses
// NVML's count.
//
// before has the devices of the previous session with the same driver.
func newSession(
	o Options, l *library, addresses []string, before map[string]knownDevice, x *xids, notify func(error),
) *session {
	s := &session{
		o: o, lib: l, addresses: addresses, driver: l.driver(),
		watched: map[nvml.Device]bool{}, unwatch: make(chan struct{}), quiet: make(chan struct{}),
	}
	if len(addresses) == 0 {
		count, ret := l.DeviceGetCount()
		if ret != nvml.SUCCESS {
			o.Logger.Warn("cannot read the number of GPUs", zap.Error(ret))
		}
		addresses = make([]string, min(max(count, 0), devicesMax))
	}
	for i, address := range addresses {
		d := &device{
			worker: newWorker(o.Interval), o: o, lib: l, sampler: newSampler(l, o.CgroupOf), xids: x, notify: notify,
			address: address, index: i, since: time.Now(),
			begun: time.Now().Add(time.Duration(len(addresses)) * longestStart),
		}
		d.shown.facts = recall(o, address, i)
		if known, ok := before[d.key()]; ok {
			d.shown.facts, d.since = known.gpu, known.since
		}
		d.identify()
		s.devices = append(s.devices, d)
		go d.run(o.Interval, d.round())
	}
	return s
}

// driver returns the versions of the driver, of NVML and of CUDA.
func (l *library) driver() model.GPUDriver {
	d := model.GPUDriver{Vendor: model.NVIDIA}
	d.Version = known(l.SystemGetDriverVersion())
	d.Library = known(l.SystemGetNVMLVersion())
	v, ret := l.SystemGetCudaDriverVersion_v2()
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND {
		v, ret = l.SystemGetCudaDriverVersion()
	}
	if ret == nvml.SUCCESS {
		d.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	return d
}

// read reads all devices concurrently. An unreadable device does not affect the others.
func (s *session) read(ctx context.Context) model.Snapshot {
	readings := make([]reading, len(s.devices))
	var wg sync.WaitGroup
	for i, d := range s.devices {
		wg.Go(func() { readings[i] = d.read(ctx) })
	}
	wg.Wait()
	snapshot := model.Snapshot{GPUs: []model.GPU{}, GPUDrivers: []model.GPUDriver{s.driver}}
	for _, r := range readings {
		snapshot.GPUs = append(snapshot.GPUs, r.gpus...)
		if r.processes != nil && snapshot.GPUProcesses == nil {
			snapshot.GPUProcesses = []model.GPUProcess{}
		}
		snapshot.GPUProcesses = append(snapshot.GPUProcesses, r.processes...)
		if errors.Is(r.err, errHidden) {
			continue
		}
		state := model.DeviceState{Source: "nvidia", Device: r.id, State: model.StateOK}
		switch {
		case errors.Is(r.err, errStuck):
			state.State, state.Reason = model.StateStuck, r.err.Error()
		case r.err != nil:
			state.State, state.Reason = model.StateFailed, r.err.Error()
		}
		snapshot.DeviceStates = append(snapshot.DeviceStates, state)
	}
	return snapshot
}

// watch starts counting the XIDs of the devices that have answered.
func (s *session) watch(x *xids) {
	for _, d := range s.devices {
		if a := d.attached.Load(); a != nil && !s.unwatched && !s.watched[a.handle] {
			s.watched[a.handle] = true
			s.watchers.Go(func() { x.watch(s.lib, a.handle, a.uuid, s.unwatch) })
		}
	}
}

// endWatch reports whether all watchers have ended. XIDs are counted again when the library
// has been reopened.
func (s *session) endWatch() bool {
	if !s.unwatched {
		s.unwatched = true
		close(s.unwatch)
		go func() {
			s.watchers.Wait()
			close(s.quiet)
		}()
	}
	return within(s.quiet)
}

// end stops all workers and closes the library. While a call hangs it does neither, so that
// the other devices can still be read.
func (s *session) end() bool {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	for _, d := range s.devices {
		if _, err := ask(ctx, d.worker, func() struct{} { return struct{}{} }); errors.Is(err, errStuck) || errors.Is(err, errLate) {
			return false
		}
	}
	if !s.endWatch() {
		return false
	}
	ended := true
	for _, d := range s.devices {
		d.end()
	}
	for _, d := range s.devices {
		ended = within(d.done) && ended
	}
	if !ended {
		return false
	}
	for _, d := range s.devices {
		d.sampler.close()
	}
	if err := s.lib.close(); err != nil {
		s.o.Logger.Debug("closing NVML", zap.Error(err))
	}
	return true
}

// knownDevice is a device of an earlier session.
type knownDevice struct {
	gpu   model.GPU
	since time.Time
}

// identities returns the devices for the next session.
func (s *session) identities() map[string]knownDevice {
	all := make(map[string]knownDevice, len(s.devices))
	for _, d := range s.devices {
		if gpu := (*d.identity.Load())[0]; gpu.UUID != "" {
			all[d.key()] = knownDevice{gpu, d.since}
		}
	}
	return all
}

// within waits until a channel is closed, for at most two seconds.
func within(done <-chan struct{}) bool {
	timer := time.NewTimer(2 * time.Second)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
