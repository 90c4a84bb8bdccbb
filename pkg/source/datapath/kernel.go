// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
)

// kernel is the BPF side: the maps, the hooks in the kernel and the programs for processes. It does not change.
type kernel struct {
	object  *hook.Object
	refused map[string]error // why programs were not loaded, by name
	events  *eventReader
	maps    *mapReader
	sysfs   string
	// multi: probes are uprobe_multi links (Linux 6.6), which are detached at once. Each perf event takes a tenth of a second, because it
	// waits for grace periods.
	multi bool
}

// eventReader reads the events of the hooks. A goroutine for each kernel uses it.
type eventReader struct {
	*ringbuf.Reader
	record ringbuf.Record // buffer of next
}

// supported returns an error if the kernel lacks what the programs need.
func supported() error {
	if err := hook.Usable(); err != nil {
		return err
	}
	for _, need := range []struct {
		what string
		have func() error
	}{
		{"BPF ring buffers", func() error { return features.HaveMapType(ebpf.RingBuf) }},
		{"BPF task storage", func() error { return features.HaveMapType(ebpf.TaskStorage) }},
		{"BPF programs that are called (BPF_PROG_TYPE_SYSCALL)", func() error { return features.HaveProgramType(ebpf.Syscall) }},
		{"bpf_loop", func() error { return features.HaveProgramHelper(ebpf.Kprobe, asm.FnLoop) }},
		{"cookies of BPF probes", func() error { return features.HaveProgramHelper(ebpf.Kprobe, asm.FnGetAttachCookie) }},
		{"atomic operations in BPF", features.HaveV3ISA},
	} {
		if err := need.have(); errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("%w: this kernel has no %s (Linux 5.17 or later)", model.ErrUnsupported, need.what)
		} else if err != nil {
			return fmt.Errorf("looking for %s: %w", need.what, err)
		}
	}
	return nil
}

// newKernel loads all programs and attaches the hooks in the kernel. It fails if the
// kernel lacks a feature (model.ErrUnsupported) or the hook that reports queue pairs
// cannot be attached.
func newKernel(opts Options) (*kernel, []model.Hook, error) {
	return open(opts.Sysfs, opts.spec(), kernelHooks)
}

// open loads all programs and attaches hooks in the kernel.
func open(sysfs string, spec hook.Spec, inKernel []hook.Hook) (*kernel, []model.Hook, error) {
	k := &kernel{refused: map[string]error{}, sysfs: sysfs, multi: uprobe.HasMulti()}
	_, hooks, err := hook.Open(spec, func(o *hook.Object) ([]model.Hook, error) { return k.attach(o, inKernel) })
	if err == nil {
		return k, hooks, nil
	}
	if hooks == nil {
		state := model.StateFailed
		if errors.Is(err, model.ErrUnsupported) {
			state = model.StateUnsupported
		}
		hooks = unattached(err.Error(), state)
		for i := range hooks {
			hooks[i].Err = err
		}
	}
	return nil, hooks, err
}

func (k *kernel) attach(o *hook.Object, inKernel []hook.Hook) ([]model.Hook, error) {
	k.object, k.maps = o, &mapReader{object: o}
	loaded := k.load()
	hooks := append(o.AttachAll(inKernel, ""), loaded...)
	if err := hook.Missing(slices.Concat(inKernel, programHooks), hooks); err != nil {
		return hooks, err
	}
	if err := k.openEvents(); err != nil {
		return nil, err
	}
	return hooks, nil
}

// load loads the programs of programHooks.
func (k *kernel) load() (hooks []model.Hook) {
	useless := false
	for _, h := range programHooks {
		loaded := h.Unattached("needs the hooks listed before it")
		if !useless {
			loaded = k.object.Attach(h, "")
		}
		useless = useless || h.Required && loaded.State != model.StateOK
		hooks = append(hooks, loaded)
		for _, name := range h.Tiers[0].Programs {
			if loaded.State != model.StateOK {
				k.refused[name] = hook.Failure(loaded)
			}
		}
	}
	return hooks
}

func (k *kernel) openEvents() error {
	events := k.object.Coll.Maps[gen.DatapathMapPathEvents]
	if events == nil { // nor are there programs that use it
		return nil
	}
	ring, err := ringbuf.NewReader(events)
	if err != nil {
		return fmt.Errorf("events of the data path: %w", err)
	}
	k.events = &eventReader{Reader: ring}
	return nil
}

// ofOwner returns how many contexts, and queue pairs with a ring, an owner may have.
func ofOwner(entries uint32) uint32 { return max(entries/2, 1) }

func (o *Options) spec() hook.Spec {
	contexts := cmp.Or(o.MaxContexts, DefaultMaxContexts)
	return hook.Spec{
		Load: gen.LoadDatapath, BTFDir: o.BTFDir, Subsystem: o.Subsystem, Workloads: o.Workloads,
		Entries: map[string]uint32{
			gen.DatapathMapContexts: contexts, gen.DatapathMapOpenContexts: contexts, gen.DatapathMapQueues: contexts,
			// Each context, closed ones included, has at most a histogram for each class of work requests: there is always room,
			// and the share of the contexts limits the histograms of an owner.
			gen.DatapathMapLatencies: contexts * uint32(gen.DatapathCompletedCOMPLETED),
		},
		Shares:  []uint32{ofOwner(contexts), ofOwner(contexts)},
		Prepare: o.prepare,
		Report: hook.Report{
			Maps: []string{gen.DatapathMapContexts, gen.DatapathMapLatencies, gen.DatapathMapQueues}, Prefix: "datapath_",
			Losses: gen.DatapathVarPathLosses, Reasons: lossReasons[:],
			Shares:  []int{int(gen.DatapathPathLossPATH_LOSS_CONTEXTS_SHARE), int(gen.DatapathPathLossPATH_LOSS_QUEUES_SHARE)},
			Skipped: "datapath_skipped",
		},
	}
}

// prepare sets the constants of the programs.
func (o *Options) prepare(spec *ebpf.CollectionSpec, kernel *hook.Kernel) error {
	return errors.Join(uprobe.Prepare(spec, kernel),
		spec.Variables[gen.DatapathVarFineBounds].Set(fineBounds()),
		spec.Variables[gen.DatapathVarCrowded].Set(toInt[uint8](kernel.Functions["bpf_task_storage_get_recur"])),
		spec.Variables[gen.DatapathVarChooseAll].Set(toInt[uint8](o.Chosen == nil)))
}

// fineBounds returns the upper bounds of model.FineHistogram's buckets except the last bucket, in ns, rounded down. No bound is so close
// to an integer that the rounding of a float64 matters.
func fineBounds() (bounds [model.FineBuckets - 1]uint64) {
	for i := range bounds {
		bounds[i] = uint64(math.Ldexp(1e9*math.Exp2(float64(i%model.FineOctave)/model.FineOctave), i/model.FineOctave+model.FineMinExp))
	}
	return bounds
}

// event is an opened context, or a queue pair whose functions are to be found.
type event struct {
	// key.Context is 0 if the address is not known yet.
	key    gen.DatapathContextKey
	cgroup model.CgroupID
	// owner is the cgroup in whose share of the map the context will be. Only if existed.
	owner  uint64
	device uint32 // index of the ib_device
	qp     uint64 // address of its struct ibv_qp; 0: none yet
	// ucontext is the address of the struct ib_ucontext. Only if existed.
	ucontext uint64
	// existed: the queue pair is older than the hooks, and its context must be inserted.
	existed bool
}

func eventOf(e *gen.DatapathPathEvent) event {
	return event{key: e.Key, cgroup: model.CgroupID(e.Cgroup), owner: e.Owner, device: e.Device, qp: e.Qp, ucontext: e.Ucontext}
}

// next waits for an event. It returns os.ErrClosed after close.
func (r *eventReader) next() (event, error) {
	for {
		if err := r.ReadInto(&r.record); err != nil {
			return event{}, err
		}
		var e gen.DatapathPathEvent
		if parseEvent(r.record.RawSample, &e) == nil {
			return eventOf(&e), nil
		}
	}
}

// detach detaches the hooks and ends next.
func (k *kernel) detach() {
	if k.events != nil {
		_ = k.events.Close()
	}
	k.object.Detach()
}

// close detaches the hooks, ends next, and closes the maps and the programs, which no operation of the Gate uses any more.
func (k *kernel) close() {
	k.detach()
	k.object.Close()
}
