// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/hca"
)

// recorded returns a reply of a live 6.1 kernel with two Soft-RoCE devices, as written by
// TestGuest.
func recorded(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/6.1", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// parseAll decodes a whole reply.
func parseAll[T any](t testing.TB, b []byte, cmd uint16, parse func([]T, []byte) ([]T, error)) ([]T, error) {
	t.Helper()
	var all []T
	done, err := netlink.Messages(b, nldev(cmd), 1, func(p []byte) (err error) {
		all, err = parse(all, p)
		return err
	})
	if err == nil && !done {
		err = errors.New("the reply has no end")
	}
	return all, err
}

func TestRecordedReplies(t *testing.T) {
	devices, err := parseAll(t, recorded(t, "get"), cmdGet, parseDevice)
	if err != nil || len(devices) != 2 || devices[0].name != "rxe0" || devices[1].name != "rxe1" ||
		len(devices[0].guid) != len("0x0000000000000000") || devices[0].guid == devices[1].guid {
		t.Errorf("devices %v, %v", devices, err)
	}
	resources, err := parseAll(t, recorded(t, "res"), cmdResGet, parseSummary)
	if err != nil || len(resources) != 14 {
		t.Errorf("resources %v, %v: want 7 types of 2 devices", resources, err)
	}
	intern := func(b []byte) (string, bool) { return string(b), sysfs.ValidCounter(string(b)) }
	stats, err := parseAll(t, recorded(t, "stat"), cmdStatGet,
		func(c []model.Counter, p []byte) ([]model.Counter, error) { return parseStats(c, p, intern) })
	if err != nil || len(stats) != 15 || stats[0].Name != "sent_pkts" || stats[14].Name != "rdma_recvs" {
		t.Errorf("counters %v, %v", stats, err)
	}
	if _, err := parseAll(t, recorded(t, "stat_bad"), cmdStatGet, parseDevice); !errors.Is(err, unix.EINVAL) {
		t.Errorf("port 9: %v, want EINVAL", err)
	}
	b, err := os.ReadFile("testdata/5.10/res_ctx.bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseAll(t, b, cmdCtxGet, tables[0].parse); !errors.Is(err, unix.EINVAL) {
		t.Errorf("contexts on 5.10: %v, want EINVAL", err)
	}
	// Objects of the workloads (two PDs, three CQs, four QPs, two MRs of 1 MiB and 4 KiB,
	// one SRQ; and one of each, with 1 MiB, of three threads that ended and have no PID),
	// and objects of the kernel.
	want := map[model.ObjectType]string{
		model.Context: "2 0 0 0", model.PD: "6 1 3 0", model.CQ: "7 1 3 0", model.QP: "8 1 3 0",
		model.MR: "5 0 3 4198400", model.SRQ: "1 0 0 0", model.CMID: "0 0 0 0",
	}
	for _, tb := range tables {
		records, err := parseAll(t, recorded(t, "res_"+string(tb.typ)), tb.cmd, tb.parse)
		if err != nil {
			t.Errorf("%s: %v", tb.typ, err)
		}
		var kernel, orphans, bytes uint64
		for _, r := range records {
			bytes += r.bytes
			switch {
			case r.inKernel:
				kernel++
			case r.pid == 0:
				orphans++
			}
		}
		if got := fmt.Sprint(len(records), kernel, orphans, bytes); got != want[tb.typ] {
			t.Errorf("%s: %s (entries, of the kernel, without process, bytes), want %s", tb.typ, got, want[tb.typ])
		}
	}
}

// TestTruncatedReplies: every prefix of a real reply is an error or incomplete, never a panic
// and never complete.
func TestTruncatedReplies(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.bin")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(b) {
			for _, try := range parsers {
				if done, err := try(b[:n]); done && err == nil {
					t.Errorf("%s cut to %d of %d bytes passes for complete", f, n, len(b))
				}
			}
		}
	}
}

// parsers decode a reply with the parser of each command.
var parsers = func() []func(b []byte) (bool, error) {
	all := []func(b []byte) (bool, error){
		func(b []byte) (bool, error) { return decode(b, cmdGet, parseDevice) },
		func(b []byte) (bool, error) { return decode(b, cmdResGet, parseSummary) },
		func(b []byte) (bool, error) { return decode(b, cmdPDGet, parseDomains) },
		func(b []byte) (bool, error) {
			return netlink.Messages(b, nldev(cmdSysGet), 1, func(p []byte) error { _, err := parseShared(p); return err })
		},
		func(b []byte) (bool, error) {
			d := newDevice("", "", "", nil)
			return decode(b, cmdStatGet, func(c []model.Counter, p []byte) ([]model.Counter, error) {
				return parseStats(c, p, d.intern)
			})
		},
	}
	for _, tb := range tables {
		all = append(all, func(b []byte) (bool, error) { return decode(b, tb.cmd, tb.parse) })
	}
	return all
}()

func decode[T any](b []byte, cmd uint16, parse func([]T, []byte) ([]T, error)) (bool, error) {
	var all []T
	return netlink.Messages(b, nldev(cmd), 1, func(p []byte) (err error) {
		all, err = parse(all, p)
		return err
	})
}

// FuzzNldev decodes or rejects any bytes.
func FuzzNldev(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.bin")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(hca.Reply(cmdStatGet, 0, mlx5Stats()))
	f.Add(mode(0)[0])
	f.Add(getReply(3, "mlx5_0", 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		for _, try := range parsers {
			_, _ = try(b)
		}
		if !slices.Equal(before, b) {
			t.Error("the parser changed its input")
		}
	})
}

func mlx5Stats() []byte {
	counter := func(name string, v uint64, more ...[]byte) []byte {
		return hca.Nest(attrHWCounter, hca.Text(attrHWName, name), hca.U64(attrHWValue, v), slices.Concat(more...))
	}
	return slices.Concat(hca.U32(attrDevIndex, 3), hca.Text(attrDevName, "mlx5_0"), hca.U32(attrPortIndex, 1),
		hca.Nest(attrHWCounters,
			counter("out_of_buffer", 7),
			counter("np_cnp_sent", 1<<63),
			counter("rdma_tx_bytes", 5, hca.U32(94, 31), hca.Attr(95, 1)), // optional: index, dynamic
			counter("bad/name", 9),
			hca.Nest(attrHWCounter, hca.Text(attrHWName, "no_value")),
			hca.Nest(999, hca.U32(1, 1)),
		))
}

func TestConstructedReplies(t *testing.T) {
	d := newDevice("", "", "", nil)
	got, err := parseAll(t, hca.Reply(cmdStatGet, 0, mlx5Stats()), cmdStatGet,
		func(c []model.Counter, p []byte) ([]model.Counter, error) { return parseStats(c, p, d.intern) })
	want := []model.Counter{
		{Name: "out_of_buffer", Value: 7}, {Name: "np_cnp_sent", Value: 1 << 63}, {Name: "rdma_tx_bytes", Value: 5},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestMessages(t *testing.T) {
	ok := hca.Reply(cmdGet, 0, hca.U32(attrDevIndex, 1), hca.Text(attrDevName, "mlx5_0"))
	for name, c := range map[string]struct {
		b    []byte
		done bool
		err  error
		n    int // devices
	}{
		"one":              {ok, true, nil, 1},
		"other request":    {hca.Message(nldev(cmdGet), 0, 2, hca.Text(attrDevName, "x")), false, nil, 0},
		"other command":    {hca.Reply(cmdResGet, 0), false, nil, 0},
		"noop first":       {slices.Concat(hca.Message(unix.NLMSG_NOOP, 0, 1), ok), true, nil, 1},
		"multi, no end":    {hca.Reply(cmdGet, unix.NLM_F_MULTI, hca.Text(attrDevName, "x")), false, nil, 1},
		"ack":              {hca.Message(unix.NLMSG_ERROR, 0, 1, make([]byte, 20)), true, nil, 0},
		"EPERM":            {hca.Message(unix.NLMSG_ERROR, 0, 1, native.AppendUint32(nil, 0xffffffff)), true, unix.EPERM, 0},
		"done with ENODEV": {hca.Message(unix.NLMSG_DONE, 0, 1, native.AppendUint32(nil, 0xffffffff-18)), true, unix.ENODEV, 0},
		"short error":      {hca.Message(unix.NLMSG_ERROR, 0, 1, []byte{1}), false, netlink.ErrMalformed, 0},
		"overrun":          {hca.Message(unix.NLMSG_OVERRUN, 0, 1), false, unix.ENOBUFS, 0},
		"interrupted":      {hca.Message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 1), false, netlink.ErrInterrupted, 0},
		"short header":     {ok[:15], false, netlink.ErrMalformed, 0},
		"length too small": {append([]byte{15, 0, 0, 0}, ok[4:]...), false, netlink.ErrMalformed, 0},
		"length too big":   {append([]byte{255, 255, 255, 255}, ok[4:]...), false, netlink.ErrMalformed, 0},
		"short attribute":  {hca.Reply(cmdGet, 0, []byte{3, 0, 1, 0}), false, netlink.ErrMalformed, 0},
		"long attribute":   {hca.Reply(cmdGet, 0, []byte{9, 0, 1, 0, 0, 0, 0, 0}), false, netlink.ErrMalformed, 0},
		"trailing bytes":   {hca.Reply(cmdGet, 0, hca.Text(attrDevName, "x"), []byte{1, 2}), false, netlink.ErrMalformed, 0},
		"u32 of 2 bytes":   {hca.Reply(cmdGet, 0, hca.Attr(attrDevIndex, 1, 2)), false, netlink.ErrMalformed, 0},
		"hostile name":     {hca.Reply(cmdGet, 0, hca.Text(attrDevName, "../../etc")), true, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var devices []nlDevice
			done, err := netlink.Messages(c.b, nldev(cmdGet), 1, func(p []byte) (err error) {
				devices, err = parseDevice(devices, p)
				return err
			})
			if done != c.done || !errors.Is(err, c.err) || (c.err == nil) != (err == nil) || len(devices) != c.n {
				t.Errorf("done %v, %v, %d devices; want %v, %v, %d", done, err, len(devices), c.done, c.err, c.n)
			}
		})
	}
}

func TestParseShared(t *testing.T) {
	for name, c := range map[string]struct {
		payload []byte
		shared  bool
		err     error
	}{
		"shared":       {hca.Attr(attrSharedNetns, 1), true, nil},
		"exclusive":    {slices.Concat(hca.Attr(99, 7), hca.Attr(attrSharedNetns, 0)), false, nil},
		"missing":      {hca.Attr(99, 0), true, nil},
		"of two bytes": {hca.Attr(attrSharedNetns, 0, 0), true, netlink.ErrMalformed},
		"truncated":    {[]byte{9, 0}, true, netlink.ErrMalformed},
	} {
		if shared, err := parseShared(c.payload); !errors.Is(err, c.err) || c.err == nil && (err != nil || shared != c.shared) {
			t.Errorf("%s: %v, %v", name, shared, err)
		}
	}
}

// fakeKernel answers requests in place of RDMA netlink.
func fakeKernel(t testing.TB, answer func(r []byte) [][]byte) func() (*conn, error) {
	dial := hca.Kernel(t, answer)
	return func() (*conn, error) {
		c, err := dial()
		return &conn{c}, err
	}
}

// recordedKernel answers with the recorded replies.
func recordedKernel(t *testing.T) func() (*conn, error) {
	all := map[uint16][]byte{
		cmdGet: recorded(t, "get"), cmdResGet: recorded(t, "res"), cmdStatGet: recorded(t, "stat"),
	}
	for _, tb := range tables {
		all[tb.cmd] = recorded(t, "res_"+string(tb.typ))
	}
	return fakeKernel(t, func(r []byte) [][]byte { return [][]byte{all[native.Uint16(r[4:])&0x3ff]} })
}

func TestDumpTriesAgain(t *testing.T) {
	for name, trouble := range map[string][]byte{
		"interrupted": hca.Reply(cmdGet, unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, hca.Text(attrDevName, "old")),
		"ENOBUFS":     hca.Message(unix.NLMSG_OVERRUN, 0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			for failures, ok := range map[int]bool{1: true, 2: true, 3: false} {
				asked := make(chan bool, 10)
				dial := fakeKernel(t, func([]byte) [][]byte {
					if asked <- true; len(asked) <= failures {
						return [][]byte{hca.Reply(cmdGet, unix.NLM_F_MULTI, hca.Text(attrDevName, "gone")), trouble}
					}
					return [][]byte{hca.Reply(cmdGet, unix.NLM_F_MULTI, hca.Text(attrDevName, "new")), hca.Done()}
				})
				got, err := dump(dial, request{cmd: cmdGet}, time.Now().Add(time.Minute), parseDevice)
				if ok && (err != nil || len(got) != 1 || got[0].name != "new") || !ok && err == nil {
					t.Errorf("after %d failures: %v, %v", failures, got, err)
				}
			}
		})
	}
}

func TestNetlinkDoesNotWaitForEver(t *testing.T) {
	dial := fakeKernel(t, func([]byte) [][]byte { return nil })
	start := time.Now()
	_, err := dump(dial, request{cmd: cmdGet}, start.Add(50*time.Millisecond), parseDevice)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// netlinkSource returns a source for a fake tree with the devices that answer lists.
func netlinkSource(t *testing.T, tr hca.Tree, dial func() (*conn, error)) *Source {
	t.Helper()
	s := newSource(t, tr, func(o *Options) { o.Netlink = NewNetlink(*o) })
	s.isSysfs = func(string) bool { return true }
	s.dial = dial
	return s
}

func TestReadThroughNetlink(t *testing.T) {
	devices, err := parseAll(t, recorded(t, "get"), cmdGet, parseDevice)
	if err != nil {
		t.Fatal(err)
	}
	tr := hca.NewTree(t)
	for _, d := range devices {
		dev := "class/infiniband/" + d.name
		tr.Put(dev+"/ports/1/state", "4: ACTIVE\n")
		tr.Put(dev+"/ports/1/hw_counters/sent_pkts", "0\n")
		tr.Put(dev+"/node_guid", d.guid[2:6]+":"+d.guid[6:10]+":"+d.guid[10:14]+":"+d.guid[14:]+"\n")
	}
	tr.Put("class/infiniband/rxe1/node_guid", "0000:0000:0000:0bad\n") // another device of that name
	s := netlinkSource(t, tr, recordedKernel(t))
	s.opt.Holdings = func() bool { return true }
	s.opt.CgroupOf = func(pid int) (model.CgroupID, error) { return model.CgroupID(pid) + 1, nil }
	snap := mustRead(t, s)
	if n := len(snap.HCAs[0].Ports[0].HWCounters); n != 15 {
		t.Errorf("rxe0 has %d counters, want the 15 of netlink", n)
	}
	if n := len(snap.HCAs[1].Ports[0].HWCounters); n != 1 {
		t.Errorf("rxe1 has %d counters, want the one of the files", n)
	}
	if len(snap.Resources) != 14 || len(snap.Holdings) == 0 {
		t.Errorf("resources %v, holdings %v", snap.Resources, snap.Holdings)
	}
	for _, h := range snap.Holdings {
		if h.Cgroup != model.CgroupID(h.PID)+1 {
			t.Errorf("not in the cgroup of its process: %+v", h)
		}
	}

	// A source for a copy of sysfs sends no netlink request.
	s = newSource(t, tr, func(o *Options) { o.Netlink = NewNetlink(*o) })
	s.dial = func() (*conn, error) { t.Error("netlink request for a copy"); return nil, unix.EPERM }
	if snap := mustRead(t, s); snap.Resources != nil || len(snap.HCAs[0].Ports[0].HWCounters) != 1 {
		t.Errorf("resources %v, counters %v", snap.Resources, snap.HCAs[0].Ports[0].HWCounters)
	}
}

// TestStatFallsBackToFiles: a driver without counters in netlink, or with more than fit in a
// message, gets one request; then the files are read.
func TestStatFallsBackToFiles(t *testing.T) {
	for _, e := range []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.EMSGSIZE} {
		asked := make(chan bool, 10)
		tr := hca.NewTree(t)
		tr.HCA(0, 1)
		s := netlinkSource(t, tr, fakeKernel(t, func(r []byte) [][]byte {
			switch native.Uint16(r[4:]) {
			case nldev(cmdGet):
				return [][]byte{slices.Concat(hca.Reply(cmdGet, unix.NLM_F_MULTI, hca.U32(attrDevIndex, 4),
					hca.Text(attrDevName, "mlx5_0"), hca.U64(attrNodeGUID, 0xa088c20300000000)), hca.Done())}
			case nldev(cmdStatGet):
				asked <- true
				return [][]byte{hca.Failure(e)}
			}
			return [][]byte{hca.Done()}
		}))
		for range 5 {
			h := mustRead(t, s).HCAs[0]
			if d := cmp.Diff(counters(hca.HWCounters, 101), h.Ports[0].HWCounters); d != "" || h.Index != 4 {
				t.Errorf("%v: index %d (-want +got):\n%s", e, h.Index, d)
			}
		}
		// One request for each scan of the device directory.
		if len(asked) != 2 {
			t.Errorf("%v: %d requests", e, len(asked))
		}
	}
}

// TestOwner: objects of threads that ended, at every step of the lookup. The records are
// constructed.
func TestOwner(t *testing.T) {
	pds := map[uint32]record{1: {pid: 100}, 2: {ctx: 8, hasCtx: true}, 3: {ctx: 9, hasCtx: true}}
	contexts := map[uint32]record{8: {pid: 300}, 9: {}}
	for name, c := range map[string]struct {
		r    record
		want uint32
	}{
		"own":                 {record{pid: 7, pd: 1, hasPD: true}, 7},
		"of the PD":           {record{pd: 1, hasPD: true}, 100},
		"of the PD's context": {record{pd: 2, hasPD: true}, 300},
		"of the context":      {record{ctx: 8, hasCtx: true}, 300},
		"all dead":            {record{pd: 3, hasPD: true}, 0},
		"unknown PD":          {record{pd: 77, hasPD: true}, 0},
		"nothing":             {record{}, 0},
	} {
		if got := owner(c.r, pds, contexts); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestObjects: all objects, or those of one type without a dump of the queue pairs.
func TestObjects(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	var dumpsOfQPs atomic.Int32
	s := netlinkSource(t, tr, fakeKernel(t, func(r []byte) [][]byte {
		entry := func(tb table, of ...[]byte) []byte {
			return hca.Reply(tb.cmd, unix.NLM_F_MULTI, hca.Text(attrDevName, "mlx5_0"), hca.Nest(tb.attr, hca.Nest(tb.attr+1, of...)))
		}
		cmd := native.Uint16(r[4:]) & 0x3ff
		for _, tb := range tables {
			switch {
			case tb.cmd != cmd:
			case tb.typ == model.Context, tb.typ == model.SRQ: // as 5.10 does
				return [][]byte{hca.Failure(unix.EINVAL)}
			case tb.typ == model.PD:
				return [][]byte{
					entry(tb, hca.U32(attrPDN, 5), hca.U32(attrPID, 41), hca.U32(attrCtxN, 2)),
					entry(tb, hca.U32(attrPDN, 9), hca.U32(attrCtxN, 3)), hca.Done(),
				}
			case tb.typ == model.CQ:
				return [][]byte{entry(tb, hca.U32(attrCQN, 1), hca.U32(attrPID, 42), hca.U32(attrCtxN, 3)), hca.Done()}
			case tb.typ == model.MR:
				return [][]byte{
					entry(tb, hca.U32(attrMRN, 6), hca.U64(attrMRLen, 1<<40), hca.U32(attrPDN, 5)),
					entry(tb, hca.U32(attrMRN, 7), hca.U64(attrMRLen, 1), hca.U32(attrPDN, 9)),
					entry(tb, hca.U32(attrMRN, 8), hca.U64(attrMRLen, math.MaxUint64), hca.U32(attrPDN, 5)), // implicit ODP
					entry(tb, hca.U32(attrMRN, 9), hca.U32(attrPDN, 5)), hca.Done(),
				}
			case tb.typ == model.QP:
				dumpsOfQPs.Add(1)
				return [][]byte{
					entry(tb, hca.U32(attrLQPN, 1), hca.Text(attrKernName, "ib_core")),
					entry(tb, hca.U32(attrPortIndex, 2), hca.U32(attrLQPN, 17), hca.U32(attrRQPN, 1<<24-1),
						hca.Attr(attrQPType, 2), hca.Attr(attrQPState, 3), hca.U32(attrPDN, 5)), hca.Done(),
				}
			}
		}
		if cmd == cmdGet {
			return [][]byte{hca.Reply(cmdGet, unix.NLM_F_MULTI, hca.U32(attrDevIndex, 4), hca.Text(attrDevName, "mlx5_0")), hca.Done()}
		}
		return [][]byte{hca.Done()}
	}))
	got, err := s.Objects(t.Context())
	want := []model.Object{
		{Device: "mlx5_0", Index: 4, Type: model.PD, ID: 5, PID: 41},
		{Device: "mlx5_0", Index: 4, Type: model.PD, ID: 9, PID: 42}, // through the CQ in its context
		{Device: "mlx5_0", Index: 4, Type: model.CQ, ID: 1, PID: 42},
		{
			Device: "mlx5_0", Index: 4, Type: model.QP, ID: 17, PID: 41,
			RemoteQPN: 1<<24 - 1, Port: 2, QPType: 2, QPState: 3,
		},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 6, PID: 41, Bytes: 1 << 40, Memory: model.UnknownMemory},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 7, PID: 42, Bytes: 1, Memory: model.UnknownMemory},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 8, PID: 41, Memory: model.ImplicitODPMemory},
		{Device: "mlx5_0", Index: 4, Type: model.MR, ID: 9, PID: 41, Memory: model.UnknownMemory},
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	dumpsOfQPs.Store(0)
	got, err = s.Objects(t.Context(), model.MR)
	want = slices.DeleteFunc(want, func(o model.Object) bool { return o.Type != model.MR })
	if d := cmp.Diff(want, got); d != "" || err != nil || dumpsOfQPs.Load() != 0 {
		t.Errorf("memory regions: %v, %d dumps of queue pairs (-want +got):\n%s", err, dumpsOfQPs.Load(), d)
	}
}

// TestNoNetlink: without RDMA netlink the error is ErrUnsupported.
func TestNoNetlink(t *testing.T) {
	c, err := dialNetlink()
	if err == nil {
		c.Close()
		t.Skip("this kernel has RDMA netlink")
	}
	if !errors.Is(err, model.ErrUnsupported) || !strings.Contains(err.Error(), "ib_core") {
		t.Errorf("%v: want ErrUnsupported and the module to load", err)
	}
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	s := netlinkSource(t, tr, dialNetlink)
	if snap := mustRead(t, s); snap.Resources != nil || len(snap.HCAs) != 1 {
		t.Errorf("resources %v of %d HCAs, want nil of 1", snap.Resources, len(snap.HCAs))
	}
	if _, err := s.Objects(t.Context()); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("objects: %v", err)
	}
}
