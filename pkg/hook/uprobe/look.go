// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// maxWalks bounds a look in runs of the program that walks through the mappings. A run has up to
// gen.MappingsMappingsLimitWALK_MOVES moves, and a mapping takes one to three.
const maxWalks = 1000

// maxLooks bounds the attempts of a look: changing mappings, or a lock, can end an attempt.
const maxLooks = 5

var (
	errUnmapped = errors.New("the kernel does not find the mapping of the file")
	errChanged  = errors.New("the mappings of the file change all the time")
	errAbsent   = errors.New("the code of the file is not in memory")
)

type view struct {
	mapping  uint64 // the address space of the file, which identifies it while it is mapped or probed
	mappings int
	held     []holder // up to 16
	more     bool     // there are others
}

type holder struct {
	mm  uint64
	pid int // 0: unknown
}

// eyes runs the programs of bpf/mappings.bpf.c. They read the kernel's tree of the mappings of a file, and the
// mmap_lock of each process with a mapping. /proc/PID/maps is unsuitable: it takes the lock for reading, so it hangs if
// the lock is held for writing, and does not show a lock held for reading.
type eyes struct {
	mu     sync.Mutex // the programs share one set of variables
	object *hook.Object
	begin  *ebpf.Program
	// unmeasured is why the programs of holds are not attached, or nil.
	unmeasured error
	// reading reads the code of files. A call that hangs keeps one of few threads.
	reading hang.Group[string, []byte]
}

// looks are the programs. The first tier needs Linux 5.17, the second is for kernels before 6.1.
var looks = hook.Hook{
	Name: "mappings", Required: true,
	Tiers: []hook.Tier{
		hook.Loading(hook.Run, gen.MappingsProgBeginByVma, gen.MappingsProgWalkMappings, gen.MappingsProgCheckFile,
			gen.MappingsProgMeasure),
		hook.Loading(hook.Run, gen.MappingsProgBeginByList, gen.MappingsProgWalkMappings, gen.MappingsProgCheckFile,
			gen.MappingsProgMeasure),
	},
}

func newEyes(spec hook.Spec) (*eyes, error) {
	e := &eyes{}
	if _, _, err := hook.Open(spec, e.attach); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *eyes) attach(o *hook.Object) ([]model.Hook, error) {
	e.object = o
	state := o.Attach(looks, "")
	if e.begin = o.Program(gen.MappingsProgBeginByVma); e.begin == nil {
		e.begin = o.Program(gen.MappingsProgBeginByList)
	}
	if e.begin == nil {
		return nil, hook.Unsupported(fmt.Errorf("looking at the mappings of files: %w", hook.Failure(state)))
	}
	e.unmeasured = e.attachHolds()
	return nil, nil
}

func (e *eyes) close() { e.object.Close() }

// look looks at the mappings of the pages between some offsets of a file, and stops above limit mappings.
func (e *eyes) look(f *os.File, offsets []uint64, limit int) (view, error) {
	size := uint64(os.Getpagesize())
	first, last := slices.Min(offsets)/size, slices.Max(offsets)/size
	code, err := e.reading.Do(context.Background(), f.Name(), openLimit, func() ([]byte, error) {
		code, err := unix.Mmap(int(f.Fd()), int64(first*size), int((last-first+1)*size), unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			return nil, fmt.Errorf("map %s: %w", f.Name(), err)
		}
		if err := resident(f, code, offsets, first); err != nil {
			_ = unix.Munmap(code)
			return nil, err
		}
		return code, nil
	})
	if err != nil {
		return view{}, err
	}
	defer unix.Munmap(code) //nolint:errcheck // ours
	var v view
	for range maxLooks {
		// The kernel tries the lock of this process's own mappings, which another thread may have.
		v, err = e.walk(uint64(uintptr(unsafe.Pointer(unsafe.SliceData(code)))), first, last, limit)
		if !errors.Is(err, errChanged) && !errors.Is(err, errUnmapped) {
			break
		}
		time.Sleep(lookPause)
	}
	return v, err
}

// resident reads the pages of the offsets. It returns an error if they are not in memory afterwards: the kernel would
// read them from the file system with all locks held.
func resident(f *os.File, code []byte, offsets []uint64, first uint64) error {
	size := os.Getpagesize()
	for _, offset := range offsets {
		if _, err := f.ReadAt(make([]byte, 1), int64(offset)); err != nil {
			return fmt.Errorf("reading the code at %#x: %w", offset, err)
		}
	}
	in := make([]byte, len(code)/size)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(code))), uintptr(len(code)),
		uintptr(unsafe.Pointer(unsafe.SliceData(in))))
	if errno != 0 {
		return fmt.Errorf("mincore: %w", errno)
	}
	for _, offset := range offsets {
		if in[offset/uint64(size)-first]&1 == 0 {
			return errAbsent
		}
	}
	return nil
}

func (e *eyes) walk(address, first, last uint64, limit int) (view, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	shift := uint64(bits.TrailingZeros(uint(os.Getpagesize())))
	more, err := e.begin.Run(&ebpf.RunOptions{Context: [4]uint64{address, first, last, shift}})
	if err != nil {
		return view{}, fmt.Errorf("looking at mappings: %w", err)
	}
	var at gen.MappingsLookedAt
	for n := 0; ; n++ {
		if err := e.object.Coll.Variables[gen.MappingsVarLooked].Get(&at); err != nil {
			return view{}, fmt.Errorf("what the look found: %w", err)
		}
		if at.Mapping == 0 && n == 0 {
			return view{}, errUnmapped
		}
		if at.Mapping == 0 || n == maxWalks && more != 0 {
			return view{}, errChanged
		}
		if err := allowed(at.Magic, at.UserNs); err != nil {
			return view{}, err
		}
		if more == 0 || int(at.Mappings) > limit {
			return viewOf(&at), nil
		}
		if more, err = e.object.Program(gen.MappingsProgWalkMappings).Run(&ebpf.RunOptions{Context: [1]uint64{}}); err != nil {
			return view{}, fmt.Errorf("walking through mappings: %w", err)
		}
	}
}

func viewOf(at *gen.MappingsLookedAt) view {
	v := view{mapping: at.Mapping, mappings: int(at.Mappings), more: at.Held > at.HeldListed}
	for _, h := range at.HeldBy[:min(int(at.HeldListed), len(at.HeldBy))] {
		v.held = append(v.held, holder{h.Mm, int(h.Tgid)})
	}
	return v
}
