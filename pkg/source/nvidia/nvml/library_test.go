// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestEveryFunctionIsBound compares bind.c with the source of go-nvml: the dynamic linker would resolve a function of
// NVML that is missing in bind.c.
func TestEveryFunctionIsBound(t *testing.T) {
	module, err := child.Command(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(module)), "pkg/nvml/*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatal("no source of go-nvml", err)
	}
	var want []string
	for _, path := range sources {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`C\.(nvml[A-Z]\w*)\(`).FindAllSubmatch(text, -1) {
			want = append(want, string(m[1]))
		}
	}
	slices.Sort(want)
	want = slices.DeleteFunc(slices.Compact(want), func(s string) bool { return s == "nvmlErrorString" }) // in bind.c
	f, err := os.Open("symbols.h")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var have []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, is := strings.CutPrefix(lines.Text(), "NVML("); is {
			have = append(have, strings.TrimSuffix(name, ")"))
		}
	}
	if !slices.Equal(have, want) {
		t.Errorf("symbols.h has %d functions, go-nvml calls %d: %v", len(have), len(want), difference(have, want))
	}
}

func difference(a, b []string) []string {
	var only []string
	for _, s := range a {
		if !slices.Contains(b, s) {
			only = append(only, "-"+s)
		}
	}
	for _, s := range b {
		if !slices.Contains(a, s) {
			only = append(only, "+"+s)
		}
	}
	return only
}

// TestOldLibraryLacksFunctions uses a fake library. If the dynamic linker resolved a missing function, this process
// would end.
func TestOldLibraryLacksFunctions(t *testing.T) {
	nvmltest.OneGPU(t)
	l, err := OpenLibrary(wire.Options{Library: nvmltest.Library(t, true)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if !l.Has("nvmlDeviceGetUtilizationRates") {
		t.Error("a function of all libraries is missing")
	}
	const symbol = "nvmlDeviceGetCurrentClocksEventReasons"
	if l.Has(symbol) {
		t.Fatalf("%s is in the old library: this test shows nothing", symbol)
	}
	d, ret := l.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if _, ret := d.GetCurrentClocksEventReasons(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("a missing function returned %d", ret)
	}
	if _, ret := d.GetUUID(); ret != nvml.SUCCESS {
		t.Errorf("a function that is there returned %d", ret)
	}
}

// TestAnotherLibraryIsOpened: the library of an upgraded driver, at another path or at the same path, is called, and
// the first library is unloaded.
func TestAnotherLibraryIsOpened(t *testing.T) {
	nvmltest.OneGPU(t)
	before, after := nvmltest.Library(t, true), nvmltest.Library(t, false)
	const symbol = "nvmlDeviceGetCurrentClocksEventReasons"
	for _, c := range []struct {
		path string
		has  bool
		want nvml.Return
	}{
		{before, false, nvml.ERROR_FUNCTION_NOT_FOUND},
		{after, true, nvml.SUCCESS},
		{before, false, nvml.ERROR_FUNCTION_NOT_FOUND}, // a downgrade
	} {
		l, err := OpenLibrary(wire.Options{Library: c.path})
		if err != nil {
			t.Fatal(err)
		}
		if l.Has(symbol) != c.has {
			t.Errorf("%s: has(%s) is not %t", c.path, symbol, c.has)
		}
		d, ret := l.DeviceGetHandleByIndex(0)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		if _, ret := d.GetCurrentClocksEventReasons(); ret != c.want {
			t.Errorf("%s: %s returned %d, want %d", c.path, symbol, ret, c.want)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(maps), c.path) {
			t.Errorf("%s is still mapped after close", c.path)
		}
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := OpenLibrary(wire.Options{Library: filepath.Join(t.TempDir(), libraryName)})
	if err == nil || !strings.Contains(err.Error(), "cannot open shared object file") {
		t.Errorf("the linker's reason is missing: %v", err)
	}
	s := nvmltest.OneGPU(t)
	s.Fail(fake.System, "nvmlInit", fake.VersionMismatch)
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	path := nvmltest.Library(t, false)
	if _, err := OpenLibrary(wire.Options{Library: path}); err == nil || !strings.Contains(err.Error(), "driver was upgraded") {
		t.Errorf("the cure is missing: %v", err)
	}
	if maps, _ := os.ReadFile("/proc/self/maps"); strings.Contains(string(maps), path) {
		t.Error("a library that could not be initialized is still mapped")
	}
}

func TestMain(m *testing.M) { nvmltest.Main(m) }
