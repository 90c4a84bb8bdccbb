// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func mlxlinkOf(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata/mlxlink", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestParseMlxlink(t *testing.T) {
	for name, want := range map[string]model.BitErrors{
		"ndr.json": {
			FEC: "Standard_LL_RS-FEC - RS(271,257)", Speed: "IB-NDR", Width: "4x", Age: model.Some(74070), Raw: model.Some(2e-9), Effective: model.Some(1e-15),
			Symbol: model.Some(3e-16), EffectiveErrors: new(uint64(7)), SymbolErrors: new(uint64(2)), LaneErrors: []uint64{210001, 220002, 230003, 240004},
		},
		"ethernet.json": {
			FEC: "Standard_RS-FEC - (544,514)", Speed: "400G", Width: "4x", Age: model.Some(3600), Raw: model.Some(5e-10), Effective: model.Some(0),
			EffectiveErrors: new(uint64(0)), LaneErrors: []uint64{11, 12, 13, 14},
		},
		"edr.json": {
			FEC: "No FEC", Speed: "IB-EDR", Width: "4x", Age: model.Some(600), Raw: model.Some(0), Effective: model.Some(0),
			EffectiveErrors: new(uint64(0)), LaneErrors: []uint64{0, 1, 0, 1<<64 - 1},
		},
		"down.json": {},
	} {
		var got model.BitErrors
		if err := parseMlxlink(mlxlinkOf(t, name), &got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	for text, message := range map[string]string{
		"":                                       "no JSON",
		"\x1b[31m \n\x1b[0m \n":                  "no JSON", // what mstlink 4.21 prints if it cannot open the device
		string(mlxlinkOf(t, "failed.json")):      "failed to send access register",
		`{"result":{"output":{}}}`:               "no counters",
		`{"result":{"output":["a"]}}`:            "no counters",
		`{"result":`:                             "unexpected end",
		strings.Repeat(`{"result":`, 20_000):     "exceeded max depth",
		`{"status":{"message":"` + "\u202e\n\"}": "unexpected output",
	} {
		if err := parseMlxlink([]byte(text), new(model.BitErrors)); !errors.Is(err, errMlxlink) || !strings.Contains(err.Error(), message) {
			t.Errorf("%.40q: %v", text, err)
		}
	}
}

// TestMlxlinkRatios: a value that is not a ratio is unknown.
func TestMlxlinkRatios(t *testing.T) {
	for text, want := range map[string]model.Optional{
		"5E-10": model.Some(5e-10), "15E-255": model.Some(0), "0E-0": model.Some(0), "1E-0": model.Some(1), "12E-254": model.Some(12e-254),
		"": {}, "N/A": {}, "2E-0": {}, "-1E-3": {}, "1e-8": {}, "5E-10E-3": {}, "999E-9": {}, "5E-999": {}, "InfE-1": {}, "NaN": {}, "0x1E-3": {}, "1_0E-3": {},
	} {
		s := mlxlinkSection{"BER": fmt.Appendf(nil, "%q", text)}
		if got := s.ratio("BER"); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

func FuzzMlxlink(f *testing.F) {
	for _, name := range []string{"ndr.json", "ethernet.json", "edr.json", "down.json", "failed.json"} {
		f.Add(mlxlinkOf(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var b model.BitErrors
		if err := parseMlxlink(text, &b); err != nil && !errors.Is(err, errMlxlink) {
			t.Error(err)
		}
		for _, o := range []model.Optional{b.Raw, b.Effective, b.Symbol} {
			if !(o.Value >= 0 && o.Value <= 1) {
				t.Error(o)
			}
		}
		if !(b.Age.Value >= 0) || len(b.LaneErrors) > maxLanes || len(b.FEC)+len(b.Speed)+len(b.Width) > 3*64 {
			t.Errorf("%+v", b)
		}
	})
}

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mlxlink")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMlxlinkProgram runs scripts in the place of the tool.
func TestMlxlinkProgram(t *testing.T) {
	dir, err := filepath.Abs("testdata/mlxlink")
	if err != nil {
		t.Fatal(err)
	}
	f := function{"0000:81:00.0", port{"mlx5_0", 1}, "ens1"}
	for name, c := range map[string]struct{ script, err string }{
		"answer":             {script: `[ "$*" = "--device 0000:81:00.0 --show_counters --json" ] && cat ` + dir + `/ethernet.json`},
		"partial failure":    {script: `cat ` + dir + `/ethernet.json; echo "-E- another query" >&2; exit 1`},
		"environment":        {script: `[ "$(env | cut -d= -f1 | sort | tr '\n' ' ')" = "LC_ALL PATH PWD " ] && [ "$PWD" = / ] && cat ` + dir + `/ethernet.json`},
		"no device":          {`printf '\033[31m \n\033[0m \n'; printf '\n-E- Failed to open device: "x", No such file or directory\n' >&2; exit 1`, "Failed to open device"},
		"failed query":       {`cat ` + dir + `/failed.json; exit 1`, "exit status 1"},
		"status 0, no text":  {`exit 0`, "no JSON"},
		"hangs with a child": {`sleep 1000 & sleep 1000`, "no answer"},
		"endless":            {`while echo '{"result":'; do :; done`, "too much output"},
	} {
		m, err := newMlxlink(script(t, c.script))
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "hangs") {
			m.deadline = 500 * time.Millisecond
		}
		got, err := m.read(t.Context(), f)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
		case err != nil || got.Device != "mlx5_0" || got.Port != 1 || got.Netdev != "ens1" || got.Speed != "400G" || time.Since(got.Read) > time.Minute:
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := newMlxlink("mlxlink"); err == nil {
		t.Error("a relative path is accepted")
	}
	m, err := newMlxlink("/nowhere/mlxlink")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.read(t.Context(), f); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestMlxlinkBudget: one run at a time, for a twentieth of the time, in turn. A failing function is read at growing
// intervals, and has no old values.
func TestMlxlinkBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, inside := map[string]int{}, 0
		var busy time.Duration
		took := map[string]time.Duration{"0000:01:00.0": 2 * time.Second, "0000:02:00.0": 4 * time.Second, "0000:03:00.0": time.Hour}
		var failing atomic.Bool
		m := &mlxlink{deadline: mlxlinkDeadline, ports: map[string]*mlxlinkPort{}}
		m.program = func(ctx context.Context, address string) ([]byte, []byte, error) {
			if inside++; inside > 1 {
				t.Error("two runs at a time")
			}
			defer func() { inside-- }()
			runs[address]++
			began := time.Now()
			defer func() { busy += time.Since(began) }()
			select {
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			case <-time.After(took[address]):
			}
			if failing.Load() {
				return nil, []byte("-E- gone\n"), errors.New("exit status 1")
			}
			return mlxlinkOf(t, "ndr.json"), nil, nil
		}
		found := []function{
			{"0000:01:00.0", port{"mlx5_0", 1}, ""}, {"0000:02:00.0", port{"mlx5_1", 1}, "ens2"}, {"0000:03:00.0", port{"mlx5_2", 1}, "ens3"},
		}
		m.update(found)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go m.run(ctx)
		const all = 10 * time.Hour
		time.Sleep(all)
		synctest.Wait()
		if busy > all/(mlxlinkRest+1)+mlxlinkDeadline || busy < all/(mlxlinkRest+1)*8/10 {
			t.Errorf("it ran for %v of %v", busy, all)
		}
		if a, b, hanging := runs["0000:01:00.0"], runs["0000:02:00.0"], runs["0000:03:00.0"]; a < b || a > b*11/10+1 || a < 200 || hanging > 20 {
			t.Errorf("runs %v", runs)
		}
		var got model.Snapshot
		m.publish(&got, "link", time.Now())
		if len(got.BitErrors) != 2 || got.BitErrors[0].Device != "mlx5_0" || got.BitErrors[1].Netdev != "ens2" || time.Since(got.BitErrors[0].Read) > 15*time.Minute {
			t.Errorf("%+v", got.BitErrors)
		}
		if len(got.DeviceStates) != 1 || got.DeviceStates[0].State != model.StateQuarantined || !strings.Contains(got.DeviceStates[0].Reason, "no answer in 10s") {
			t.Errorf("%+v", got.DeviceStates)
		}
		failing.Store(true)
		time.Sleep(10 * time.Minute)
		got = model.Snapshot{}
		m.publish(&got, "link", time.Now())
		if got.BitErrors == nil || len(got.BitErrors) > 0 || len(got.DeviceStates) != 3 {
			t.Errorf("while all fail: %+v", got)
		}
		m.update(found[:1])
		got = model.Snapshot{}
		if m.publish(&got, "link", time.Now()); len(got.DeviceStates) != 1 {
			t.Errorf("one function is left: %+v", got)
		}
	})
}

// TestMlxlinkFunctions: the functions of a node with Ethernet, InfiniBand without IPoIB, a VF, a subfunction and another driver.
func TestMlxlinkFunctions(t *testing.T) {
	f := newTree(t)
	pci := func(class, address, driver string) {
		t.Helper()
		f.write(filepath.Join("devices", address, "vendor"), "0x15b3")
		driver = filepath.Join("/bus/pci/drivers", driver)
		if err := os.Symlink(driver, filepath.Join(f.root, "devices", address, "driver")); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
		f.write(filepath.Join(class, "name"), "x")
		if err := os.Symlink(filepath.Join(f.root, "devices", address), filepath.Join(f.root, class, "device")); err != nil {
			t.Fatal(err)
		}
	}
	pci("class/net/ens1", "0000:81:00.0", "mlx5_core")
	pci("class/net/ens2", "0000:81:00.1", "mlx5_core") // with ens1 below a bond, one HCA
	pci("class/net/ens3", "0000:82:00.0", "bnxt_en")
	pci("class/net/sf0", "mlx5_core.sf.2", "mlx5_core")
	pci("class/infiniband/mlx5_bond_0", "0000:81:00.0", "mlx5_core")
	pci("class/infiniband/mlx5_2", "0000:a1:00.0", "mlx5_core")
	pci("class/infiniband/mlx5_3", "0000:a1:00.1", "mlx5_core")
	f.write("devices/0000:a1:00.1/physfn/vendor", "0x15b3")
	pci("class/infiniband/mlx5_4", "0000:b1:00.0", "mlx5_core")
	bond := []port{{"mlx5_bond_0", 1}}
	interfaces := []iface{{name: "ens1", ports: bond}, {name: "ens2", ports: bond}, {name: "ens3", ports: []port{{"bnxt_re0", 1}}}, {name: "sf0"}}
	got, err := functions(f.root, func(name string) bool { return name != "mlx5_4" }, interfaces)
	want := []function{
		{"0000:81:00.0", port{"mlx5_bond_0", 1}, "ens1"}, {"0000:81:00.1", port{"mlx5_bond_0", 1}, "ens2"}, {"0000:a1:00.0", port{"mlx5_2", 1}, ""},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(function{}, port{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// TestMlxlinkWithoutInterface: a node with InfiniBand and without IPoIB has bit errors, although it has no link.
func TestMlxlinkWithoutInterface(t *testing.T) {
	f := newTree(t)
	f.write("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
	device := filepath.Join(f.root, "devices/0000:a1:00.0")
	f.write("devices/0000:a1:00.0/vendor", "0x15b3")
	if err := errors.Join(os.Symlink("/bus/pci/drivers/mlx5_core", filepath.Join(device, "driver")),
		os.Symlink(device, filepath.Join(f.root, "class/infiniband/mlx5_0/device"))); err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("testdata/mlxlink")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{
		Sysfs: f.root, kernel: &fakeKernel{t: t}, isSysfs: func(string) bool { return true }, Mlxlink: script(t, "cat "+dir+"/ndr.json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // nothing to lose
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		got, err := s.Read(t.Context())
		if err == nil && len(got.BitErrors) == 1 && got.BitErrors[0].Device == "mlx5_0" && got.BitErrors[0].Symbol.Value == 3e-16 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v, %v", got, err)
		}
	}
}
