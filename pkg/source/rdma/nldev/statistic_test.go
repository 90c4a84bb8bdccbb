// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestEndlessDump: the kernel sends empty messages without end if an entry exceeds a message.
func TestEndlessDump(t *testing.T) {
	n := 0
	_, err := QPCounters(fakeKernel(t, func(r []byte) [][]byte {
		var all [][]byte
		for range 10 {
			n++
			all = append(all, hca.Message(MessageType(CmdStatGet), unix.NLM_F_MULTI, native.Uint32(r[8:]), hca.U32(AttrDevIndex, 3), hca.Nest(AttrStatCounter)))
		}
		return all
	}), 3, time.Now().Add(time.Minute))
	if !errors.Is(err, errTooBig) {
		t.Errorf("%v after %d messages", err, n)
	}
}

func TestParseStatistics(t *testing.T) {
	counter := func(of ...[]byte) []byte { return hca.Nest(AttrStatCounter, hca.Nest(AttrStatCounter+1, of...)) }
	value := func(name string, v uint64) []byte {
		return hca.Nest(AttrHWCounter, hca.Text(AttrHWName, name), hca.U64(AttrHWValue, v))
	}
	whole := counter(hca.U32(AttrPortIndex, 2), hca.U32(AttrCounterID, 7), hca.U32(AttrStatMode, ModeAuto), hca.Attr(AttrQPType, 2),
		hca.U32(AttrPID, 41), hca.Nest(AttrQP, hca.Nest(AttrQPEntry, hca.U32(AttrLQPN, 5)), hca.Nest(AttrQPEntry, hca.U32(AttrLQPN, 6))),
		hca.Nest(AttrHWCounters, value("out_of_buffer", 1), value(TxBytes, 1<<63), value(RxBytes, 2), hca.Nest(AttrHWCounter, hca.Text(AttrHWName, TxBytes))))
	all, err := parseQPCounters(nil, whole)
	want := QPCounter{
		Port: 2, ID: 7, Mode: ModeAuto, PID: 41, ByType: true, QPNs: []uint32{5, 6}, Tx: 1 << 63, Rx: 2, HasTx: true, HasRx: true,
	}
	if err != nil || len(all) != 1 || fmt.Sprint(all[0]) != fmt.Sprint(want) {
		t.Errorf("%+v, %v", all, err)
	}
	for n := range len(whole) {
		if all, err := parseQPCounters(nil, whole[:n]); n > 0 && err == nil && len(all) > 0 {
			t.Errorf("%d of %d bytes pass for complete", n, len(whole))
		}
	}
	for name, b := range map[string][]byte{
		"pid of 2 bytes":   counter(hca.Attr(AttrPID, 1, 2)),
		"qpn of 8 bytes":   counter(hca.Nest(AttrQP, hca.Nest(AttrQPEntry, hca.U64(AttrLQPN, 1)))),
		"value of 4 bytes": counter(hca.Nest(AttrHWCounters, hca.Nest(AttrHWCounter, hca.U32(AttrHWValue, 1)))),
	} {
		if _, err := parseQPCounters(nil, b); !errors.Is(err, netlink.ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parseQPCounters(make([]QPCounter, maxBound), whole); !errors.Is(err, ErrTooMany) {
		t.Errorf("more than the limit: %v", err)
	}

	for name, c := range map[string]struct {
		b    []byte
		want QPMode
		ok   bool
	}{
		"off":          {hca.U32(AttrStatMode, 0), QPMode{}, true},
		"auto, 6.12":   {slices.Concat(hca.U32(AttrStatMode, 1), hca.U32(AttrStatMask, 3)), QPMode{Mode: 1, Mask: 3}, true},
		"auto, 6.15":   {slices.Concat(hca.U32(AttrStatMode, 1), hca.U32(AttrStatMask, 2), hca.Attr(AttrOptionals, 1)), QPMode{1, 2, true}, true},
		"missing":      {hca.U32(AttrStatMask, 2), QPMode{Mask: 2}, false},
		"of two bytes": {hca.Attr(AttrStatMode, 1, 0), QPMode{}, false},
	} {
		if m, err := parseMode(c.b); (err == nil) != c.ok || c.ok && m != c.want {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}

	status := hca.Nest(AttrHWCounters, hca.Nest(AttrHWCounter, hca.Text(AttrHWName, "fixed"), hca.U32(AttrHWIndex, 0)),
		hca.Nest(AttrHWCounter, hca.Text(AttrHWName, TxBytes), hca.U32(AttrHWIndex, 32), hca.Attr(AttrHWDynamic, 1)),
		hca.Nest(AttrHWCounter, hca.Text(AttrHWName, "../x"), hca.U32(AttrHWIndex, 33), hca.Attr(AttrHWDynamic, 1)))
	if o, err := parseOptionals(nil, status); err != nil || len(o) != 1 || o[0] != (Optional{TxBytes, 32, true}) {
		t.Errorf("%+v, %v", o, err)
	}
	if _, err := parseOptionals(make([]Optional, maxOptional), status); !errors.Is(err, ErrTooMany) {
		t.Errorf("more than the limit: %v", err)
	}
}

// TestTooManyDomains: a device with more protection domains than are read, or of more modules.
func TestTooManyDomains(t *testing.T) {
	one := hca.Nest(AttrPD, hca.Nest(AttrPD+1, hca.U32(AttrPDN, 1), hca.Text(AttrKernName, "nvme_rdma")))
	if _, err := parseDomains(make([]model.Domains, maxModules), one); !errors.Is(err, ErrTooMany) {
		t.Errorf("modules: %v", err)
	}
	if _, err := pdTable.parse(make([]record, maxObjects), one); !errors.Is(err, ErrTooMany) {
		t.Errorf("objects: %v", err)
	}
}

// FuzzStatistics decodes or rejects any bytes.
func FuzzStatistics(f *testing.F) {
	f.Add(hca.Nest(AttrStatCounter, hca.Nest(AttrStatCounter+1, hca.U32(AttrPortIndex, 1), hca.U32(AttrCounterID, 7), hca.U32(AttrStatMode, 1),
		hca.U32(AttrPID, 41), hca.Nest(AttrQP, hca.Nest(AttrQPEntry, hca.U32(AttrLQPN, 5))),
		hca.Nest(AttrHWCounters, hca.Nest(AttrHWCounter, hca.Text(AttrHWName, TxBytes), hca.U64(AttrHWValue, 9))))))
	f.Add(slices.Concat(hca.U32(AttrStatMode, 1), hca.U32(AttrStatMask, 2), hca.Attr(AttrOptionals, 1)))
	f.Add(hca.Nest(AttrHWCounters, hca.Nest(AttrHWCounter, hca.Text(AttrHWName, RxBytes), hca.U32(AttrHWIndex, 32), hca.Attr(AttrHWDynamic, 1))))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := slices.Clone(b)
		if all, err := parseQPCounters(nil, b); err == nil {
			for _, c := range all {
				if !c.HasTx && c.Tx != 0 || !c.HasRx && c.Rx != 0 || len(c.QPNs) > len(b)/8 {
					t.Errorf("%+v", c)
				}
			}
		}
		if o, err := parseOptionals(nil, b); err == nil && len(o) > maxOptional {
			t.Error(len(o))
		}
		_, _ = parseMode(b)
		if !slices.Equal(before, b) {
			t.Error("the parser changed its input")
		}
	})
}
