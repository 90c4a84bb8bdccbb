// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var native = binary.NativeEndian

const cmdStatDel = 18 // only rdma-tool uses it

// statKernel simulates a kernel with mlx5 devices: no other driver binds queue pairs to byte counters. It follows
// drivers/infiniband/core/{nldev,counters}.c and hw/mlx5/counters.c, of 6.15 and before: which modes can be set when,
// which queue pairs are bound, and which errors are returned.
type statKernel struct {
	t  *testing.T
	mu sync.Mutex

	devices []*statDevice
	old     bool // before 6.15: no byte counters and no attribute for them
	denied  bool // no CAP_NET_ADMIN
	refuses map[uint16]unix.Errno
	changes []string // settings that were requested
	queries int      // number of firmware queries
}

type statDevice struct {
	index    uint32
	name     string
	guid     uint64
	ports    map[uint32]*statPort
	qps      []*statQP
	counters []*statCounter
	pds      map[uint32]uint32 // context of each PD
	contexts map[uint32]uint32 // PID of each context
}

type statPort struct {
	mode, mask uint32
	opcnt      bool
	optional   []nldev.Optional // by index - 30
}

type statQP struct {
	qpn, port, pid, pd uint32
	counter            *statCounter
}

type statCounter struct {
	port, id, mode, mask, pid uint32
	opcnt                     bool
	tx, rx                    uint64
	errors                    uint32 // a counter of 32 bits
}

func newStatKernel(t *testing.T, tr hca.Tree, devices int) *statKernel {
	k := &statKernel{t: t, refuses: map[uint16]unix.Errno{}}
	for i := range devices {
		k.plug(tr, i)
	}
	return k
}

func (k *statKernel) plug(tr hca.Tree, i int) *statDevice {
	k.mu.Lock()
	defer k.mu.Unlock()
	path := tr.HCA(i, 1)
	tr.Link(path+"/device/driver", "../../../bus/pci/drivers/mlx5_core")
	d := &statDevice{
		index: uint32(i + 3), name: fmt.Sprintf("mlx5_%d", i), guid: 0xa088c20300000000 + uint64(i),
		ports: map[uint32]*statPort{1: {optional: []nldev.Optional{
			{Name: "cc_rx_ce_pkts", Index: 30, On: true},
			{Name: "rdma_tx_packets", Index: 31},
			{Name: nldev.TxBytes, Index: 32},
			{Name: nldev.RxBytes, Index: 33},
		}}},
		pds: map[uint32]uint32{}, contexts: map[uint32]uint32{},
	}
	k.devices = append(k.devices, d)
	return d
}

// create creates a queue pair and moves it to INIT, where auto mode binds it.
func (k *statKernel) create(d *statDevice, qpn, pid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := &statQP{qpn: qpn, port: 1, pid: pid}
	d.qps = append(d.qps, q)
	if p := d.ports[1]; p.mode == nldev.ModeAuto {
		for _, c := range d.counters {
			if c.port == 1 && c.mode == nldev.ModeAuto && (p.mask&nldev.MaskPID == 0 || c.pid == pid) {
				q.counter = c
				return
			}
		}
		q.counter = d.counter(nldev.ModeAuto, p.mask, pid, p.opcnt)
	}
}

// counter allocates the lowest free number, as firmware may.
func (d *statDevice) counter(mode, mask, pid uint32, opcnt bool) *statCounter {
	id := uint32(1)
	for slices.ContainsFunc(d.counters, func(c *statCounter) bool { return c.id == id }) {
		id++
	}
	c := &statCounter{port: 1, id: id, mode: mode, mask: mask, pid: pid, opcnt: opcnt}
	d.counters = append(d.counters, c)
	return c
}

// bind binds a queue pair manually, as another tool does.
func (k *statKernel) bind(d *statDevice, qpns ...uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := d.counter(nldev.ModeManual, 0, 0, true)
	d.ports[1].mode = nldev.ModeManual
	for _, n := range qpns {
		d.qp(n).counter = c
	}
}

func (d *statDevice) qp(qpn uint32) *statQP {
	for _, q := range d.qps {
		if q.qpn == qpn {
			return q
		}
	}
	return nil
}

func (k *statKernel) destroy(d *statDevice, qpn uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	q := d.qp(qpn)
	d.qps = slices.DeleteFunc(d.qps, func(o *statQP) bool { return o == q })
	d.release(q)
}

// release unbinds a queue pair. Its counter ends with the last queue pair, and manual mode with
// the last counter.
func (d *statDevice) release(q *statQP) {
	c := q.counter
	if q.counter = nil; c == nil || slices.ContainsFunc(d.qps, func(o *statQP) bool { return o.counter == c }) {
		return
	}
	d.counters = slices.DeleteFunc(d.counters, func(o *statCounter) bool { return o == c })
	if p := d.ports[c.port]; p.mode == nldev.ModeManual && len(d.counters) == 0 {
		p.mode, p.mask, p.opcnt = nldev.ModeNone, 0, false
	}
}

// move counts the bytes of a queue pair.
func (k *statKernel) move(d *statDevice, qpn uint32, tx, rx uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := d.qp(qpn).counter; c != nil && c.opcnt {
		c.tx += tx
		c.rx += rx
	}
}

// exit ends a thread: its objects stay, without a PID.
func (k *statKernel) exit(pid uint32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.devices {
		for _, q := range d.qps {
			if q.pid == pid {
				q.pid = 0
			}
		}
		for _, c := range d.counters {
			if c.pid == pid {
				c.pid = 0
			}
		}
	}
}

// port describes the state of a port: mode, bound queue pairs, enabled counters.
func (k *statKernel) port(d *statDevice) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := d.ports[1]
	s := fmt.Sprintf("mode %d mask %d %v,", p.mode, p.mask, p.opcnt)
	for _, q := range d.qps {
		if q.counter != nil {
			s += fmt.Sprintf(" %d:%d", q.qpn, q.counter.id)
		}
	}
	s += ", on"
	for _, o := range p.optional {
		if o.On {
			s += " " + o.Name
		}
	}
	return s
}

func (k *statKernel) asked() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.changes)
}

// queried returns the number of firmware queries.
func (k *statKernel) queried() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.queries
}

// refuse makes a command fail.
func (k *statKernel) refuse(cmd uint16, e unix.Errno) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses[cmd] = e
}

func (k *statKernel) dial() (*nldev.Conn, error) {
	c, err := hca.Kernel(k.t, k.answer)()
	return &nldev.Conn{Conn: c}, err
}

func (k *statKernel) answer(r []byte) [][]byte {
	cmd, flags, seq := native.Uint16(r[4:])&0x3ff, native.Uint16(r[6:]), native.Uint32(r[8:])
	k.mu.Lock()
	defer k.mu.Unlock()
	replies, err := k.do(cmd, flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP, r[16:])
	switch {
	case err != 0:
		replies = [][]byte{hca.Failure(err)}
	case flags&unix.NLM_F_DUMP == unix.NLM_F_DUMP:
		replies = append(replies, hca.Done())
	case flags&unix.NLM_F_ACK != 0:
		replies = append(replies, hca.Failure(0))
	}
	for _, b := range replies {
		native.PutUint32(b[8:], seq)
	}
	return replies
}

// asks holds the attributes of a request.
type asks struct {
	has                                            map[uint16]bool
	index, port, res, mode, mask, counter, qpn, id uint32
	opcnt                                          bool
	indexes                                        []uint32
}

func readAsks(b []byte) (a asks) {
	a.has = map[uint16]bool{}
	for w := netlink.Parse(b); w.Next(); {
		a.has[w.Type] = true
		switch w.Type {
		case nldev.AttrDevIndex:
			a.index = w.U32()
		case nldev.AttrPortIndex:
			a.port = w.U32()
		case nldev.AttrStatRes:
			a.res = w.U32()
		case nldev.AttrStatMode:
			a.mode = w.U32()
		case nldev.AttrStatMask:
			a.mask = w.U32()
		case nldev.AttrCounterID:
			a.counter = w.U32()
		case nldev.AttrLQPN:
			a.qpn = w.U32()
		case nldev.AttrPDN, nldev.AttrCtxN:
			a.id = w.U32()
		case nldev.AttrOptionals:
			a.opcnt = w.U8() != 0
		case nldev.AttrHWCounters:
			_ = netlink.Walk(w.Data, nldev.AttrHWIndex, func(b []byte) error {
				a.indexes = append(a.indexes, native.Uint32(b))
				return nil
			})
		}
	}
	return a
}

func (k *statKernel) do(cmd uint16, dump bool, b []byte) ([][]byte, unix.Errno) {
	a := readAsks(b)
	if e, ok := k.refuses[cmd]; ok {
		return nil, e
	}
	if cmd == nldev.CmdGet && dump {
		var all [][]byte
		for _, d := range k.devices {
			all = append(all, hca.Reply(nldev.CmdGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, d.index), hca.Text(nldev.AttrDevName, d.name),
				hca.U64(nldev.AttrNodeGUID, d.guid)))
		}
		return all, 0
	}
	if (cmd == nldev.CmdResGet || cmd == nldev.CmdPDGet) && dump {
		return nil, 0
	}
	if cmd == nldev.CmdResGet {
		return [][]byte{hca.Reply(cmd, 0, hca.U32(nldev.AttrDevIndex, a.index))}, 0
	}
	i := slices.IndexFunc(k.devices, func(d *statDevice) bool { return d.index == a.index })
	if i < 0 {
		return nil, unix.EINVAL
	}
	d := k.devices[i]
	p := d.ports[a.port]
	handle := slices.Concat(hca.U32(nldev.AttrDevIndex, d.index), hca.Text(nldev.AttrDevName, d.name), hca.U32(nldev.AttrPortIndex, a.port))
	switch {
	case cmd == nldev.CmdStatGet && dump && a.res == nldev.AttrQP:
		return k.dump(d), 0
	case cmd == nldev.CmdStatGet && a.res == nldev.AttrQP && a.has[nldev.AttrStatMode] && p != nil:
		of := []([]byte){handle, hca.U32(nldev.AttrStatMode, p.mode)}
		if p.mode == nldev.ModeAuto {
			of = append(of, hca.U32(nldev.AttrStatMask, p.mask))
			if !k.old {
				of = append(of, hca.Attr(nldev.AttrOptionals, boolean(p.opcnt)))
			}
		}
		return [][]byte{hca.Reply(cmd, 0, of...)}, 0
	case cmd == nldev.CmdStatGet && !a.has[nldev.AttrStatRes]:
		return [][]byte{hca.Reply(cmd, 0, handle, hca.Nest(nldev.AttrHWCounters))}, 0
	case cmd == nldev.CmdStatStatus && p != nil:
		of := [][]byte{hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, "out_of_buffer"), hca.U32(nldev.AttrHWIndex, 0))}
		for _, o := range p.optional {
			if !k.old || o.Index < 31 {
				of = append(of, hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, o.Name), hca.U32(nldev.AttrHWIndex, o.Index),
					hca.Attr(nldev.AttrHWDynamic, boolean(o.On))))
			}
		}
		return [][]byte{hca.Reply(cmd, 0, handle, hca.Nest(nldev.AttrHWCounters, of...))}, 0
	case cmd == nldev.CmdStatSet && p != nil:
		return k.set(d, p, a, handle)
	case cmd == cmdStatDel && p != nil:
		return k.del(d, p, a, handle)
	case cmd == nldev.CmdQPGet && p != nil && !dump:
		q := d.qp(a.qpn)
		if q == nil {
			return nil, unix.ENOENT
		}
		k.queries++
		of := []([]byte){handle, hca.U32(nldev.AttrLQPN, q.qpn), hca.U32(nldev.AttrPDN, q.pd)}
		return [][]byte{hca.Reply(cmd, 0, append(of, pid(q.pid))...)}, 0
	case cmd == nldev.CmdPDGet && !dump:
		return [][]byte{hca.Reply(cmd, 0, handle, hca.U32(nldev.AttrPDN, a.id), hca.U32(nldev.AttrCtxN, d.pds[a.id]))}, 0
	case cmd == nldev.CmdCtxGet && !dump:
		return [][]byte{hca.Reply(cmd, 0, handle, hca.U32(nldev.AttrCtxN, a.id), pid(d.contexts[a.id]))}, 0
	}
	return nil, unix.EINVAL
}

func pid(n uint32) []byte {
	if n == 0 {
		return nil // the kernel reports no PID of an ended thread
	}
	return hca.U32(nldev.AttrPID, n)
}

func boolean(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func (k *statKernel) dump(d *statDevice) [][]byte {
	var all [][]byte
	for _, c := range d.counters {
		k.queries++
		of := [][]byte{hca.U32(nldev.AttrPortIndex, c.port), hca.U32(nldev.AttrCounterID, c.id), hca.U32(nldev.AttrStatMode, c.mode)}
		if c.mode == nldev.ModeAuto && c.mask&1 != 0 {
			of = append(of, hca.Attr(nldev.AttrQPType, 2))
		}
		if c.mode == nldev.ModeAuto && c.mask&nldev.MaskPID != 0 {
			of = append(of, pid(c.pid))
		}
		var qps [][]byte
		for _, q := range d.qps {
			if q.counter == c {
				qps = append(qps, hca.Nest(nldev.AttrQPEntry, hca.U32(nldev.AttrLQPN, q.qpn)))
			}
		}
		values := [][]byte{hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, "rx_write_requests"), hca.U64(nldev.AttrHWValue, uint64(c.errors)))}
		if c.opcnt {
			values = append(values, hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, nldev.TxBytes), hca.U64(nldev.AttrHWValue, c.tx)),
				hca.Nest(nldev.AttrHWCounter, hca.Text(nldev.AttrHWName, nldev.RxBytes), hca.U64(nldev.AttrHWValue, c.rx)))
		}
		of = append(of, hca.Nest(nldev.AttrQP, qps...), hca.Nest(nldev.AttrHWCounters, values...))
		all = append(all, hca.Reply(nldev.CmdStatGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, d.index), hca.Text(nldev.AttrDevName, d.name),
			hca.Nest(nldev.AttrStatCounter, hca.Nest(nldev.AttrStatCounter+1, of...))))
	}
	return all
}

func (k *statKernel) set(d *statDevice, p *statPort, a asks, handle []byte) ([][]byte, unix.Errno) {
	if k.denied {
		return nil, unix.EPERM
	}
	if a.has[nldev.AttrOptionals] && k.old {
		return nil, unix.EINVAL // a strict parser rejects it
	}
	k.changes = append(k.changes, fmt.Sprintf("%s set mode %v mask %d opcnt %v counters %v",
		d.name, a.has[nldev.AttrStatMode], a.mask, a.opcnt, a.indexes))
	if a.has[nldev.AttrStatMode] {
		if a.res != nldev.AttrQP || a.mode != nldev.ModeAuto {
			return nil, unix.EINVAL
		}
		mode := uint32(nldev.ModeAuto)
		if a.mask == 0 {
			if mode = nldev.ModeNone; len(d.counters) > 0 {
				mode = nldev.ModeManual
			}
		}
		if p.mode != mode || p.mask != a.mask || p.opcnt != a.opcnt {
			if mode == nldev.ModeAuto && len(d.counters) > 0 {
				return nil, unix.EBUSY
			}
			p.mode, p.mask, p.opcnt = mode, a.mask, a.opcnt
		}
	}
	if a.has[nldev.AttrHWCounters] {
		for _, i := range a.indexes {
			if i < 30 || i >= 30+uint32(len(p.optional)) {
				return nil, unix.EINVAL
			}
		}
		for i := range p.optional {
			p.optional[i].On = slices.Contains(a.indexes, p.optional[i].Index)
		}
	}
	return [][]byte{hca.Reply(nldev.CmdStatSet, 0, handle)}, 0
}

func (k *statKernel) del(d *statDevice, p *statPort, a asks, handle []byte) ([][]byte, unix.Errno) {
	q := d.qp(a.qpn)
	switch {
	case k.denied:
		return nil, unix.EPERM
	case q == nil:
		return nil, unix.ENOENT
	case q.counter == nil || q.counter.id != a.counter || p.mode != nldev.ModeManual:
		return nil, unix.EINVAL
	}
	k.changes = append(k.changes, fmt.Sprintf("%s unbind %d", d.name, q.qpn))
	k.queries++
	d.release(q)
	// The kernel replies with the type of the other command.
	return [][]byte{hca.Reply(nldev.CmdStatSet, 0, handle)}, 0
}

// source reads the counters of the devices of a tree, as rdma.Source does.
type source struct {
	*Counters
	tree    hca.Tree
	dial    nldev.Dialer
	devices map[string]*Device
}

// counterSource returns a source for the devices of k in mode use or manage. Threads below 1000 are in the cgroup of
// their hundreds digit; other threads have ended.
func counterSource(t *testing.T, tr hca.Tree, k *statKernel, mode string, change ...func(*Options)) *source {
	t.Helper()
	o := Options{
		Mode: mode, Netlink: true, Class: tr.Path("class/infiniband"), Genuine: func(string) bool { return true },
		Chosen: func(string) bool { return true }, Deadline: time.Minute, Now: time.Now, Logger: zap.NewNop(),
		CgroupOf: func(pid int) (model.CgroupID, error) {
			if pid >= 1000 {
				return 0, unix.ESRCH
			}
			return model.CgroupID(pid / 100), nil
		},
	}
	for _, c := range change {
		c(&o)
	}
	s := &source{Counters: New(o), tree: tr, dial: k.dial, devices: map[string]*Device{}}
	t.Cleanup(s.Close)
	return s
}

// read reads all devices of the tree that netlink lists. It returns the traffic, and why counters could not be read.
func (s *source) read() (rows []model.Traffic, failed string) {
	s.Manage(s.dial)
	deadline := time.Now().Add(time.Minute)
	listed, err := nldev.Devices(s.dial, deadline)
	var tally sysfs.Tally
	states := []model.DeviceState{}
	for _, d := range listed {
		if _, err := os.Stat(s.tree.Path("class/infiniband/" + d.Name)); err != nil {
			continue
		}
		states = append(states, model.DeviceState{Device: d.Name})
		if s.devices[d.Name] == nil {
			s.devices[d.Name] = s.Device(d.Name)
		}
		if of := s.devices[d.Name]; of != nil {
			c, _ := s.dial()
			of.Read(c, s.dial, d.Index, time.Now(), deadline, &tally)
			c.Close()
		}
	}
	switch {
	case err != nil:
		failed = err.Error()
	case tally.Bad > 0:
		failed = tally.Err("counters").Error()
	}
	return s.Traffic(states), failed
}
