// SPDX-License-Identifier: Apache-2.0

// Package collective builds FAKES of NCCL and RCCL, and programs that use them.
package collective

import (
	"embed"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

//go:embed fake
var sources embed.FS

// Built are the paths of the libraries and of the programs. Rank opens a library. Static and Stripped contain NCCL, the latter without
// symbols. Torch is NCCL in the file of another library, without exporting its functions. CUDA launches graphs.
type Built struct{ NCCL, RCCL, CUDA, Torch, Rank, Static, Stripped string }

// BuiltVar names a directory with an earlier Build, for a guest without a compiler.
const BuiltVar = "ACCELSCOPE_COLLECTIVE"

// Build compiles the libraries and the programs into a directory.
func Build(t testing.TB, dir string) Built {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	b := Built{
		at("libnccl.so.2"), at("librccl.so.1.0"), at("libcuda.so.580.159.04"), at("libtorch_cuda.so"), at("rank"), at("static"), at("stripped"),
	}
	libraries.Build(t, sources, BuiltVar, []libraries.Target{
		{Path: b.NCCL, Args: []string{"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnccl.so.2", "library.c"}},
		{Path: b.RCCL, Args: []string{"-shared", "-fPIC", "-fvisibility=hidden", "-DRCCL", "-Wl,-soname,librccl.so.1", "library.c"}},
		{Path: b.CUDA, Args: []string{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "graphs.c"}},
		{Path: b.Rank, Args: []string{"-pthread", "rank.c", "-ldl"}},
		{Path: b.Static, Args: []string{"-pthread", "-DSTATIC", "rank.c", "library.c", "-ldl"}},
		{Path: b.Stripped, Args: []string{"-pthread", "-DSTATIC", "-s", "rank.c", "library.c", "-ldl"}},
		{Path: b.Torch, Args: []string{
			"-shared", "-fPIC", "-Wl,-soname,libtorch_cuda.so", "-Wl,--version-script=torch.map", "torch.c", "library.c",
		}},
	})
	return b
}

// Rank is a running program, whose orders are in rank.c.
type Rank = libraries.Program

// Start starts a command that runs a program. It ends with the test.
func Start(t testing.TB, cmd *exec.Cmd) *Rank { return libraries.Start(t, cmd) }
