// SPDX-License-Identifier: Apache-2.0

package datapath

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
var operations = map[function]int{postSend: 208, postRecv: 216, pollCQ: 96}

// extended is where struct ibv_qp_ex has its functions.
var extended = map[function]int{
	wrAtomicCmpSwp: 184, wrAtomicFetchAdd: 192, wrBindMW: 200, wrLocalInv: 208, wrRDMARead: 216, wrRDMAWrite: 224,
	wrRDMAWriteImm: 232, wrSend: 240, wrSendImm: 248, wrSendInv: 256, wrSendTSO: 264, wrSetInlineData: 288,
	wrSetInlineDataList: 296, wrSetSGE: 304, wrSetSGEList: 312, wrStart: 320, wrComplete: 328, wrAbort: 336,
}

// named is where a process names a function: in the struct ibv_context or ibv_qp_ex.
func (f function) named() int {
	if at, ok := operations[f]; ok {
		return at
	}
	return extended[f]
}

// core are the functions that every extended QP has. Behind a struct ibv_qp that
// is not extended lies something else.
var core = []function{wrSetSGE, wrStart, wrComplete, wrAbort}

// Bounds of the cache. A node has a few providers in a few versions.
const (
	maxFiles = 64
	maxSites = 256 // of a file
)

// errNotReady says that the process has not filled in the structures yet: it is
// worth to try again soon.
var errNotReady = errors.New("verbs context is not filled in yet")

// located is what was found out of a process's QP.
type located struct {
	context uint64 // address of its struct ibv_context
	sites   []site
	paths   map[fileID]string // where to open each file of sites, good until the process is closed
}

// A locator finds where functions are probed, and remembers it by file. Its calls
// may wait as long as the process lives, if that wants to be a nuisance: each
// process deserves its own goroutine.
type locator struct {
	procfs string

	mu    sync.Mutex
	files map[fileID]*image
	clock uint64
}

// An image is what is known of one version of a file.
type image struct {
	version version
	refused error // it is no provider
	points  map[uint64]spot
	found   map[site]bool // those in points that a process named a function of verbs
	used    uint64
}

// spot is where the function at an offset is probed, or why not.
type spot struct {
	offset  uint64
	stepped bool
	err     error
}

func newLocator(procfs string) *locator {
	return &locator{procfs: procfs, files: map[fileID]*image{}}
}

// look is locate, or known while no QP is known.
func (l *locator) look(p *process, qp uint64) (located, error) {
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
func (l *locator) locate(p *process, qp uint64) (located, error) {
	var pointer [8]byte
	if qp == 0 || qp%8 != 0 {
		return located{}, fmt.Errorf("QP of process %d at %#x: not a structure's address", p.pid, qp)
	}
	if err := p.read(qp+qpContext, pointer[:]); err != nil {
		return located{}, err
	}
	context := binary.LittleEndian.Uint64(pointer[:])
	if context == 0 {
		return located{}, fmt.Errorf("process %d: %w", p.pid, errNotReady)
	}
	if context%8 != 0 {
		return located{}, fmt.Errorf("context of process %d at %#x: not a structure's address", p.pid, context)
	}
	var ops [contextOps]byte
	if err := p.read(context, ops[:]); err != nil {
		return located{}, err
	}
	if binary.LittleEndian.Uint64(ops[operations[postSend]:]) == 0 {
		return located{}, fmt.Errorf("process %d: %w", p.pid, errNotReady)
	}
	code, err := p.code()
	if err != nil {
		return located{}, err
	}

	f := finding{locator: l, process: p, code: code, located: located{context: context, paths: map[fileID]string{}}}
	provider, err := f.add(postSend, ops[:], operations)
	if err != nil {
		return located{}, fmt.Errorf("post_send of process %d: %w", p.pid, err)
	}
	for _, fn := range []function{postRecv, pollCQ} {
		// Not implemented is a function of libibverbs.
		_, _ = f.add(fn, ops[:], operations)
	}
	var ex [qpSize]byte
	if p.read(qp, ex[:]) == nil && f.extended(ex[:], provider) {
		for fn := wrAtomicCmpSwp; fn < functions; fn++ {
			if f.inFile(fn, ex[:], provider) {
				_, _ = f.add(fn, ex[:], extended)
			}
		}
	}
	if err := p.alive(); err != nil {
		return located{}, err
	}
	return f.located, nil
}

// known gives the sites of the provider files that the process has mapped, as far
// as they were located before, in whatever process.
func (l *locator) known(p *process) (located, error) {
	code, err := p.code()
	if err != nil {
		return located{}, err
	}
	result := located{paths: map[fileID]string{}}
	for i := range code {
		if !l.worth(code[i].file) {
			continue
		}
		id, file, path, err := l.open(p, &code[i])
		if err != nil {
			continue // a file that is no provider, or was unmapped again
		}
		if result.paths[id] != "" {
			continue
		}
		l.mu.Lock()
		for s := range file.found {
			result.sites = append(result.sites, s)
			result.paths[id] = path
		}
		l.mu.Unlock()
	}
	slices.SortFunc(result.sites, func(a, b site) int {
		return cmp.Or(cmp.Compare(a.file.inode, b.file.inode), cmp.Compare(a.offset, b.offset),
			cmp.Compare(a.function, b.function))
	})
	return result, p.alive()
}

// finding is one call of locate.
type finding struct {
	*locator
	process *process
	code    []mapping
	located
}

// add finds the site of one function, and gives what maps tells of its file.
func (f *finding) add(fn function, table []byte, offsets map[function]int) (fileID, error) {
	address := binary.LittleEndian.Uint64(table[offsets[fn]:])
	m := find(f.code, address)
	if m == nil {
		return fileID{}, fmt.Errorf("%w: %#x is in no file", errNoProvider, address)
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
	s := site{file: id, function: fn, offset: spot.offset, skip: uint8(skip), stepped: spot.stepped}
	f.mu.Lock()
	if len(file.found) < maxSites {
		file.found[s] = true
	}
	f.mu.Unlock()
	f.sites = append(f.sites, s)
	f.paths[id] = path
	return m.file, nil
}

// extended says whether the QP has functions of its own.
func (f *finding) extended(ex []byte, provider fileID) bool {
	return !slices.ContainsFunc(core, func(fn function) bool { return !f.inFile(fn, ex, provider) })
}

func (f *finding) inFile(fn function, ex []byte, provider fileID) bool {
	m := find(f.code, binary.LittleEndian.Uint64(ex[extended[fn]:]))
	return m != nil && m.file == provider
}

// worth says whether known has to open a file at all: those that are not cached
// are not opened.
func (l *locator) worth(mapped fileID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.overlays() || (l.files[mapped] != nil && l.files[mapped].refused == nil)
}

// overlays says whether a file on overlayfs is cached: a container's mappings do
// not tell that it is the same.
func (l *locator) overlays() bool {
	for id := range l.files {
		if id.device == overlaid {
			return true
		}
	}
	return false
}

// open gives the file of a mapping if it is a provider's. The process holds it
// open: what was checked is what is probed.
func (l *locator) open(p *process, m *mapping) (fileID, *image, string, error) {
	f := p.files[m.file]
	if f == nil {
		var err error
		if f, err = p.open(m); err != nil {
			return fileID{}, nil, "", err
		}
	}
	id, known, err := l.file(f, m.file)
	if err != nil {
		if p.files[m.file] == nil {
			f.Close()
		}
		return fileID{}, nil, "", err
	}
	p.files[m.file] = f
	return id, known, l.procfs + "/self/fd/" + strconv.Itoa(int(f.Fd())), nil
}

// file gives what is known of a file, and looks at it when nothing is.
func (l *locator) file(f *os.File, mapped fileID) (fileID, *image, error) {
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
		known = &image{version: v, points: map[uint64]spot{}, found: map[site]bool{}}
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
func (l *locator) remember(id fileID, f *image) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.files[id] == nil && len(l.files) >= maxFiles {
		var oldest fileID
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
func (l *locator) spot(known *image, f *os.File, offset uint64) spot {
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
