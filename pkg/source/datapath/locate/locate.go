// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"sync"
)

// Offsets in rdma-core's public structures for 64-bit processes. They are part of
// its ABI: what calls through them is inlined into applications.
const (
	qpContext  = 0   // struct ibv_qp: context
	qpSize     = 344 // struct ibv_qp_ex, up to wr_abort
	contextOps = 224 // struct ibv_context, up to ops.post_recv
)

// operations are where struct ibv_context has its functions.
var operations = map[Function]int{PostSend: 208, PostRecv: 216, PollCQ: 96}

// extended is where struct ibv_qp_ex has its functions.
var extended = map[Function]int{
	WrAtomicCmpSwp: 184, WrAtomicFetchAdd: 192, WrBindMW: 200, WrLocalInv: 208, WrRDMARead: 216, WrRDMAWrite: 224,
	WrRDMAWriteImm: 232, WrSend: 240, WrSendImm: 248, WrSendInv: 256, WrSendTSO: 264, WrSetInlineData: 288,
	WrSetInlineDataList: 296, WrSetSGE: 304, WrSetSGEList: 312, WrStart: 320, WrComplete: 328, WrAbort: 336,
}

// named is where a process names a function: in the struct ibv_context or ibv_qp_ex.
func (f Function) TableOffset() int {
	if at, ok := operations[f]; ok {
		return at
	}
	return extended[f]
}

// core are the functions that every extended QP has. Behind a struct ibv_qp that
// is not extended lies something else.
var core = []Function{WrSetSGE, WrStart, WrComplete, WrAbort}

// Bounds of the cache. A node has a few providers in a few versions.
const (
	maxFiles = 64
	maxSites = 256 // of a file
)

// errNotReady says that the process has not filled in the structures yet: it is
// worth to try again soon.
var ErrNotReady = errors.New("verbs context is not filled in yet")

// located is what was found out of a process's QP.
type Found struct {
	Context uint64 // address of its struct ibv_context
	Sites   []Site
	Paths   map[FileID]string // where to open each file of sites, good until the process is closed
}

// File is the one that has a function.
func (l *Found) File(fn Function) FileID {
	for _, s := range l.Sites {
		if s.Function == fn {
			return s.File
		}
	}
	return FileID{}
}

// A locator finds where functions are probed, and remembers it by file. Its calls
// may wait as long as the process lives, if that wants to be a nuisance: each
// process deserves its own goroutine.
type Locator struct {
	procfs string

	mu    sync.Mutex
	files map[FileID]*image
	clock uint64
}

// An image is what is known of one version of a file.
type image struct {
	version version
	refused error // it is no provider
	points  map[uint64]spot
	found   map[Site]bool // those in points that a process named a function of verbs
	used    uint64
}

// spot is where the function at an offset is probed, or why not.
type spot struct {
	offset  uint64
	stepped bool
	err     error
}

func New(procfs string) *Locator {
	return &Locator{procfs: procfs, files: map[FileID]*image{}}
}

// look is locate, or known while no QP is known.
func (l *Locator) Look(p *Process, qp uint64) (Found, error) {
	if qp == 0 {
		return l.known(p)
	}
	return l.locate(p, qp)
}

// locate finds the functions that operate a QP: qp is the address of its struct
// ibv_qp in the process. It gives errNotReady while there are none,
// errNoProvider, errNoFunction or errNoPoint when post_send cannot be probed, and
// model.ErrAbsent when the process is gone. Other functions that cannot be probed
// are left out.
func (l *Locator) locate(p *Process, qp uint64) (Found, error) {
	var pointer [8]byte
	if qp == 0 || qp%8 != 0 {
		return Found{}, fmt.Errorf("QP of process %d at %#x: not a structure's address", p.pid, qp)
	}
	if err := p.Read(qp+qpContext, pointer[:]); err != nil {
		return Found{}, err
	}
	context := binary.LittleEndian.Uint64(pointer[:])
	if context == 0 {
		return Found{}, fmt.Errorf("process %d: %w", p.pid, ErrNotReady)
	}
	if context%8 != 0 {
		return Found{}, fmt.Errorf("context of process %d at %#x: not a structure's address", p.pid, context)
	}
	var ops [contextOps]byte
	if err := p.Read(context, ops[:]); err != nil {
		return Found{}, err
	}
	if binary.LittleEndian.Uint64(ops[operations[PostSend]:]) == 0 {
		return Found{}, fmt.Errorf("process %d: %w", p.pid, ErrNotReady)
	}
	code, err := p.code()
	if err != nil {
		return Found{}, err
	}

	f := finding{Locator: l, process: p, code: code, Found: Found{Context: context, Paths: map[FileID]string{}}}
	provider, err := f.add(PostSend, ops[:], operations)
	if err != nil {
		return Found{}, fmt.Errorf("post_send of process %d: %w", p.pid, err)
	}
	for _, fn := range []Function{PostRecv, PollCQ} {
		// Not implemented is a function of libibverbs.
		_, _ = f.add(fn, ops[:], operations)
	}
	var ex [qpSize]byte
	if p.Read(qp, ex[:]) == nil && f.extended(ex[:], provider) {
		for fn := WrAtomicCmpSwp; fn < Functions; fn++ {
			if f.inFile(fn, ex[:], provider) {
				_, _ = f.add(fn, ex[:], extended)
			}
		}
	}
	if err := p.alive(); err != nil {
		return Found{}, err
	}
	return f.Found, nil
}

// known gives the sites of the provider files that the process has mapped, as far
// as they were located before, in whatever process.
func (l *Locator) known(p *Process) (Found, error) {
	code, err := p.code()
	if err != nil {
		return Found{}, err
	}
	result := Found{Paths: map[FileID]string{}}
	for i := range code {
		if !l.worth(code[i].file) {
			continue
		}
		id, file, path, err := l.open(p, &code[i])
		if err != nil {
			continue // a file that is no provider, or was unmapped again
		}
		if result.Paths[id] != "" {
			continue
		}
		l.mu.Lock()
		for s := range file.found {
			result.Sites = append(result.Sites, s)
			result.Paths[id] = path
		}
		l.mu.Unlock()
	}
	slices.SortFunc(result.Sites, func(a, b Site) int {
		return cmp.Or(cmp.Compare(a.File.Inode, b.File.Inode), cmp.Compare(a.Offset, b.Offset),
			cmp.Compare(a.Function, b.Function))
	})
	return result, p.alive()
}

// finding is one call of locate.
type finding struct {
	*Locator
	process *Process
	code    []mapping
	Found
}

// add finds the site of one function, and gives what maps tells of its file.
func (f *finding) add(fn Function, table []byte, offsets map[Function]int) (FileID, error) {
	address := binary.LittleEndian.Uint64(table[offsets[fn]:])
	m := find(f.code, address)
	if m == nil {
		return FileID{}, fmt.Errorf("%w: %#x is in no file", errNoProvider, address)
	}
	id, file, path, err := f.open(f.process, m)
	if err != nil {
		return m.file, err
	}
	spot := f.spot(file, f.process.files[m.file], address-m.start+m.offset)
	if spot.err != nil {
		return m.file, spot.err
	}
	skip := spot.offset - (address - m.start + m.offset)
	if skip > math.MaxUint8 {
		return m.file, fmt.Errorf("%w: it is %d bytes behind the entry", errNoPoint, skip)
	}
	s := Site{File: id, Function: fn, Offset: spot.offset, Skip: uint8(skip), Stepped: spot.stepped}
	f.mu.Lock()
	if len(file.found) < maxSites {
		file.found[s] = true
	}
	f.mu.Unlock()
	f.Sites = append(f.Sites, s)
	f.Paths[id] = path
	return m.file, nil
}

// extended says whether the QP has functions of its own.
func (f *finding) extended(ex []byte, provider FileID) bool {
	return !slices.ContainsFunc(core, func(fn Function) bool { return !f.inFile(fn, ex, provider) })
}

func (f *finding) inFile(fn Function, ex []byte, provider FileID) bool {
	m := find(f.code, binary.LittleEndian.Uint64(ex[extended[fn]:]))
	return m != nil && m.file == provider
}

// worth says whether known has to open a file at all: those that are not cached
// are not opened.
func (l *Locator) worth(mapped FileID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.overlays() || (l.files[mapped] != nil && l.files[mapped].refused == nil)
}

// overlays says whether a file on overlayfs is cached: a container's mappings do
// not tell that it is the same.
func (l *Locator) overlays() bool {
	for id := range l.files {
		if id.Device == overlaid {
			return true
		}
	}
	return false
}

// open gives the file of a mapping if it is a provider's. The process holds it
// open: what was checked is what is probed.
func (l *Locator) open(p *Process, m *mapping) (FileID, *image, string, error) {
	f := p.files[m.file]
	if f == nil {
		var err error
		if f, err = p.open(m); err != nil {
			return FileID{}, nil, "", err
		}
	}
	id, known, err := l.file(f, m.file)
	if err != nil {
		if p.files[m.file] == nil {
			f.Close()
		}
		return FileID{}, nil, "", err
	}
	p.files[m.file] = f
	return id, known, l.procfs + "/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}

// file gives what is known of a file, and looks at it when nothing is.
func (l *Locator) file(f *os.File, mapped FileID) (FileID, *image, error) {
	id, v, err := identify(f, mapped)
	if err != nil {
		return id, nil, err
	}
	l.mu.Lock()
	l.clock++
	known := l.files[id]
	if known != nil {
		known.used = l.clock
	}
	l.mu.Unlock()
	if known == nil || known.version != v {
		known = &image{version: v, points: map[uint64]spot{}, found: map[Site]bool{}}
		o, err := openObject(f)
		if err == nil {
			err = o.provider()
		}
		known.refused = err
		l.remember(id, known)
	}
	return id, known, known.refused
}

// remember caches a file in place of the one that was not used for longest.
func (l *Locator) remember(id FileID, f *image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files[id] == nil && len(l.files) >= maxFiles {
		var oldest FileID
		age := l.clock + 1
		for id, f := range l.files {
			if f.used < age {
				oldest, age = id, f.used
			}
		}
		delete(l.files, oldest)
	}
	f.used = l.clock
	l.files[id] = f
}

// spot finds where the function at an offset of a file is probed.
func (l *Locator) spot(known *image, f *os.File, offset uint64) spot {
	l.mu.Lock()
	s, ok := known.points[offset]
	full := len(known.points) >= maxSites
	l.mu.Unlock()
	if ok {
		return s
	}
	s = disassemble(f, offset)
	if !full {
		l.mu.Lock()
		known.points[offset] = s
		l.mu.Unlock()
	}
	return s
}

// disassemble chooses where the function at an offset is probed.
func disassemble(f *os.File, offset uint64) spot {
	o, err := openObject(f)
	if err != nil {
		return spot{err: err}
	}
	address, err := o.address(offset)
	if err != nil {
		return spot{err: err}
	}
	extent, err := o.function(address)
	if err != nil {
		return spot{err: err}
	}
	code := make([]byte, min(extent.size, maxFunction))
	if err := o.read(address, code); err != nil {
		return spot{err: fmt.Errorf("%w: %w", errNoFunction, err)}
	}
	skip, stepped, err := point(o.machine, code, extent.prologue)
	return spot{offset: offset + skip, stepped: stepped, err: err}
}
