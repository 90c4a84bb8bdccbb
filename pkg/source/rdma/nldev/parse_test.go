// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
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

// intern accepts the names that a source accepts.
func intern(b []byte) (string, bool) { return string(b), sysfs.ValidCounter(string(b)) }

// parseAll decodes a whole reply.
func parseAll[T any](t testing.TB, b []byte, cmd uint16, parse func([]T, []byte) ([]T, error)) ([]T, error) {
	t.Helper()
	var all []T
	done, err := netlink.Messages(b, MessageType(cmd), 1, func(p []byte) (err error) {
		all, err = parse(all, p)
		return err
	})
	if err == nil && !done {
		err = errors.New("the reply has no end")
	}
	return all, err
}

func TestRecordedReplies(t *testing.T) {
	devices, err := parseAll(t, recorded(t, "get"), CmdGet, parseDevice)
	if err != nil || len(devices) != 2 || devices[0].Name != "rxe0" || devices[1].Name != "rxe1" ||
		len(devices[0].GUID) != len("0x0000000000000000") || devices[0].GUID == devices[1].GUID {
		t.Errorf("devices %v, %v", devices, err)
	}
	resources, err := parseAll(t, recorded(t, "res"), CmdResGet, parseSummary)
	if err != nil || len(resources) != 14 {
		t.Errorf("resources %v, %v: want 7 types of 2 devices", resources, err)
	}
	stats, err := parseAll(t, recorded(t, "stat"), CmdStatGet,
		func(c []model.Counter, p []byte) ([]model.Counter, error) { return parseStats(c, p, intern) })
	if err != nil || len(stats) != 15 || stats[0].Name != "sent_pkts" || stats[14].Name != "rdma_recvs" {
		t.Errorf("counters %v, %v", stats, err)
	}
	if _, err := parseAll(t, recorded(t, "stat_bad"), CmdStatGet, parseDevice); !errors.Is(err, unix.EINVAL) {
		t.Errorf("port 9: %v, want EINVAL", err)
	}
	b, err := os.ReadFile("testdata/5.10/res_ctx.bin")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseAll(t, b, CmdCtxGet, tables[0].parse); !errors.Is(err, unix.EINVAL) {
		t.Errorf("contexts on 5.10: %v, want EINVAL", err)
	}
	// Objects of the workloads: two PDs, three CQs, four QPs, two MRs of 1 MiB and 4 KiB, and one SRQ. Objects of three
	// ended threads without a PID: one of each type per thread, with 1 MiB. And objects of the kernel.
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
		func(b []byte) (bool, error) { return decode(b, CmdGet, parseDevice) },
		func(b []byte) (bool, error) { return decode(b, CmdResGet, parseSummary) },
		func(b []byte) (bool, error) { return decode(b, CmdPDGet, parseDomains) },
		func(b []byte) (bool, error) { return decode(b, CmdCMIDGet, parseKernelIDs) },
		func(b []byte) (bool, error) {
			return netlink.Messages(b, MessageType(CmdSysGet), 1, func(p []byte) error { _, err := parseShared(p); return err })
		},
		func(b []byte) (bool, error) {
			return decode(b, CmdStatGet, func(c []model.Counter, p []byte) ([]model.Counter, error) {
				return parseStats(c, p, intern)
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
	return netlink.Messages(b, MessageType(cmd), 1, func(p []byte) (err error) {
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
	f.Add(hca.Reply(CmdStatGet, 0, mlx5Stats()))
	f.Add(hca.Reply(CmdSysGet, 0, hca.Attr(AttrSharedNetns, 0)))
	f.Add(hca.Reply(CmdGet, unix.NLM_F_MULTI, hca.U32(AttrDevIndex, 3), hca.Text(AttrDevName, "mlx5_0"), hca.U32(AttrPortIndex, 1),
		hca.Text(AttrFirmware, "28.39.3004"), hca.U64(AttrNodeGUID, 1), hca.U64(AttrSysImageGUID, 0xa088c20300000000), hca.Attr(AttrNodeType, 1)))
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
		return hca.Nest(AttrHWCounter, hca.Text(AttrHWName, name), hca.U64(AttrHWValue, v), slices.Concat(more...))
	}
	return slices.Concat(hca.U32(AttrDevIndex, 3), hca.Text(AttrDevName, "mlx5_0"), hca.U32(AttrPortIndex, 1),
		hca.Nest(AttrHWCounters,
			counter("out_of_buffer", 7),
			counter("np_cnp_sent", 1<<63),
			counter("rdma_tx_bytes", 5, hca.U32(94, 31), hca.Attr(95, 1)), // optional: index, dynamic
			counter("bad/name", 9),
			hca.Nest(AttrHWCounter, hca.Text(AttrHWName, "no_value")),
			hca.Nest(999, hca.U32(1, 1)),
		))
}

func TestConstructedReplies(t *testing.T) {
	got, err := parseAll(t, hca.Reply(CmdStatGet, 0, mlx5Stats()), CmdStatGet,
		func(c []model.Counter, p []byte) ([]model.Counter, error) { return parseStats(c, p, intern) })
	want := []model.Counter{
		{Name: "out_of_buffer", Value: 7}, {Name: "np_cnp_sent", Value: 1 << 63}, {Name: "rdma_tx_bytes", Value: 5},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestMessages(t *testing.T) {
	ok := hca.Reply(CmdGet, 0, hca.U32(AttrDevIndex, 1), hca.Text(AttrDevName, "mlx5_0"))
	for name, c := range map[string]struct {
		b    []byte
		done bool
		err  error
		n    int // devices
	}{
		"one":              {ok, true, nil, 1},
		"other request":    {hca.Message(MessageType(CmdGet), 0, 2, hca.Text(AttrDevName, "x")), false, nil, 0},
		"other command":    {hca.Reply(CmdResGet, 0), false, nil, 0},
		"noop first":       {slices.Concat(hca.Message(unix.NLMSG_NOOP, 0, 1), ok), true, nil, 1},
		"multi, no end":    {hca.Reply(CmdGet, unix.NLM_F_MULTI, hca.Text(AttrDevName, "x")), false, nil, 1},
		"ack":              {hca.Message(unix.NLMSG_ERROR, 0, 1, make([]byte, 20)), true, nil, 0},
		"EPERM":            {hca.Message(unix.NLMSG_ERROR, 0, 1, native.AppendUint32(nil, 0xffffffff)), true, unix.EPERM, 0},
		"done with ENODEV": {hca.Message(unix.NLMSG_DONE, 0, 1, native.AppendUint32(nil, 0xffffffff-18)), true, unix.ENODEV, 0},
		"short error":      {hca.Message(unix.NLMSG_ERROR, 0, 1, []byte{1}), false, netlink.ErrMalformed, 0},
		"overrun":          {hca.Message(unix.NLMSG_OVERRUN, 0, 1), false, unix.ENOBUFS, 0},
		"interrupted":      {hca.Message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, 1), false, netlink.ErrInterrupted, 0},
		"short header":     {ok[:15], false, netlink.ErrMalformed, 0},
		"length too small": {append([]byte{15, 0, 0, 0}, ok[4:]...), false, netlink.ErrMalformed, 0},
		"length too big":   {append([]byte{255, 255, 255, 255}, ok[4:]...), false, netlink.ErrMalformed, 0},
		"short attribute":  {hca.Reply(CmdGet, 0, []byte{3, 0, 1, 0}), false, netlink.ErrMalformed, 0},
		"long attribute":   {hca.Reply(CmdGet, 0, []byte{9, 0, 1, 0, 0, 0, 0, 0}), false, netlink.ErrMalformed, 0},
		"trailing bytes":   {hca.Reply(CmdGet, 0, hca.Text(AttrDevName, "x"), []byte{1, 2}), false, netlink.ErrMalformed, 0},
		"u32 of 2 bytes":   {hca.Reply(CmdGet, 0, hca.Attr(AttrDevIndex, 1, 2)), false, netlink.ErrMalformed, 0},
		"hostile name":     {hca.Reply(CmdGet, 0, hca.Text(AttrDevName, "../../etc")), true, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var devices []Device
			done, err := netlink.Messages(c.b, MessageType(CmdGet), 1, func(p []byte) (err error) {
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
		"shared":       {hca.Attr(AttrSharedNetns, 1), true, nil},
		"exclusive":    {slices.Concat(hca.Attr(99, 7), hca.Attr(AttrSharedNetns, 0)), false, nil},
		"missing":      {hca.Attr(99, 0), true, nil},
		"of two bytes": {hca.Attr(AttrSharedNetns, 0, 0), true, netlink.ErrMalformed},
		"truncated":    {[]byte{9, 0}, true, netlink.ErrMalformed},
	} {
		if shared, err := parseShared(c.payload); !errors.Is(err, c.err) || c.err == nil && (err != nil || shared != c.shared) {
			t.Errorf("%s: %v, %v", name, shared, err)
		}
	}
}

// fakeKernel answers requests in place of RDMA netlink.
func fakeKernel(t testing.TB, answer func(r []byte) [][]byte) func() (*Conn, error) {
	dial := hca.Kernel(t, answer)
	return func() (*Conn, error) {
		c, err := dial()
		return &Conn{c}, err
	}
}

func TestDumpTriesAgain(t *testing.T) {
	for name, trouble := range map[string][]byte{
		"interrupted": hca.Reply(CmdGet, unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, hca.Text(AttrDevName, "old")),
		"ENOBUFS":     hca.Message(unix.NLMSG_OVERRUN, 0, 1),
	} {
		t.Run(name, func(t *testing.T) {
			for failures, ok := range map[int]bool{1: true, 2: true, 3: false} {
				asked := make(chan bool, 10)
				dial := fakeKernel(t, func([]byte) [][]byte {
					if asked <- true; len(asked) <= failures {
						return [][]byte{hca.Reply(CmdGet, unix.NLM_F_MULTI, hca.Text(AttrDevName, "gone")), trouble}
					}
					return [][]byte{hca.Reply(CmdGet, unix.NLM_F_MULTI, hca.Text(AttrDevName, "new")), hca.Done()}
				})
				got, err := dump(dial, Request{Cmd: CmdGet}, time.Now().Add(time.Minute), parseDevice)
				if ok && (err != nil || len(got) != 1 || got[0].Name != "new") || !ok && err == nil {
					t.Errorf("after %d failures: %v, %v", failures, got, err)
				}
			}
		})
	}
}

func TestNetlinkDoesNotWaitForEver(t *testing.T) {
	dial := fakeKernel(t, func([]byte) [][]byte { return nil })
	start := time.Now()
	_, err := dump(dial, Request{Cmd: CmdGet}, start.Add(50*time.Millisecond), parseDevice)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}

// TestOwner: objects of ended threads, at every step of the lookup. The records are constructed.
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
