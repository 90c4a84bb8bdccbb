// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/tests/machines/vm"
)

// dmabufFunction is a function that maps a dma-buf for a driver.
type dmabufFunction struct {
	name, arguments string
	in              []string // kernel versions that have the function
}

// dmabufPrefix is the prefix of the names of these functions.
const dmabufPrefix = "ib_umem_dmabuf_get"

// dmabufKernels are the kernels whose functions are compared. 5.10 has no such function.
var dmabufKernels = []string{"5.10", "6.1", "6.12", "7"}

var dmabufFunctions = []dmabufFunction{
	{"ib_umem_dmabuf_get", "device, offset, size, fd, access, ops", []string{"6.1", "6.12", "7"}},
	{"ib_umem_dmabuf_get_pinned", "device, offset, size, fd, access", []string{"6.1", "6.12", "7"}},
	{"ib_umem_dmabuf_get_pinned_with_dma_device", "device, dma_device, offset, size, fd, access", []string{"6.12", "7"}},
	{"ib_umem_dmabuf_get_pinned_revocable_and_lock", "device, offset, size, fd, access", []string{"6.12", "7"}},
}

// verifyArguments compares the arguments with the type information of the running kernel.
func (f dmabufFunction) verifyArguments(t *testing.T) {
	t.Helper()
	for _, module := range []string{"ib_uverbs", "ib_core"} {
		types, err := btf.LoadKernelModuleSpec(module)
		if err != nil {
			t.Fatal(err)
		}
		var fn *btf.Func
		if types.TypeByName(f.name, &fn) != nil {
			continue
		}
		var got []string
		for _, p := range fn.Type.(*btf.FuncProto).Params {
			got = append(got, p.Name)
		}
		if strings.Join(got, ", ") != f.arguments {
			t.Errorf("%s has the arguments %q, want %q", f.name, got, f.arguments)
		}
		return
	}
	t.Errorf("no module has a function %s", f.name)
}

// TestDMABufFunctions compares the functions that map a dma-buf with the modules of each kernel, and with the programs.
func TestDMABufFunctions(t *testing.T) {
	for _, kernel := range dmabufKernels {
		k, err := vm.FetchKernel(t.Context(), kernel)
		if err != nil {
			t.Fatal(err)
		}
		exported, err := k.Exported(t.Context(), "ib_core", "ib_uverbs")
		if err != nil {
			t.Fatal(err)
		}
		got := slices.DeleteFunc(exported, func(f string) bool { return !strings.HasPrefix(f, dmabufPrefix) })
		var want []string
		for _, f := range dmabufFunctions {
			if slices.Contains(f.in, kernel) {
				want = append(want, f.name)
			}
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", filepath.Base(k.Image), got, want)
		}
	}
	spec, err := gen.LoadObjects()
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for _, p := range spec.Programs {
		sections[p.SectionName] = true
	}
	for _, f := range dmabufFunctions {
		for _, kind := range []string{"fexit/", "kprobe/", "kretprobe/"} {
			if !sections[kind+f.name] {
				t.Errorf("no program %s%s", kind, f.name)
			}
		}
	}
}

func inKernel(t *testing.T, function string) bool {
	t.Helper()
	symbols, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m) ` + regexp.QuoteMeta(function) + `(\s|$)`).Match(symbols)
}
