// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// sensor is a set of attached hooks and their maps. It lives from the first device to the removal of the last device.
type sensor struct {
	opts    Options
	verbs   *hook.Object        // nil if verbs are not counted
	objects *hook.Object        // nil if objects are not counted
	peers   *hook.Object        // nil if connections are not counted
	cgroups *hook.Object        // nil if paths are not recorded
	cmIDs   bool                // the programs count CM ids
	call    hang.Call[struct{}] // RDMA netlink query, which may hang in a driver

	mu      sync.Mutex // protects the fields below, which adopt changes during a Read
	indexes map[uint32]string
	// base counts the objects found when the hooks were attached. When such an object ends, the programs subtract it
	// from their own counts, which may become negative. The sums are correct.
	base map[gen.ObjectsHoldingKey]held
	// former counts the objects created under former device names. renamed is their number in each counter of the
	// kernel.
	former   model.Totals[model.ObjectKey, model.Count, *model.Count]
	renamed  map[gen.ObjectsHoldingKey]uint64
	recorded uint64 // objects adopted, including ended objects
	// joined counts the adopted peers, including ended peers. unjoined counts peers that did not fit into the map.
	joined, unjoined uint64

	// repaired counts the changes by reconciliations. endedUnseen counts the entries that reconciliations removed.
	// skipped counts the skipped programs of objects at the last read.
	repaired             repairs
	endedUnseen, skipped uint64

	unadopted unadopted
	adoptions map[model.ObjectType]adoption
	changes   repairs // by the last adoption
	compared  comparison
	buffers
}

type held struct{ count, bytes int64 }

// cmIDType is the structure of a CM id. Only the type information of modules describes it.
const cmIDType = "rdma_id_private"

// newSensor attaches the hooks that the kernel supports. It fails if neither verbs nor objects can be counted.
func newSensor(opts Options) (_ *sensor, hooks []model.Hook, err error) {
	// The BTF of the kernel takes some megabytes and is needed only here.
	defer debug.FreeOSMemory()

	fail := func(err error) (*sensor, []model.Hook, error) {
		return nil, unattached(err.Error(), model.StateFailed), err
	}
	// Reading /proc/kallsyms takes longer than everything else.
	var found map[string]bool
	var symbolsErr error
	var symbols safely.Group
	symbols.Go(func() { found, symbolsErr = hook.Symbols() })
	types, err := hook.LoadTypes(opts.BTFDir)
	if err != nil {
		symbols.Wait()
		return fail(err)
	}
	compiled, err := loadSpecs(opts, types)
	symbols.Wait()
	if err = errors.Join(err, symbolsErr); err != nil {
		return fail(err)
	}
	return attach(opts, compiled, types, found)
}

func attach(opts Options, compiled specs, types *hook.Types, symbols map[string]bool) (*sensor, []model.Hook, error) {
	s := &sensor{
		opts: opts, cmIDs: types.Has(cmIDType),
		indexes: map[uint32]string{}, base: map[gen.ObjectsHoldingKey]held{}, renamed: map[gen.ObjectsHoldingKey]uint64{},
		adoptions: map[model.ObjectType]adoption{},
	}
	s.fill = map[string]uint64{}
	for _, made := range []struct {
		o    **hook.Object
		spec *ebpf.CollectionSpec
	}{{&s.verbs, compiled.verbs}, {&s.objects, compiled.objects}, {&s.peers, compiled.peers}, {&s.cgroups, compiled.cgroups}} {
		var err error
		if *made.o, err = opts.Workloads.NewObject(made.spec, types); err != nil {
			s.close()
			return nil, unattached(err.Error(), model.StateFailed), err
		}
	}
	var hooks []model.Hook
	for _, h := range verbHooks {
		hooks = append(hooks, s.verbs.Attach(h, opts.Tier, symbols))
	}
	if !slices.ContainsFunc(hooks, attached) {
		s.verbs.Close()
		s.verbs = nil
	}
	hooks = append(hooks, s.attachObjects(symbols)...)
	if s.verbs == nil && s.objects == nil {
		hooks = append(hooks, peersHook.Unattached("needs the hooks of objects"), cgroupHook.Unattached("needs another hook"))
		s.close()
		return nil, hooks, hook.Unsupported(fmt.Errorf("no hook could be attached: %w", hook.Failures(hooks)))
	}
	hooks = append(hooks, s.attachPeers(symbols), s.attachCgroups(symbols))
	for _, o := range s.all() {
		o.Attached()
	}
	return s, hooks, nil
}

func attached(h model.Hook) bool { return h.State == model.StateOK }

func (s *sensor) all() []*hook.Object {
	objects := []*hook.Object{s.verbs, s.objects, s.peers, s.cgroups}
	return slices.DeleteFunc(objects, func(o *hook.Object) bool { return o == nil })
}

// attachObjects attaches the hooks of objects. The others are useless if creation or deletion is not hooked.
func (s *sensor) attachObjects(symbols map[string]bool) []model.Hook {
	var out []model.Hook
	usable := true
	for _, h := range objectHooks {
		if !usable {
			out = append(out, h.Unattached(needed))
			continue
		}
		got := s.objects.Attach(h, s.opts.Tier, symbols)
		out = append(out, got)
		switch h.Name {
		case stepsHook:
			// If the kernel deletes in steps and this hook is not attached, objects would never end.
			usable = attached(got) || !symbols[stepsHook]
		case restrackHook:
			usable = got.State == model.StateOK
		}
	}
	if !usable {
		s.objects.Close()
		s.objects = nil
		return append(hook.Closed(out, errNoObjects), numberHook.Unattached(needed), existingHook.Unattached(needed))
	}
	out = append(out, s.objects.Attach(numberHook, "", symbols), s.attachExisting(out, symbols))
	// If this fails, the kind stays unknown.
	if err := s.objects.Coll.Variables[gen.ObjectsVarPlainMemory].Set(uint32(plainMemory(out, symbols))); err != nil {
		s.opts.Logger.Warn("setting the kind of memory of memory regions failed", zap.Error(err))
	}
	return out
}

const needed = "needs the hooks listed before it"

// errNoObjects is why an attached hook was detached.
var errNoObjects = errors.New("needs the hook " + restrackHook + ", and " + stepsHook + " if the kernel has that function")

// specs are the compiled objects.
type specs struct{ verbs, objects, peers, cgroups *ebpf.CollectionSpec }

// loadSpecs returns the compiled objects, sized and set to the cgroup hierarchy.
func loadSpecs(opts Options, types *hook.Types) (specs, error) {
	subsys, err := types.Subsystem(opts.Subsystem)
	if err != nil {
		return specs{}, err
	}
	opts.growing = types.GrowingMaps()
	c, err := sizedSpecs(opts)
	if err != nil {
		return specs{}, err
	}
	return c, errors.Join(
		c.verbs.Variables[gen.VerbsVarCgroupSubsys].Set(subsys),
		c.objects.Variables[gen.ObjectsVarCgroupSubsys].Set(subsys),
		c.peers.Variables[gen.PeersVarCgroupSubsys].Set(subsys),
		c.cgroups.Variables[gen.CgroupsVarCgroupSubsys].Set(subsys),
	)
}

// sizedSpecs returns the compiled objects with the limits of the maps that grow with the load.
func sizedSpecs(opts Options) (c specs, err error) {
	for _, one := range []struct {
		spec **ebpf.CollectionSpec
		load func() (*ebpf.CollectionSpec, error)
	}{{&c.verbs, gen.LoadVerbs}, {&c.objects, gen.LoadObjects}, {&c.peers, gen.LoadPeers}, {&c.cgroups, gen.LoadCgroups}} {
		if *one.spec, err = one.load(); err != nil {
			return specs{}, err
		}
	}
	if err = setShares(c, opts); err != nil {
		return specs{}, err
	}
	for m, entries := range map[*ebpf.MapSpec]uint32{
		c.verbs.Maps[gen.VerbsMapVerbs]:        opts.MaxEntries,
		c.verbs.Maps[gen.VerbsMapVerbErrors]:   opts.MaxEntries,
		c.objects.Maps[gen.ObjectsMapHoldings]: opts.MaxEntries,
		c.objects.Maps[gen.ObjectsMapObjects]:  opts.MaxObjects,
		c.objects.Maps[gen.ObjectsMapAdopted]:  opts.MaxObjects,
		c.peers.Maps[gen.PeersMapPeers]:        maxPeers(opts),
	} {
		m.MaxEntries = entries
		if opts.growing {
			m.Flags |= unix.BPF_F_NO_PREALLOC
		}
	}
	return c, nil
}

// maxPeers returns the maximum number of connected queue pairs: a process with connections also has other objects.
func maxPeers(opts Options) uint32 { return max(opts.MaxObjects/2, 1) }

func (s *sensor) detach() {
	var wg safely.Group
	for _, o := range s.all() {
		wg.Go(o.Detach)
	}
	wg.Wait()
}

func (s *sensor) close() {
	s.detach()
	for _, o := range s.all() {
		o.Close()
	}
}

// showDevices passes the device numbers of uverbs devices to the tracepoint programs.
func (s *sensor) showDevices(names deviceNames) {
	if s.verbs == nil || s.verbs.Coll.Maps[gen.VerbsMapRdevs] == nil { // the kernel refused the map, or its programs
		return
	}
	for rdev := range names {
		if err := s.verbs.Coll.Maps[gen.VerbsMapRdevs].Put(rdev, uint8(1)); err != nil {
			s.opts.Logger.Warn("adding device numbers of uverbs devices to the BPF map failed") // more than 1024 uverbs devices
			return
		}
	}
}
