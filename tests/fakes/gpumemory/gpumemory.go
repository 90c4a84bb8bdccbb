// SPDX-License-Identifier: Apache-2.0

// Package gpumemory builds FAKES of the libraries that allocate GPU memory, and a program that uses them.
package gpumemory

import (
	"embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

//go:embed fake
var sources embed.FS

// The names of the libraries, with the version that a driver and ROCm have.
const (
	CUDA = "libcuda.so.570.86.15"
	HIP  = "libamdhip64.so.6.3.60300"
)

// Built are the paths of the libraries and of the program.
type Built struct{ CUDA, HIP, Program string }

// BuiltVar names a directory with an earlier Build, for a guest without a compiler.
const BuiltVar = "ACCELSCOPE_GPUMEMORY"

// Build compiles the libraries and the program into a directory.
func Build(t testing.TB, dir string) Built {
	t.Helper()
	b := Built{filepath.Join(dir, CUDA), filepath.Join(dir, HIP), filepath.Join(dir, "allocator")}
	libraries.Build(t, sources, BuiltVar, []libraries.Target{
		{Path: b.CUDA, Args: []string{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "libcuda.c"}},
		{Path: b.HIP, Args: []string{
			"-shared", "-fPIC", "-Wl,-soname,libamdhip64.so.6", "-Wl,--version-script=libamdhip64.map", "libamdhip64.c",
		}},
		{Path: b.Program, Args: []string{"-pthread", "allocator.c", "-ldl"}},
	})
	return b
}

// Allocator is a running program, whose orders are in allocator.c.
type Allocator struct {
	*libraries.Program
	t testing.TB
}

// Start starts a command that runs the program. It ends with the test.
func Start(t testing.TB, cmd *exec.Cmd) *Allocator { return Of(t, libraries.Start(t, cmd)) }

// Of returns a program as an Allocator.
func Of(t testing.TB, p *libraries.Program) *Allocator { return &Allocator{p, t} }

// Failures calls a function and returns how often memory was lacking, as the program saw it.
func (a *Allocator) Failures(order string, args ...any) (failed uint64) {
	a.t.Helper()
	answer := a.Do(order, args...)
	var others [3]uint64
	if _, err := fmt.Sscan(answer, &others[0], &others[1], &failed, &others[2]); err != nil {
		a.t.Fatalf("%s: %s", fmt.Sprintf(order, args...), answer)
	}
	return failed
}
