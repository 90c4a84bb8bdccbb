// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// Start is what a session starts with, and how it reports.
type Start struct {
	wire.Start
	Counts *wire.XIDs
	Notify func(why error)    // called when a device answers for the first time, or to end the session
	Listed func(wire.Listing) // called with the processes of a device before they are published; may be nil
	Logger *zap.Logger
}

// Session is the time from opening to closing the library. Its devices do not change.
type Session struct {
	Start
	lib     *Library
	devices []*device
	driver  model.GPUDriver

	watched   map[nvml.Device]bool
	unwatched bool
	unwatch   chan struct{} // closed to stop the watchers
	quiet     chan struct{} // closed after all watchers have ended
	watchers  sync.WaitGroup
}

const devicesMax = 256

var errNotReady = errors.New("the first round has not ended")

var errNoGPU = fmt.Errorf("NVML has no GPU: %w", model.ErrAbsent)

// newSession starts a worker for each device. It uses the kernel's list of devices, so that suspended devices are not
// touched and lost devices keep a name. Without this list it uses NVML's count.
func newSession(st Start, l *Library) (*Session, error) {
	o, addresses, xids := st.Options, st.Addresses, newXIDWatch(st.Counts)
	s := &Session{
		Start: st, lib: l, driver: l.driver(),
		watched: map[nvml.Device]bool{}, unwatch: make(chan struct{}), quiet: make(chan struct{}),
	}
	if len(addresses) == 0 {
		count, ret := l.DeviceGetCount()
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("nvmlDeviceGetCount: %w", ret)
		}
		if count <= 0 {
			return nil, errNoGPU
		}
		addresses = make([]string, min(count, devicesMax))
	}
	for i, address := range addresses {
		c := &caller{worker: newWorker(o.Interval, o.Interval*time.Duration(i)/time.Duration(len(addresses))), notify: st.Notify}
		d := newDevice(o, l, c, xids)
		d.rounds.listed, d.rounds.instances, d.address, d.index, d.operator = st.Listed, st.Instances, address, i, st.Operator
		d.begun = time.Now().Add(time.Duration(len(addresses)) * longestStart)
		d.skip = st.Skip[d.key()]
		d.shown.facts = recall(o, address, i)
		d.era.Store(&wire.Era{Since: time.Now(), Reset: st.Loaded})
		if known, ok := st.earlier(d); ok {
			d.shown.facts = known.GPU
			d.era.Store(&known.Era)
		}
		d.identify()
		s.devices = append(s.devices, d)
		go d.serve()
	}
	return s, nil
}

// driver returns the versions of the driver, of NVML and of CUDA.
func (l *Library) driver() model.GPUDriver {
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

// Read reads all devices concurrently. An unreadable device does not affect the others.
func (s *Session) Read(ctx context.Context) (model.Snapshot, error) {
	for s.Instances == wire.OneRound && slices.ContainsFunc(s.devices, func(d *device) bool { return !d.complete.Load() }) {
		select {
		case <-ctx.Done():
			return model.Snapshot{}, errNotReady
		case <-time.After(10 * time.Millisecond):
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wire.ReadTimeout)
	defer cancel()
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
		state := model.DeviceState{Source: "nvidia", Device: r.id, State: model.StateOK, Waiting: r.waiting}
		switch {
		case errors.Is(r.err, errHidden): // the device exists: it is not missing
			state.State, state.Reason = model.StateUnsupported, r.err.Error()
		case errors.Is(r.err, wire.ErrStuck):
			state.State, state.Reason = model.StateStuck, r.err.Error()
		case errors.Is(r.err, errClosing):
			state.State, state.Reason = model.StateReleased, r.err.Error()
		case r.err != nil:
			state.State, state.Reason = model.StateFailed, r.err.Error()
		case r.note != nil:
			state.Reason = r.note.Error()
		}
		snapshot.DeviceStates = append(snapshot.DeviceStates, state)
	}
	snapshot.BoundGPUs()
	return snapshot, nil
}

// Tend starts counting the XIDs of devices that have answered.
func (s *Session) Tend() {
	if s.Instances == wire.OneRound {
		return
	}
	for _, d := range s.devices {
		if a := d.attached.Load(); a != nil && !s.unwatched && !s.watched[a.handle] {
			s.watched[a.handle] = true
			s.watchers.Go(func() { d.xids.watch(s.lib, a.handle, a.uuid, d.again, s.unwatch) })
		}
	}
}

// endWatch ends the watchers, and reports whether all have ended. When the library is reopened, XIDs are counted again.
func (s *Session) endWatch() bool {
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

// End stops all workers and closes the library. While a call hangs it does neither, so that the other devices can still
// be read.
func (s *Session) End() bool {
	ctx, cancel := context.WithTimeout(context.Background(), wire.ReadTimeout)
	defer cancel()
	for _, d := range s.devices {
		if d.skipped() {
			continue
		}
		if _, err := ask(ctx, d.worker, func() struct{} { return struct{}{} }); errors.Is(err, wire.ErrStuck) || errors.Is(err, errLate) {
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
		d.rounds.sampler.close()
	}
	if err := s.lib.Close(); err != nil {
		s.Logger.Debug("closing NVML", zap.Error(err))
	}
	return true
}

// Known returns the devices for the next session, by their keys.
func (s *Session) Known() map[string]wire.KnownDevice {
	all := make(map[string]wire.KnownDevice, len(s.devices))
	for _, d := range s.devices {
		if gpu := (*d.identity.Load())[0]; gpu.UUID != "" {
			all[d.key()] = wire.KnownDevice{GPU: gpu, Era: d.current()}
		}
	}
	return all
}

// hung returns the keys of the devices with a call that has not returned for longer than limit, the earliest call
// first.
func (s *Session) hung(limit time.Duration) []string {
	type call struct {
		key   string
		began time.Time
	}
	var calls []call
	for _, d := range s.devices {
		if began, is := d.inStep(); is && time.Since(began) > limit && time.Since(d.begun) > 0 {
			calls = append(calls, call{d.key(), began})
		}
	}
	slices.SortFunc(calls, func(a, b call) int { return a.began.Compare(b.began) })
	var keys []string
	for _, c := range calls {
		keys = append(keys, c.key)
	}
	return keys
}

// silent reports whether the calls for all devices that are called hang.
func (s *Session) silent() bool {
	return !slices.ContainsFunc(s.devices, func(d *device) bool {
		began, is := d.inStep()
		return !d.skipped() && !d.asleep() && (!is || time.Since(began) < d.hung)
	})
}

// Split lists the addresses of GPUs with MIG instances that this session does not read.
func (s *Session) Split() []string {
	var addresses []string
	for _, d := range s.devices {
		if d.rounds.instances == wire.GPMOnly && d.rounds.mig.Load() && d.late() == nil { // a late device would hang again
			addresses = append(addresses, d.address)
		}
	}
	return addresses
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
