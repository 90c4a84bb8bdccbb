// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
)

// Offsets in libibverbs' public structures in 64-bit processes. They are part of
// its ABI: applications inline the calls through them.
const (
	qpContext  = 0   // struct ibv_qp: context
	qpSendCQ   = 24  // struct ibv_qp: send_cq
	qpRecvCQ   = 32  // struct ibv_qp: recv_cq
	cqContext  = 0   // struct ibv_cq_ex: context
	cqSize     = 208 // struct ibv_cq_ex, up to read_qp_num
	qpSize     = 360 // struct ibv_qp_ex, up to wr_flush
	oldQPSize  = 344 // before wr_atomic_write and wr_flush (rdma-core 45) were added
	contextOps = 224 // struct ibv_context, up to ops.post_recv
)

// offsets are the offsets of functions: of the first four in struct ibv_context, of the last five
// in struct ibv_cq_ex, of the others in struct ibv_qp_ex.
var offsets = [Functions]int{
	PostSend: 208, PostRecv: 216, PollCQ: 96, PostSRQRecv: 168,
	WrAtomicCmpSwp: 184, WrAtomicFetchAdd: 192, WrBindMW: 200, WrLocalInv: 208, WrRDMARead: 216, WrRDMAWrite: 224,
	WrRDMAWriteImm: 232, WrSend: 240, WrSendImm: 248, WrSendInv: 256, WrSendTSO: 264, WrSetInlineData: 288,
	WrSetInlineDataList: 296, WrSetSGE: 304, WrSetSGEList: 312, WrStart: 320, WrComplete: 328, WrAbort: 336,
	WrAtomicWrite: 344, WrFlush: 352,
	StartPoll: 144, NextPoll: 152, WcReadOpcode: 168, WcReadByteLen: 184, WcReadQPNum: 200,
}

// TableOffset is the offset of the function in struct ibv_context, ibv_qp_ex or ibv_cq_ex.
func (f Function) TableOffset() int { return offsets[f] }

// requiredOfExtended are the functions that every extended QP has. Other data
// follows a struct ibv_qp that is not extended.
var requiredOfExtended = []Function{WrSetSGE, WrStart, WrComplete, WrAbort}

// ErrNotReady means that the process has not filled in its structures yet. Callers
// try again soon.
var ErrNotReady = errors.New("verbs context is not filled in yet")

// Found is the result of a search in a process.
type Found struct {
	Context uint64 // address of the struct ibv_context
	Sites   []Site
	Paths   map[FileID]string // path of each file of Sites, valid until the process is closed
	// Direct reports that programs can write to the queues of the provider themselves: it
	// exports functions of its own, as mlx5dv_init_obj.
	Direct bool
}

// File returns the file that has a function, or the zero FileID.
func (l *Found) File(fn Function) FileID {
	for _, s := range l.Sites {
		if s.Function == fn {
			return s.File
		}
	}
	return FileID{}
}

// Locator finds where functions are probed, and caches that by file. A hostile
// process can make a call block as long as it lives, so each process needs a
// goroutine of its own. A Locator is safe for concurrent use.
type Locator struct {
	procfs string

	mu    sync.Mutex
	files map[FileID]*cachedFile
	clock uint64
}

// New returns a Locator with an empty cache.
func New(procfs string) *Locator {
	return &Locator{procfs: procfs, files: map[FileID]*cachedFile{}}
}

// Find returns the sites of the functions of a QP. qp is the address of its struct
// ibv_qp in the process; if it is 0, Find returns the sites of the provider files
// that the process has mapped, as far as they were located before. context is the
// address of the QP's struct ibv_context when the QP was announced, 0 if it is not known.
//
// Errors are ErrNotReady while the structures are empty, ErrAgain if the reason may pass,
// model.ErrAbsent if the process is gone, and others if post_send cannot be probed. Other
// functions that cannot be probed are left out.
func (l *Locator) Find(p *Process, qp, context uint64) (Found, error) {
	if qp == 0 {
		return l.fromCache(p)
	}
	found, err := l.locate(p, qp)
	if err == nil && (context == 0 || found.Context == context) {
		return found, nil
	}
	return Found{}, p.classify(err, qp, context)
}

// locate finds the functions of a QP. If post_send cannot be probed, it returns
// errNoProvider, errNoFunction or errNoPoint.
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
	if binary.LittleEndian.Uint64(ops[offsets[PostSend]:]) == 0 {
		return Found{}, fmt.Errorf("process %d: %w", p.pid, ErrNotReady)
	}
	code, err := p.code()
	if err != nil {
		return Found{}, err
	}

	f := search{Locator: l, process: p, code: code, Found: Found{Context: context, Paths: map[FileID]string{}}}
	provider, err := f.add(PostSend, ops[:])
	if err != nil {
		return Found{}, fmt.Errorf("post_send of process %d: %w", p.pid, err)
	}
	for _, fn := range []Function{PostRecv, PollCQ, PostSRQRecv} {
		// A function that the provider does not implement is one of libibverbs.
		_, _ = f.add(fn, ops[:])
	}
	var ex [qpSize]byte
	err = p.Read(qp, ex[:])
	if err != nil {
		err = p.Read(qp, ex[:oldQPSize])
	}
	if err == nil && f.isExtended(ex[:], provider) {
		for fn := WrAtomicCmpSwp; fn < StartPoll; fn++ {
			if f.isIn(fn, ex[:], provider) {
				_, _ = f.add(fn, ex[:])
			}
		}
	}
	f.addCQs(qp, provider)
	if err := p.checkAlive(); err != nil {
		return Found{}, err
	}
	return f.Found, nil
}

// addCQs finds the functions of the completion queues of a QP. Which functions poll a
// completion queue depends on how it was created.
func (f *search) addCQs(qp uint64, provider FileID) {
	var both [qpRecvCQ + 8 - qpSendCQ]byte
	if f.process.Read(qp+qpSendCQ, both[:]) != nil {
		return
	}
	sends, receives := binary.LittleEndian.Uint64(both[:]), binary.LittleEndian.Uint64(both[qpRecvCQ-qpSendCQ:])
	f.addCQ(sends, provider)
	if receives != sends {
		f.addCQ(receives, provider)
	}
}

// addCQ finds the functions of a completion queue, if it is a struct ibv_cq_ex: other
// data follows a struct ibv_cq that is not extended.
func (f *search) addCQ(cq uint64, provider FileID) {
	var ex [cqSize]byte
	if cq == 0 || cq%8 != 0 || f.process.Read(cq, ex[:]) != nil ||
		binary.LittleEndian.Uint64(ex[cqContext:]) != f.Context ||
		!f.isIn(StartPoll, ex[:], provider) || !f.isIn(NextPoll, ex[:], provider) {
		return
	}
	for fn := StartPoll; fn < Functions; fn++ {
		// It has only those functions that return what it was created with.
		if f.isIn(fn, ex[:], provider) {
			_, _ = f.add(fn, ex[:])
		}
	}
}

// fromCache returns the sites of the provider files that the process has mapped,
// as far as they, or others of the same build, were located before, in any process.
func (l *Locator) fromCache(p *Process) (Found, error) {
	code, err := p.code()
	if err != nil {
		return Found{}, err
	}
	result := Found{Paths: map[FileID]string{}}
	for i := range code {
		if !l.mayBeCached(&code[i]) {
			continue
		}
		id, file, path, err := l.openProvider(p, &code[i])
		if err != nil {
			continue // no provider, or unmapped meanwhile
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
	return result, p.checkAlive()
}

// search is one call of locate.
type search struct {
	*Locator
	process *Process
	code    []mapping
	Found
}

// add finds the site of one function and returns its file, as /proc/PID/maps
// identifies it.
func (f *search) add(fn Function, table []byte) (FileID, error) {
	address := binary.LittleEndian.Uint64(table[offsets[fn]:])
	m := find(f.code, address)
	if m == nil {
		return FileID{}, fmt.Errorf("%w: %#x %w", errNoProvider, address, errNoFile)
	}
	id, file, path, err := f.openProvider(f.process, m)
	if err != nil {
		return m.file, err
	}
	at := f.point(file, f.process.files[m.file], address-m.start+m.offset)
	if at.err != nil {
		return m.file, at.err
	}
	skip := at.offset - (address - m.start + m.offset)
	if skip > math.MaxUint8 {
		return m.file, fmt.Errorf("%w: the next one is %d bytes after the entry of the function", errNoPoint, skip)
	}
	s := Site{File: id, Function: fn, Offset: at.offset, Skip: uint8(skip), Stepped: at.stepped}
	f.mu.Lock()
	if len(file.found) < maxSites {
		file.found[s] = true
	}
	f.mu.Unlock()
	f.Sites = append(f.Sites, s)
	f.Paths[id] = path
	f.Direct = f.Direct || file.direct
	return m.file, nil
}

// isExtended reports whether the QP is a struct ibv_qp_ex.
func (f *search) isExtended(ex []byte, provider FileID) bool {
	return !slices.ContainsFunc(requiredOfExtended, func(fn Function) bool { return !f.isIn(fn, ex, provider) })
}

// isIn reports whether a function of an extended structure is in a file.
func (f *search) isIn(fn Function, ex []byte, provider FileID) bool {
	m := find(f.code, binary.LittleEndian.Uint64(ex[offsets[fn]:]))
	return m != nil && m.file == provider
}
