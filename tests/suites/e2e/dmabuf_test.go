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

// dmabufFunction is a function that maps a dma-buf for a driver: a row of the table in bpf/README.md.
type dmabufFunction struct {
	name      string
	arguments []string
	in        map[string]bool // kernel versions that have the function
}

// dmabufPrefix is the prefix of the names of these functions.
const dmabufPrefix = "ib_umem_dmabuf_get"

// dmabufFunctions returns the table of bpf/README.md.
func dmabufFunctions(t *testing.T) (functions []dmabufFunction) {
	t.Helper()
	text, err := os.ReadFile("../../../bpf/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var kernels []string
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		switch {
		case strings.HasPrefix(line, "| function | arguments | "):
			kernels = cells[2:]
		case kernels != nil && strings.HasPrefix(line, "| `"+dmabufPrefix):
			f := dmabufFunction{strings.Trim(cells[0], "`"), strings.Split(strings.Trim(cells[1], "`"), ", "), map[string]bool{}}
			for i, k := range kernels {
				f.in[k] = cells[2+i] == "yes"
			}
			functions = append(functions, f)
		}
	}
	if len(functions) == 0 {
		t.Fatal("bpf/README.md has no table of functions that map a dma-buf")
	}
	return functions
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
		if !slices.Equal(got, f.arguments) {
			t.Errorf("%s has the arguments %q, want %q", f.name, got, f.arguments)
		}
		return
	}
	t.Errorf("no module has a function %s", f.name)
}

// TestDMABufFunctions compares the functions of bpf/README.md that map a dma-buf with the modules of each kernel, and
// with the programs.
func TestDMABufFunctions(t *testing.T) {
	functions := dmabufFunctions(t)
	for kernel := range functions[0].in {
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
		for _, f := range functions {
			if f.in[kernel] {
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
	for _, f := range functions {
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
