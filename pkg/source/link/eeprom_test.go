// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/link/module"
	"github.com/accelscope/accelscope/tests/fakes/eeprom"
)

func (k *fakeKernel) module(int, module.Read) ([]byte, error) {
	return nil, fmt.Errorf("fake: %w", unix.EOPNOTSUPP)
}

// moduleKernel has modules in its interfaces.
type moduleKernel struct {
	*fakeKernel
	modules map[int]eeprom.Memory
	fails   error
	took    time.Duration // by each read
	reads   int
}

func (k *moduleKernel) module(index int, r module.Read) ([]byte, error) {
	k.reads++
	time.Sleep(k.took)
	if k.fails != nil {
		return nil, k.fails
	}
	at := int(r.Page)*128 + int(r.Offset)
	return moduleMessage(k.modules[index][at : at+int(r.Length)]...), nil
}

func moduleMessage(data ...byte) []byte { return generic(cmdModule, nlattr(moduleData, data...)) }

func moduleReader(memory eeprom.Memory, detail ModuleDetail) (*driverReader, *moduleKernel) {
	k := &moduleKernel{fakeKernel: &fakeKernel{}, modules: map[int]eeprom.Memory{1: memory}}
	return &driverReader{iface: iface{name: "eth1", index: 1}, moduleDetail: detail}, k
}

func TestModule(t *testing.T) {
	p := func(v float64) *float64 { return &v }
	r, k := moduleReader(eeprom.LR4(), ModuleDetail{Lanes: true, Thresholds: true})
	now := time.Unix(1700000000, 0)
	if err := r.readModule(k, now); err != nil {
		t.Fatal(err)
	}
	got := *r.facts().Module
	if len(got.Lanes) != 4 || got.Lanes[0].Bias == nil || len(got.Thresholds) != 20 ||
		got.Thresholds[0] != (model.ModuleThreshold{Value: "temperature", Threshold: "high_alarm", At: 75}) {
		t.Errorf("lanes %v, thresholds %v", got.Lanes, got.Thresholds)
	}
	alarms := map[string]int{}
	for _, c := range got.Checks {
		alarms[c.Value] = c.Alarm
	}
	wantAlarms := map[string]int{"temperature": 0, "voltage": 0, "bias": 0, "receive_power": -2, "transmit_power": 0}
	if diff := cmp.Diff(wantAlarms, alarms); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	got.Lanes, got.Thresholds, got.Checks = nil, nil, nil
	want := model.LinkModule{
		Read: now, Type: "QSFP28", Vendor: "Constructed", PartNumber: "QSFP28-LR4", Revision: "B2", Serial: "S8636-42",
		Technology:  "1310 nm DFB",
		Temperature: p(45.5), Voltage: p(3.295),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}

	r.moduleDetail = ModuleDetail{}
	if err := r.readModule(k, now); err != nil || r.moduleFacts.Lanes != nil || r.moduleFacts.Thresholds != nil || len(r.moduleFacts.Checks) != 5 {
		t.Errorf("%v: without detail: %+v", err, r.moduleFacts)
	}
	r, k = moduleReader(eeprom.SR8(), ModuleDetail{})
	if err := r.readModule(k, now); err != nil || r.moduleFacts.Fault == nil || *r.moduleFacts.Fault {
		t.Errorf("%v: CMIS: %+v", err, r.moduleFacts)
	}
	k.modules[1].Set(0, 3, 5<<1)
	if err := r.readModule(k, now); err != nil || !*r.moduleFacts.Fault {
		t.Errorf("%v: fault: %+v", err, r.moduleFacts)
	}
}

// TestModuleProblems: an unreadable module is a problem of the module, not of the interface.
func TestModuleProblems(t *testing.T) {
	for want, fails := range map[string]error{
		model.ModuleForbidden: unix.EPERM, model.ModuleUnreadable: unix.EIO,
	} {
		r, k := moduleReader(eeprom.SR8(), ModuleDetail{})
		k.fails = fails
		if err := r.readModule(k, time.Now()); err != nil || r.moduleFacts.Problem != want || r.moduleFacts.Type != "" {
			t.Errorf("%v, %+v, want %s", err, r.moduleFacts, want)
		}
	}
	r, k := moduleReader(eeprom.SR8(), ModuleDetail{})
	k.fails = unix.EOPNOTSUPP
	if err := r.readModule(k, time.Now()); !errors.Is(err, unix.EOPNOTSUPP) || r.moduleFacts != nil {
		t.Errorf("%v, %+v", err, r.moduleFacts)
	}
}

// TestSlowModule: the reading of a module ends after a second, the next reading completes it.
func TestSlowModule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, k := moduleReader(eeprom.SR8(), ModuleDetail{})
		k.took = 300 * time.Millisecond
		begin := time.Now()
		if err := r.readModule(k, begin); err != nil || r.moduleFacts.Problem != model.ModuleIncomplete || r.moduleFacts.Temperature != nil {
			t.Errorf("%v, %+v", err, r.moduleFacts)
		}
		if took := time.Since(begin); took > 2*limit {
			t.Errorf("the reading took %v", took)
		}
		k.took = 0
		if err := r.readModule(k, time.Now()); err != nil || r.moduleFacts.Problem != "" || r.moduleFacts.Temperature == nil {
			t.Errorf("%v, %+v", err, r.moduleFacts)
		}
	})
}

// TestModuleRequests counts the requests in half an hour, also in a source that does not read modules.
func TestModuleRequests(t *testing.T) {
	for _, c := range []struct {
		off  bool
		want int
	}{{false, 8 + 5*5}, {true, 0}} {
		synctest.Test(t, func(t *testing.T) {
			k := &moduleKernel{fakeKernel: &fakeKernel{t: t, priority: 3}, modules: map[int]eeprom.Memory{1: eeprom.SR8()}}
			f := newTree(t)
			f.netdev("eth1", 1, "mlx5_core")
			f.hca("mlx5_1", "eth1")
			s, err := New(Options{Sysfs: f.root, Module: ModuleDetail{Off: c.off}, kernel: k, isSysfs: func(string) bool { return true }})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // nothing to lose
			time.Sleep(30*time.Minute - time.Second)
			m := read(t, s).Links[0].Module
			if k.reads != c.want || (m == nil) != c.off ||
				m != nil && (m.Serial != "CMIS-4711" || time.Since(m.Read) > moduleInterval+poll) {
				t.Errorf("%d requests, want %d; %+v", k.reads, c.want, m)
			}
		})
	}
}

// TestModuleRequest compares with a handmade message, from the kernel's definitions.
func TestModuleRequest(t *testing.T) {
	want := generic(31, nlattr(1|1<<15, nlattr(1, le32(7)...)...), nlattr(2, le32(154)...), nlattr(3, le32(48)...), nlattr(4, 0x11), nlattr(6, 0x50))
	if got := moduleRequest(7, module.Read{Page: 0x11, Offset: 154, Length: 48}); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
	sfp := generic(31, nlattr(1|1<<15, nlattr(1, le32(7)...)...), nlattr(2, le32(96)...), nlattr(3, le32(15)...), nlattr(4, 0), nlattr(6, 0x51))
	if got := moduleRequest(7, module.Read{Page: 0xa2, Offset: 96, Length: 15}); !bytes.Equal(got, sfp) {
		t.Errorf("%x, want %x", got, sfp)
	}
	if got, err := parseModule(moduleMessage(1, 2, 3)); err != nil || !bytes.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, b := range [][]byte{nil, {31, 1}, generic(31, []byte{9, 0, 7})} {
		if got, err := parseModule(b); err == nil {
			t.Errorf("%x: %v", b, got)
		}
	}
}

func FuzzModuleReply(f *testing.F) {
	f.Add(moduleMessage(0x11, 7, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if data, err := parseModule(b); err == nil && len(data) > len(b) {
			t.Error("more bytes than the message has")
		}
	})
}
