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

const (
	// watchInterval is the interval at which the devices are listed, and the longest delay of a driver reload, if
	// announcements may be missing: a container without the network of the host receives them for uverbs devices only.
	watchInterval = 2 * time.Second
	// shortInterval applies while something is unfinished.
	shortInterval = 500 * time.Millisecond
	// A driver reload waits for the release of the hooks, so the release follows an announcement soon. Hooks are
	// attached when the announcements pause: the maps are sized for the devices that exist then.
	releasePause = 50 * time.Millisecond
	attachPause  = 500 * time.Millisecond
	attachLimit  = 2 * time.Second
)

// watch follows the devices. Reads of the maps are followed by a comparison with RDMA netlink.
func (s *Source) watch(ctx context.Context, changed <-chan struct{}, interval func(poll time.Duration) time.Duration) {
	timer := time.NewTimer(shortInterval)
	defer timer.Stop()
	var compare <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.reads:
			if compare == nil {
				compare = time.After(watchInterval)
			}
			continue
		case <-compare:
			compare, s.read = nil, true
		case <-changed:
			s.awaitMore(ctx, changed)
			s.unnamed = max(s.unnamed, 1)
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return
		}
		s.follow(ctx)
		if s.sensor != nil && (s.query != nil || s.unnamed > 0 || s.renamed) {
			timer.Reset(shortInterval)
		} else {
			timer.Reset(interval(watchInterval))
		}
	}
}

// awaitMore waits for further announcements after the first.
func (s *Source) awaitMore(ctx context.Context, changed <-chan struct{}) {
	pause := attachPause
	if s.sensor != nil {
		pause, changed = releasePause, nil
	}
	limit := time.After(attachLimit)
	for {
		select {
		case <-time.After(pause):
			return
		case <-limit:
			return
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// follow lists the devices and attaches or releases the hooks. Between scrapes the probe does only this: a few system
// calls.
//
// A device in another network namespace (exclusive mode of the RDMA subsystem), such as a pod's device, is not in
// class/infiniband. Its uverbs device has no namespace, and its calls are counted.
func (s *Source) follow(ctx context.Context) {
	changed, err := s.devices.poll()
	moved, uverbsErr := s.uverbs.poll()
	if err = errors.Join(err, uverbsErr); err != nil {
		s.opts.Logger.Debug("cannot list the RDMA devices", zap.Error(err))
		return
	}
	present := s.devices.entries > 0 || s.uverbs.entries > 0
	s.mu.Lock()
	if changed || moved {
		s.retry = hook.Retry{} // modules with the functions may be loaded now
	}
	attached, waiting := s.sensor != nil, s.retry.Waiting(time.Now())
	s.mu.Unlock()
	switch {
	case !present && attached:
		s.release()
	case present && !attached && !waiting:
		s.attach(ctx)
	case attached:
		s.rename(changed || moved)
		s.renamed = s.renamed || changed
		s.queryNetlink(ctx)
	}
}

// queryNetlink asks RDMA netlink for data that the programs do not see, if something changed.
func (s *Source) queryNetlink(ctx context.Context) {
	if !s.queryDone(ctx) {
		return
	}
	sensor, renamed := s.sensor, s.renamed
	due := sensor.dueTypes(time.Now())
	read := s.read
	if !renamed && len(due) == 0 && !read {
		return
	}
	s.renamed, s.read = false, false
	s.start(ctx, func(ctx context.Context) {
		if renamed {
			sensor.reindex(ctx, s.opts)
		}
		if len(due) == 0 {
			if read {
				sensor.compare(ctx, s.opts)
			}
			return
		}
		if err := sensor.adopt(ctx, s.opts, due...); err != nil {
			s.opts.Logger.Warn("reconciling with RDMA netlink", zap.Error(err))
		}
	})
}

// queryLimit is how long callers wait for RDMA netlink: at the first dump, so that the first scrape has the objects,
// and before the sensor is closed.
const queryLimit = time.Second

// start calls f, which queries drivers and may hang. When the sensor is closed, ctx ends.
func (s *Source) start(ctx context.Context, f func(context.Context)) {
	ctx, s.cancelQuery = context.WithCancel(ctx)
	s.query = s.sensor.call.Start(queryLimit, func() (struct{}, error) {
		f(ctx)
		return struct{}{}, nil
	})
}

func (s *Source) queryDone(ctx context.Context) bool {
	if s.query == nil {
		return true
	}
	if !s.query.Returned() {
		return false
	}
	if _, err := s.query.Wait(ctx); err != nil {
		s.opts.Logger.Error("querying RDMA netlink", zap.Error(err))
	}
	s.cancelQuery()
	s.query = nil
	return true
}

// closeSensor detaches the hooks. It closes the sensor at once, or when the query in progress returns.
func (s *Source) closeSensor() {
	sensor := s.sensor
	s.sensor = nil
	s.opts.Paths.set(nil)
	sensor.detach()
	if s.query != nil {
		s.cancelQuery()
		s.query = nil
	}
	closed := make(chan struct{})
	sensor.call.Close(func() {
		sensor.close()
		close(closed)
	})
	select {
	case <-closed:
	case <-time.After(queryLimit):
	}
}

func (s *Source) attach(ctx context.Context) {
	sensor, hooks, err := newSensor(s.opts.sizedForNode(max(s.devices.entries, s.uverbs.entries)))
	s.mu.Lock()
	s.hooks, s.failed = hooks, err
	if err != nil {
		s.retry.Failed(time.Now())
		s.mu.Unlock()
		return
	}
	s.sensor, s.retry = sensor, hook.Retry{}
	if sensor.cgroups != nil {
		s.opts.Paths.set(sensor.cgroups.Coll.Maps[gen.CgroupsMapPaths])
	}
	s.mu.Unlock()
	s.rename(true)
	if sensor.objects != nil {
		s.start(ctx, func(ctx context.Context) {
			if err := sensor.adopt(ctx, s.opts); err != nil {
				s.opts.Logger.Warn("not all objects made before the sensor started are attributed", zap.Error(err))
			}
		})
		_, _ = s.query.Wait(ctx) // a longer query continues in the background
	}
	s.opts.Logger.Info("hooks attached", zap.String("tiers", tiersOf(hooks)))
}

// release detaches all hooks and keeps the totals: the driver can be unloaded, and counters do not fall.
func (s *Source) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sensor.detach()
	var last model.Snapshot
	if err := s.sensor.read(&last, s.names, nil); err != nil {
		s.opts.Logger.Warn("totals of the last device are lost", zap.Error(err))
	}
	s.sensor.self(&last, &s.lost)
	s.repaired = s.repaired.plus(s.sensor.repairs())
	s.former.add(&last)
	s.closeSensor()
	s.failed, s.unnamed, s.renamed = nil, 0, false
	s.hooks = unattached("no RDMA device: the hooks come with the next one", model.StateAbsent)
	s.opts.Logger.Info("last RDMA device removed, hooks released")
}

// rename reads the names of the uverbs devices after a change, and again at the next poll: a device is listed before it
// has its number. If another device takes over a number, the counters under that number keep the former name.
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
			s.opts.Logger.Warn("totals of a removed device are lost", zap.Error(err))
		}
		s.former.add(&last)
	}
	if s.names == nil {
		s.names = deviceNames{}
	}
	maps.Copy(s.names, names)
	s.sensor.showDevices(names)
	s.unnamed--
}

// reindex updates the device names of objects: a renamed device keeps its index. Counts of created objects keep the
// former name, as counts of verbs do, because another device may get that name.
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
		m := s.objects.Coll.Maps[gen.ObjectsMapHoldings]
		_, err := hook.Batches(m, &s.holdingKeys, &s.holdings, func(k gen.ObjectsHoldingKey, v *gen.ObjectsHolding) {
			if former, ok := given[k.Device]; ok {
				before := model.Count(v.Created - min(v.Created, s.renamed[k]))
				s.former.Add(model.CgroupID(k.Cgroup), model.ObjectKey{Device: former, Type: objectType(k.Type)}, before)
				s.renamed[k] = v.Created
			}
		})
		if err != nil {
			opts.Logger.Warn("counts of created objects under the former name of a device are lost", zap.Error(err))
		}
	}
	maps.Copy(s.indexes, names)
}
