// SPDX-License-Identifier: Apache-2.0

// Package collective builds FAKES of NCCL and RCCL, and programs that use them.
package collective

import (
	"bufio"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

//go:embed fake
var sources embed.FS

// Built are the paths of the libraries and of the programs. Rank opens a library. Static and Stripped contain NCCL, the latter without
// symbols. Torch is NCCL in the file of another library, without exporting its functions. CUDA launches graphs.
type Built struct{ NCCL, RCCL, CUDA, Torch, Rank, Static, Stripped string }

// BuiltVar names a directory with an earlier Build, for a guest without a compiler.
const BuiltVar = "ACCELSCOPE_COLLECTIVE"

func in(dir string) Built {
	at := func(name string) string { return filepath.Join(dir, name) }
	return Built{
		at("libnccl.so.2"), at("librccl.so.1.0"), at("libcuda.so.580.159.04"), at("libtorch_cuda.so"), at("rank"), at("static"), at("stripped"),
	}
}

func (b Built) paths() []string {
	return []string{b.NCCL, b.RCCL, b.CUDA, b.Torch, b.Rank, b.Static, b.Stripped}
}

// Build compiles the libraries and the programs into a directory.
func Build(t testing.TB, dir string) Built {
	t.Helper()
	b := in(dir)
	if before := os.Getenv(BuiltVar); before != "" {
		for i, from := range in(before).paths() {
			text, err := os.ReadFile(from)
			if err == nil { // tests need files of their own
				err = os.WriteFile(b.paths()[i], text, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return b
	}
	work := t.TempDir()
	if err := os.CopyFS(work, sources); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-soname,libnccl.so.2", "-o", b.NCCL, "library.c"},
		{"-shared", "-fPIC", "-fvisibility=hidden", "-DRCCL", "-Wl,-soname,librccl.so.1", "-o", b.RCCL, "library.c"},
		{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", b.CUDA, "graphs.c"},
		{"-pthread", "-o", b.Rank, "rank.c", "-ldl"},
		{"-pthread", "-DSTATIC", "-o", b.Static, "rank.c", "library.c", "-ldl"},
		{"-pthread", "-DSTATIC", "-s", "-o", b.Stripped, "rank.c", "library.c", "-ldl"},
		{"-shared", "-fPIC", "-Wl,-soname,libtorch_cuda.so", "-Wl,--version-script=torch.map", "-o", b.Torch, "torch.c", "library.c"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		gcc := child.Command(ctx, "gcc", append([]string{"-O2", "-fno-ipa-icf", "-Wall", "-Werror"}, args...)...)
		gcc.Dir = filepath.Join(work, "fake")
		out, err := gcc.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	return b
}

// Rank is a running program.
type Rank struct {
	*exec.Cmd
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

// Start starts a command that runs a program. It ends with the test.
func Start(t testing.TB, cmd *exec.Cmd) *Rank {
	t.Helper()
	r := &Rank{Cmd: cmd, t: t}
	var err error
	if r.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.out = bufio.NewScanner(out)
	t.Cleanup(r.End)
	return r
}

// OK gives an order (see rank.c), which must succeed.
func (r *Rank) OK(format string, args ...any) {
	r.t.Helper()
	order := fmt.Sprintf(format, args...)
	if _, err := fmt.Fprintln(r.in, order); err != nil {
		r.t.Fatal(err)
	}
	if !r.out.Scan() {
		r.t.Fatalf("%s: no answer: %v", order, errors.Join(r.out.Err(), io.ErrUnexpectedEOF))
	}
	if answer := r.out.Text(); answer != "ok" {
		r.t.Fatalf("%s: %s", order, answer)
	}
}

// End ends the program.
func (r *Rank) End() {
	if r.ProcessState != nil {
		return
	}
	_ = r.in.Close()
	if err := r.Wait(); err != nil {
		r.t.Errorf("the program's end: %v", err)
	}
}
