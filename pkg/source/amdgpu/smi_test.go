// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// fakeSMI is a FAKE amd-smi: a shell script. The output of the good one has the form of
// amd-smi static and metric --json of ROCm 6.3, with the numbers of an MI300X; ROCm 7 has
// the output below gpu_data.
func fakeSMI(t *testing.T, body string) *smi {
	t.Helper()
	path := filepath.Join(t.TempDir(), "amd-smi")
	if err := program(path, "#!/bin/sh\n"+body); err != nil {
		t.Fatal(err)
	}
	s := newSMI(path, zap.NewNop())
	s.deadline = time.Minute
	return s
}

// program writes a script while no process is forked: a child would have it open for writing
// until its exec, and starting it would fail (ETXTBSY).
func program(path, text string) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755)
}

const static = `[{"gpu": 0, "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": "0x1"},
 "bus": {"bdf": "0000:C1:00.0", "max_pcie_width": 16}, "board": {"product_serial": "692240000333"},
 "limit": {"max_power": {"value": 750, "unit": "W"}}}, {"gpu": 1, "bus": {"bdf": "N/A"}}]`

const metric = `[{"gpu": 0, "usage": {"gfx_activity": {"value": 0, "unit": "%"}}, "power": {"socket_power": {"value": 131, "unit": "W"}},
 "temperature": {"edge": "N/A", "hotspot": {"value": 46, "unit": "C"}, "mem": {"value": 39, "unit": "C"}},
 "energy": {"total_energy_consumption": {"value": 1004.25, "unit": "J"}}}, {"gpu": 1, "usage": "N/A"}]`

var fromSMI = model.GPU{
	Name: "AMD Instinct MI300X", Serial: "692240000333", Utilization: model.Some(0), Power: model.Some(131), PowerLimit: model.Some(750),
	Energy: model.Some(1004.25), Temperatures: []model.Figure{{Name: "junction", Value: 46}, {Name: "memory", Value: 39}},
}

func TestSMI(t *testing.T) {
	t.Parallel()
	for _, wrap := range []string{"%s", `{"gpu_data": %s}`} {
		s := fakeSMI(t, "[ \"$2\" = --json ] || exit 1\ncase $1 in\nstatic) cat <<E\n"+strings.Replace(wrap, "%s", static, 1)+
			"\nE\n;; metric) cat <<E\n"+strings.Replace(wrap, "%s", strings.Replace(metric, `, {"gpu": 1, "usage": "N/A"}`, "", 1), 1)+"\nE\n;; esac\n")
		got, err := s.ask(t.Context())
		if want := map[string]model.GPU{"0000:c1:00.0": fromSMI}; err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%v\ngot  %+v\nwant %+v", err, got, want)
		}
	}
}

// TestSMIMerge checks that values of the kernel are kept.
func TestSMIMerge(t *testing.T) {
	t.Parallel()
	s := newSMI("", zap.NewNop())
	s.gpus, s.at = map[string]model.GPU{"0000:c1:00.0": fromSMI}, time.Now()
	g := model.GPU{PCIAddress: "0000:c1:00.0", Name: "kernel", Power: model.Some(0)}
	s.merge(&g)
	want := fromSMI
	want.PCIAddress, want.Name, want.Power, want.EnergyRead = "0000:c1:00.0", "kernel", model.Some(0), s.at
	if !reflect.DeepEqual(g, want) {
		t.Errorf("got  %+v\nwant %+v", g, want)
	}
	s.at = time.Now().Add(-2 * time.Hour)
	old := model.GPU{PCIAddress: "0000:c1:00.0"}
	if s.merge(&old); old.Power.Known {
		t.Error("it is too old")
	}
}

// TestManySMI: of the GPUs in amd-smi's output, maxSMI are read.
func TestManySMI(t *testing.T) {
	t.Parallel()
	var gpus []string
	for i := range maxSMI + 10 {
		gpus = append(gpus, fmt.Sprintf(`{"gpu": %d, "bus": {"bdf": "%04x:00:00.0"}}`, i, i))
	}
	got, err := parseSMI([]byte("["+strings.Join(gpus, ",")+"]"), []byte("[]"))
	if err != nil || len(got) != maxSMI {
		t.Errorf("%d GPUs, %v, want %d", len(got), err, maxSMI)
	}
}

func TestSMIErrors(t *testing.T) {
	t.Parallel()
	pid := filepath.Join(t.TempDir(), "pid")
	for _, c := range []struct {
		name, body string
		err        error
	}{
		{"garbage", "echo 'Traceback (most recent call last):'", nil},
		{"fails", "echo '[]'; exit 3", nil},
		{"endless", "exec yes '[{\"gpu\": 0},'", child.ErrOutput},
		{"hangs", "sleep 600 & echo $! >" + pid + "; sleep 600", context.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := fakeSMI(t, c.body)
			if c.name == "hangs" {
				s.deadline = 200 * time.Millisecond
			}
			var child int
			for {
				began := time.Now()
				gpus, err := s.ask(t.Context())
				if err == nil || gpus != nil || c.err != nil && !errors.Is(err, c.err) {
					t.Errorf("%v, %v", gpus, err)
				}
				if took := time.Since(began); took > s.deadline+30*time.Second {
					t.Errorf("it took %v", took)
				}
				if c.name != "hangs" {
					return
				}
				b, _ := os.ReadFile(pid)
				if child, _ = strconv.Atoi(drm.Text(b)); child > 0 {
					break
				}
				if s.deadline *= 2; s.deadline > time.Minute { // it had not started to hang
					t.Fatal("it starts nothing")
				}
			}
			for range 3000 { // a killed process takes a moment to end, and may stay a zombie
				stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(child), "stat"))
				if err != nil || strings.Contains(string(stat), ") Z ") {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Error("a child of amd-smi is still running")
			_ = unix.Kill(child, unix.SIGKILL)
		})
	}
	if _, err := newSMI("/nowhere/amd-smi", zap.NewNop()).ask(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestSMIWaitsForSuspend checks that amd-smi is not started while a GPU could suspend itself.
func TestSMIWaitsForSuspend(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		tree string
		runs bool
	}{{"radeon", false}, {"apu", true}} {
		n := newNode(t, c.tree)
		ran := filepath.Join(n.root, "ran")
		path := filepath.Join(n.root, "amd-smi")
		n.check(program(path, "#!/bin/sh\ntouch "+ran+"\ncase $1 in static) "+
			`echo '[{"gpu":0,"bus":{"bdf":"0000:04:00.0"},"board":{"product_serial":"S1"}}]'`+";; *) echo '[]';; esac\n"))
		o := n.options()
		o.SMI = path
		s := start(t, o)
		if c.runs {
			eventually(t, s, func(snap model.Snapshot) bool { return snap.GPUs[0].Serial == "S1" })
			continue
		}
		read(t, s)
		time.Sleep(1300 * time.Millisecond) // it checks again every second
		if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: amd-smi was started", c.tree)
		}
	}
}
