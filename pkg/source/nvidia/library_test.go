// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/child"
	fake "github.com/accelscope/accelscope/tests/nvml"
)

// fakeLibrary builds the fake libnvidia-ml.so.1 of tests/nvml, with or without the functions
// that were added after R450.
func fakeLibrary(t *testing.T, old bool) string {
	t.Helper()
	path, err := builtFake(old)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func builtFake(old bool) (string, error) {
	if old {
		return builtOld()
	}
	return builtNew()
}

var (
	builtOld = sync.OnceValues(func() (string, error) { return fake.Build(context.Background(), filepath.Join(built, "old"), true) })
	builtNew = sync.OnceValues(func() (string, error) { return fake.Build(context.Background(), filepath.Join(built, "new"), false) })
	built    string
)

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "nvml"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

// scenario returns the answers of the fake libraries: one GPU.
func scenario(t *testing.T) *fake.Scenario {
	t.Helper()
	s, err := fake.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range s.Environment() {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	s.AddH100(0)
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestEveryFunctionIsBound compares bind.c with the source of go-nvml: a function of NVML that
// is missing in bind.c would be resolved by the dynamic linker.
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

// TestOldLibraryLacksFunctions uses a fake library. A missing function would end this process
// if the dynamic linker resolved it.
func TestOldLibraryLacksFunctions(t *testing.T) {
	scenario(t)
	l, err := openLibrary(wire.Options{Library: fakeLibrary(t, true)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.close() }()
	if !l.has("nvmlDeviceGetUtilizationRates") {
		t.Error("a function of all libraries is missing")
	}
	const symbol = "nvmlDeviceGetCurrentClocksEventReasons"
	if l.has(symbol) {
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

// TestAnotherLibraryIsOpened checks that the library of an upgraded driver, at another path or
// at the same one, is called, and that the first library is unloaded.
func TestAnotherLibraryIsOpened(t *testing.T) {
	scenario(t)
	before, after := fakeLibrary(t, true), fakeLibrary(t, false)
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
		l, err := openLibrary(wire.Options{Library: c.path})
		if err != nil {
			t.Fatal(err)
		}
		if l.has(symbol) != c.has {
			t.Errorf("%s: has(%s) is not %t", c.path, symbol, c.has)
		}
		d, ret := l.DeviceGetHandleByIndex(0)
		if ret != nvml.SUCCESS {
			t.Fatal(ret)
		}
		if _, ret := d.GetCurrentClocksEventReasons(); ret != c.want {
			t.Errorf("%s: %s returned %d, want %d", c.path, symbol, ret, c.want)
		}
		if err := l.close(); err != nil {
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
	_, err := openLibrary(wire.Options{Library: filepath.Join(t.TempDir(), libraryName)})
	if err == nil || !strings.Contains(err.Error(), "cannot open shared object file") {
		t.Errorf("the linker's reason is missing: %v", err)
	}
	s := scenario(t)
	s.Fail(fake.System, "nvmlInit", fake.VersionMismatch)
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	path := fakeLibrary(t, false)
	if _, err := openLibrary(wire.Options{Library: path}); err == nil || !strings.Contains(err.Error(), "driver was upgraded") {
		t.Errorf("the cure is missing: %v", err)
	}
	if maps, _ := os.ReadFile("/proc/self/maps"); strings.Contains(string(maps), path) {
		t.Error("a library that could not be initialized is still mapped")
	}
}

// TestSourceOnFakeLibrary reads eight GPUs, two of them with MIG, through the fake library.
func TestSourceOnFakeLibrary(t *testing.T) {
	s := scenario(t)
	s.Remove("0")
	s.Node(os.Getpid())
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	source, err := New(Options{
		Library: fakeLibrary(t, false), Sysfs: t.TempDir(), Procfs: t.TempDir(), Interval: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = source.Close()
		ended(t, source.done) // the next test opens the library, too
	}()
	snapshot := until(t, source, func(s model.Snapshot) bool {
		return len(s.GPUs) == 14 && len(s.GPUProcesses) == 1 && s.GPUs[0].XIDs != nil &&
			!slices.ContainsFunc(s.GPUs, func(g model.GPU) bool { return !g.Memory.Used.Known })
	})
	for _, g := range snapshot.GPUs {
		if g.Parent == "" && g.Modes["mig"] != "enabled" && !g.Utilization.Known {
			t.Errorf("utilization of %s is not known", g.ID)
		}
	}
	if snapshot.GPUDrivers[0].CUDA != "12.4" {
		t.Errorf("driver %+v", snapshot.GPUDrivers)
	}
}

// long is the timeout for asynchronous events on a busy machine.
const long = 30 * time.Second

// eventually waits until good is true.
func eventually(t *testing.T, what string, good func() bool) {
	t.Helper()
	for end := time.Now().Add(long); !good(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", long, what)
		}
	}
}

// until reads until the snapshot is good.
func until(t *testing.T, s *Source, good func(model.Snapshot) bool) model.Snapshot {
	t.Helper()
	var snapshot model.Snapshot
	var err error
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		snapshot, err = s.Read(context.Background())
		if good(snapshot) {
			return snapshot
		}
	}
	t.Fatalf("not within %v: %v\n%+v\n%+v", long, err, snapshot.GPUs, snapshot.DeviceStates)
	return snapshot
}
