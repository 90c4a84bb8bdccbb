// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// session is the time from opening to closing the library. Its set of devices is constant.
type session interface {
	// read returns the current values. It returns an error only if there are none.
	read(ctx context.Context) (model.Snapshot, error)
	// tend does what is due between reads. It does not block.
	tend()
	// end closes the library. It returns false if that is not possible, as a call hangs.
	end() bool
	// known returns the devices for the next session, by their keys.
	known() map[string]wire.KnownDevice
	// open lists the device nodes that the library has open.
	open() []string
	// split lists the addresses of the GPUs with MIG instances that this session does not read.
	split() []string
}

// start is what a session starts with, and how it reports.
type start struct {
	wire.Start
	logger *zap.Logger

	xids     *wire.XIDs
	notify   func(why error)                       // called when a device has answered for the first time, or to end the session
	listed   func(pids []int)                      // called with the processes of a device before they are published; may be nil
	cgroupOf func(pid int) (model.CgroupID, error) // may be nil
	children *children                             // counts the children of all sessions
}

// localSession is a session in this process.
type localSession struct {
	start
	lib     *library
	devices []*device
	driver  model.GPUDriver

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
func newSession(st start, l *library) (*localSession, error) {
	o, addresses, xids := st.Options, st.Addresses, newXIDWatch(st.xids)
	s := &localSession{
		start: st, lib: l, driver: l.driver(),
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
		d := &device{
			worker: newWorker(o.Interval, o.Interval*time.Duration(i)/time.Duration(len(addresses))), o: o,
			lib: l, sampler: newSampler(l, o.Root), xids: xids,
			notify: st.notify, listed: st.listed, instances: st.Instances,
			address: address, index: i, operator: st.Operator,
			begun: time.Now().Add(time.Duration(len(addresses)) * longestStart),
		}
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
func (s *localSession) read(ctx context.Context) (model.Snapshot, error) {
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
		case errors.Is(r.err, errHidden): // it is there, and not missing
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

// tend starts counting the XIDs of the devices that have answered.
func (s *localSession) tend() {
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

// endWatch reports whether all watchers have ended. XIDs are counted again when the library
// has been reopened.
func (s *localSession) endWatch() bool {
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
func (s *localSession) end() bool {
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
		d.sampler.close()
	}
	if err := s.lib.close(); err != nil {
		s.logger.Debug("closing NVML", zap.Error(err))
	}
	return true
}

func (s *localSession) known() map[string]wire.KnownDevice {
	all := make(map[string]wire.KnownDevice, len(s.devices))
	for _, d := range s.devices {
		if gpu := (*d.identity.Load())[0]; gpu.UUID != "" {
			all[d.key()] = wire.KnownDevice{GPU: gpu, Era: d.current()}
		}
	}
	return all
}

// hung returns the keys of the devices with a call that has not returned for longer than limit,
// the earliest call first.
func (s *localSession) hung(limit time.Duration) []string {
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

// silent reports whether calls for all devices hang that are called.
func (s *localSession) silent() bool {
	return !slices.ContainsFunc(s.devices, func(d *device) bool {
		began, is := d.inStep()
		return !d.skipped() && !d.asleep() && (!is || time.Since(began) < d.hung)
	})
}

func (s *localSession) split() []string {
	var addresses []string
	for _, d := range s.devices {
		if d.instances == wire.GPMOnly && d.mig.Load() && d.late() == nil { // it would hang in another session, too
			addresses = append(addresses, d.address)
		}
	}
	return addresses
}

func (s *localSession) open() []string { return deviceNodes(os.Getpid()) }

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
