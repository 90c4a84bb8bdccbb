// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// kprobeEvents is the directory of the perf events that are kprobes.
const kprobeEvents = "bus/event_source/devices/kprobe"

// The hooks of this source. The programs of drmHook are attached to drm_ioctl, the programs of ioctlHook to each other
// existing function of the table functions.
var (
	drmHook = hook.Hook{Name: "drm_ioctl", Tiers: []hook.Tier{
		hook.Loading(hook.Kprobe, gen.GPUDriverProgKretprobeDrmIoctl, gen.GPUDriverProgKprobeDrmIoctl),
	}}
	ioctlHook = hook.Hook{Name: "ioctl", Tiers: []hook.Tier{
		hook.Loading(hook.Kprobe, gen.GPUDriverProgKretprobeIoctl, gen.GPUDriverProgKprobeIoctl),
	}}
	// checkHook distinguishes a long call from a call whose return was missed. Without it, stuck tasks are unknown.
	checkHook = hook.Hook{Name: "driver_call_lasts", Optional: true, Tiers: []hook.Tier{
		hook.Loading(hook.Run, gen.GPUDriverProgCheckCall),
	}}
)

type sensor struct {
	object *hook.Object
	drm    model.Hook // the states of the hooks
	ioctl  model.Hook
	check  model.Hook
	links  map[string][]link.Link // by function

	skipped uint64 // missed runs of closed links
	keys    []gen.GPUDriverDriverKey
	stats   []gen.GPUDriverDriverStat
	threads []uint32
	calls   []gen.GPUDriverDriverCall
}

func newSensor(o Options) (*sensor, error) {
	// Without it, a hook would be an entry of tracefs, which outlives a killed sensor.
	if _, err := os.Stat(filepath.Join(o.Sysfs, kprobeEvents)); err != nil {
		return nil, fmt.Errorf("%w: this kernel has no kprobes (CONFIG_KPROBE_EVENTS): %w", model.ErrUnsupported, err)
	}
	s, _, err := open(o.spec())
	return s, err
}

func open(spec hook.Spec) (*sensor, []model.Hook, error) {
	s := &sensor{links: map[string][]link.Link{}}
	_, hooks, err := hook.Open(spec, s.load)
	if err != nil {
		return nil, hooks, err
	}
	return s, hooks, nil
}

func (s *sensor) load(object *hook.Object) ([]model.Hook, error) {
	s.object = object
	s.drm, s.ioctl, s.check = object.Attach(drmHook, ""), object.Attach(ioctlHook, ""), object.Attach(checkHook, "")
	hooks := []model.Hook{s.drm, s.ioctl, s.check}
	if s.drm.State != model.StateOK && s.ioctl.State != model.StateOK {
		return hooks, hook.Unsupported(errors.Join(hook.Failure(s.drm), hook.Failure(s.ioctl)))
	}
	return hooks, s.setWaits()
}

const (
	statsMap = gen.GPUDriverMapDriverStats
	callsMap = gen.GPUDriverMapDriverCalls
)

func (o *Options) spec() hook.Spec {
	return hook.Spec{
		Load: gen.LoadGPUDriver, Subsystem: o.Subsystem, Workloads: o.Workloads,
		Entries: map[string]uint32{statsMap: o.MaxEntries, callsMap: o.MaxCalls},
		Shares:  []uint32{o.MaxEntries / share, o.MaxCalls / share},
		Report: hook.Report{
			Maps: []string{statsMap, callsMap}, Losses: gen.GPUDriverVarDriverLosses, Reasons: lossNames[:],
			Shares: []int{int(gen.GPUDriverDriverLossLOSS_DRIVER_STATS_SHARE), int(gen.GPUDriverDriverLossLOSS_DRIVER_CALLS_SHARE)},
		},
	}
}

// share is the part of each map that an owner may have: a quarter.
const share = 4

const statsOfOwner = uint32(gen.GPUDriverDriverMapDRIVER_STATS_OF_OWNER)

func (s *sensor) setWaits() error {
	for _, w := range waits {
		key := gen.GPUDriverDriverRequest{Request: w.code()}
		for i, c := range []byte(w.module) {
			key.Driver[i] = int8(c)
		}
		if err := s.object.Coll.Maps[gen.GPUDriverMapDriverWaits].Put(key, uint8(1)); err != nil {
			return fmt.Errorf("requests that wait: %w", err)
		}
	}
	return nil
}

func (s *sensor) attach(f function) ([]link.Link, error) {
	loaded, entry, exit := s.ioctl, gen.GPUDriverProgKprobeIoctl, gen.GPUDriverProgKretprobeIoctl
	if f.drm {
		loaded, entry, exit = s.drm, gen.GPUDriverProgKprobeDrmIoctl, gen.GPUDriverProgKretprobeDrmIoctl
	}
	if loaded.State != model.StateOK {
		return nil, hook.Failure(loaded)
	}
	// The return first, so that no call seems to last. The kernel's default limit of concurrent calls stays: a larger
	// limit uses tracefs and outlives a crash of the sensor.
	end, err := link.Kretprobe(f.name, s.object.Program(exit), nil)
	if err != nil {
		return nil, err
	}
	begin, err := link.Kprobe(f.name, s.object.Program(entry), nil)
	if err != nil {
		return nil, errors.Join(err, end.Close())
	}
	return []link.Link{begin, end}, nil
}

func (s *sensor) take(function string) []link.Link {
	links := s.links[function]
	delete(s.links, function)
	s.skipped += hook.Missed(nil, links) // a closed link has no information
	return links
}

func (s *sensor) attached() (names []string) {
	for name, links := range s.links {
		if len(links) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *sensor) missed() uint64 {
	var programs []*ebpf.Program
	for _, h := range []*hook.Hook{&drmHook, &ioctlHook} {
		for _, name := range h.Tiers[0].Programs {
			if p := s.object.Program(name); p != nil {
				programs = append(programs, p)
			}
		}
	}
	n := s.skipped + hook.Missed(programs, nil)
	for _, links := range s.links {
		n += hook.Missed(nil, links)
	}
	return n
}

func (s *sensor) close() {
	var links []link.Link
	for name := range s.links {
		links = append(links, s.take(name)...)
	}
	hook.CloseAll(links)
	s.object.Close()
}

// each calls f for the counts of each cgroup, driver and kind, and deletes the entries for which it returns true.
func (s *sensor) each(f func(*gen.GPUDriverDriverKey, *gen.GPUDriverDriverStat) (drop bool)) error {
	visit := func(k *gen.GPUDriverDriverKey, v *gen.GPUDriverDriverStat) bool {
		drop := f(k, v)
		if drop {
			s.object.Owners.Add(v.Owner, statsOfOwner, -1)
		}
		return drop
	}
	_, left, err := hook.Sweep(s.object.Coll.Maps[statsMap], &s.keys, &s.stats, visit)
	if err != nil {
		return fmt.Errorf("durations of ioctls: %w", err)
	}
	s.object.Entries[statsMap] = left
	return nil
}

func (s *sensor) inProgress(f func(tid uint32, call *gen.GPUDriverDriverCall)) error {
	n, err := hook.Batches(s.object.Coll.Maps[callsMap], &s.threads, &s.calls, f)
	if err != nil {
		return fmt.Errorf("ioctls in progress: %w", err)
	}
	s.object.Entries[callsMap] = n
	return nil
}

// lasts reports whether a thread is still in a call, and the thread with the lock that it waits for, or 0. The kernel
// misses returns: calls with a missed return are removed.
func (s *sensor) lasts(tid uint32, call *gen.GPUDriverDriverCall) (lasts bool, holder threadID, err error) {
	n, err := s.object.Program(gen.GPUDriverProgCheckCall).Run(&ebpf.RunOptions{Context: [2]uint64{uint64(tid), call.StartNs}})
	if err != nil {
		return false, threadID{}, fmt.Errorf("checking the ioctl of thread %d: %w", tid, err)
	}
	var id uint64
	if err := s.object.Coll.Variables[gen.GPUDriverVarLockHolder].Get(&id); err != nil {
		return false, threadID{}, fmt.Errorf("holder of a lock: %w", err)
	}
	return n == 1, threadID{pid: int(id >> 32), tid: int(uint32(id))}, nil
}

// A threadID identifies a thread and its process in the initial PID namespace.
type threadID struct{ pid, tid int }

var lossNames = [gen.GPUDriverDriverLossDRIVER_LOSSES]string{
	gen.GPUDriverDriverLossLOSS_DRIVER_STATS_FULL:    "driver_stats_full",
	gen.GPUDriverDriverLossLOSS_DRIVER_STATS_SHARE:   "driver_stats_share",
	gen.GPUDriverDriverLossLOSS_DRIVER_CALLS_FULL:    "driver_calls_full",
	gen.GPUDriverDriverLossLOSS_DRIVER_CALLS_SHARE:   "driver_calls_share",
	gen.GPUDriverDriverLossLOSS_DRIVER_RETURN_MISSED: "driver_return_missed",
}

func (s *sensor) self(snap *model.Snapshot) error {
	err := s.object.Fill(snap)
	snap.Losses = append(snap.Losses, model.Loss{Reason: "driver_program_skipped", Count: s.missed()})
	return err
}
