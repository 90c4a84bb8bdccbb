// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// How often the devices are looked at. A driver reload waits for this at most;
// waking up costs more than looking.
const watchInterval = 500 * time.Millisecond

// How long after a failed attempt the hooks are tried again while a device is there.
const retryInterval = 30 * time.Second

func (s *Source) watch(ctx context.Context) {
	defer close(s.done)
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.follow(ctx)
		}
	}
}

// follow looks at the devices and attaches or releases the hooks. It is all
// that the probe does between scrapes, so a look is a few system calls.
//
// A device that was given to another network namespace, as those of pods are in
// the exclusive mode of the RDMA subsystem, is not in our class/infiniband. Its
// uverbs device has no namespace, and what it does is seen all the same.
func (s *Source) follow(ctx context.Context) {
	changed, err := s.devices.look()
	moved, uverbsErr := s.uverbs.look()
	if err = errors.Join(err, uverbsErr); err != nil {
		s.opts.Logger.Debug("cannot list the RDMA devices", zap.Error(err))
		return
	}
	present := s.devices.entries > 0 || s.uverbs.entries > 0
	s.mu.Lock()
	attached, waiting := s.sensor != nil, time.Now().Before(s.retry)
	s.mu.Unlock()
	switch {
	case !present && attached:
		s.release()
	case present && !attached && !waiting:
		s.attach(ctx)
	case attached:
		s.rename(changed || moved)
		s.renamed = s.renamed || changed
		s.ask(ctx)
	}
}

// ask asks RDMA netlink for what the sensor does not see by itself, when there is a
// reason to.
func (s *Source) ask(ctx context.Context) {
	if !s.answered(ctx) {
		return
	}
	sensor, renamed := s.sensor, s.renamed
	due := sensor.objects != nil && sensor.adoptedAt.due(time.Now(), sensor.lost())
	if !renamed && !due {
		return
	}
	s.renamed = false
	s.start(ctx, func(ctx context.Context) {
		if renamed {
			sensor.reindex(ctx, s.opts)
		}
		if !due {
			return
		}
		if err := sensor.adopt(ctx, s.opts); err != nil {
			s.opts.Logger.Warn("reconciling with RDMA netlink", zap.Error(err))
		}
	})
}

// askLimit is how long anything waits for RDMA netlink: for the first dump of the
// objects, so that the first scrape has them, and before the sensor is closed.
const askLimit = time.Second

// start calls f, which asks drivers and may hang. The sensor that goes ends ctx.
func (s *Source) start(ctx context.Context, f func(context.Context)) {
	ctx, s.stopAsking = context.WithCancel(ctx)
	s.asking = s.sensor.call.Start(askLimit, func() (struct{}, error) {
		f(ctx)
		return struct{}{}, nil
	})
}

// answered reports whether nothing is being asked.
func (s *Source) answered(ctx context.Context) bool {
	if s.asking == nil {
		return true
	}
	if !s.asking.Returned() {
		return false
	}
	if _, err := s.asking.Wait(ctx); err != nil {
		s.opts.Logger.Error("asking RDMA netlink", zap.Error(err))
	}
	s.stopAsking()
	s.asking = nil
	return true
}

// dismiss detaches the hooks and closes the sensor: now, or when what it asks for has
// been answered.
func (s *Source) dismiss() {
	sensor := s.sensor
	s.sensor = nil
	s.opts.Paths.set(nil)
	sensor.detach()
	if s.asking != nil {
		s.stopAsking()
		s.asking = nil
	}
	closed := make(chan struct{})
	sensor.call.Close(func() {
		sensor.close()
		close(closed)
	})
	select {
	case <-closed:
	case <-time.After(askLimit):
	}
}

func (s *Source) attach(ctx context.Context) {
	sensor, hooks, err := newSensor(s.opts)
	s.mu.Lock()
	s.hooks, s.failed = hooks, err
	if err != nil {
		s.retry = time.Now().Add(retryInterval)
		s.mu.Unlock()
		return
	}
	s.sensor = sensor
	s.opts.Paths.set(sensor.cgroups.Coll.Maps[gen.CgroupsMapPaths])
	s.mu.Unlock()
	s.rename(true)
	if sensor.objects != nil {
		s.start(ctx, func(ctx context.Context) {
			if err := sensor.adopt(ctx, s.opts); err != nil {
				s.opts.Logger.Warn("not all objects made before the sensor started are attributed", zap.Error(err))
			}
		})
		_, _ = s.asking.Wait(ctx) // what takes longer goes on
	}
	s.opts.Logger.Info("hooks attached", zap.Stringer("tiers", tiersOf(hooks)))
}

// release detaches everything and keeps the totals, so that the driver can be
// unloaded and no counter falls.
func (s *Source) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sensor.detach()
	var last model.Snapshot
	if err := s.sensor.read(&last, s.names, nil); err != nil {
		s.opts.Logger.Warn("totals of the last device are lost", zap.Error(err))
	}
	s.sensor.self(&last, &s.lost)
	s.gone.add(&last)
	s.dismiss()
	s.failed = nil
	s.hooks = unattached("no RDMA device: the hooks come with the next one", model.StateAbsent)
	s.opts.Logger.Info("last RDMA device gone, hooks released")
}

// rename reads which uverbs device belongs to which HCA when the devices
// changed, and once more at the next look: a device is listed before it has its
// number. When a number has changed hands, what was counted under it stays with
// the old name.
func (s *Source) rename(changed bool) {
	if changed {
		s.unnamed = 2
	}
	if s.unnamed == 0 {
		return
	}
	names, err := hook.Uverbs(s.opts.Sysfs)
	if err != nil {
		s.opts.Logger.Debug("cannot read the names of the uverbs devices", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sensor == nil {
		return
	}
	given := map[uint32]bool{}
	for rdev, name := range names {
		if old, ok := s.names[rdev]; ok && old != name {
			given[rdev] = true
		}
	}
	if len(given) > 0 {
		var last model.Snapshot
		old := func(_ uint64, rdev uint32) bool { return given[rdev] }
		if err := s.sensor.readVerbs(&last, s.names, old, old); err != nil {
			s.opts.Logger.Warn("totals of a device that is gone are lost", zap.Error(err))
		}
		s.gone.add(&last)
	}
	if s.names == nil {
		s.names = deviceNames{}
	}
	maps.Copy(s.names, names)
	s.sensor.showDevices(names)
	s.unnamed--
}

// reindex gives objects the names that their devices have now: an index stays with a device
// that is renamed. What was created before stays under the former name, as verbs do: that
// name may be given to another device.
func (s *sensor) reindex(ctx context.Context, opts Options) {
	if opts.DeviceNames == nil {
		return
	}
	names, err := opts.DeviceNames(ctx)
	if err != nil {
		opts.Logger.Debug("cannot read the names of the devices", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	given := map[uint32]string{}
	for index, name := range names {
		if former := s.deviceName(index); former != "" && former != name {
			given[index] = former
		}
	}
	if len(given) > 0 {
		if _, err := s.eachHolding(func(k gen.ObjectsHoldingKey, v *gen.ObjectsHolding) {
			if former, ok := given[k.Device]; ok {
				before := model.Count(v.Created - min(v.Created, s.renamed[k]))
				s.former.Add(k.Cgroup, model.ObjectKey{Device: former, Type: objectType(k.Type)}, before)
				s.renamed[k] = v.Created
			}
		}); err != nil {
			opts.Logger.Warn("what was created under the former name of a device is lost", zap.Error(err))
		}
	}
	maps.Copy(s.indexes, names)
}
