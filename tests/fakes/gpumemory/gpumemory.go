// SPDX-License-Identifier: Apache-2.0

// Package gpumemory builds FAKES of the libraries that allocate GPU memory, and a program that uses them.
package gpumemory

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
	if before := os.Getenv(BuiltVar); before != "" {
		return copyTo(t, dir, before)
	}
	work := t.TempDir()
	if err := os.CopyFS(work, sources); err != nil {
		t.Fatal(err)
	}
	b := in(dir)
	for _, args := range [][]string{
		{"-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", b.CUDA, "libcuda.c"},
		{"-shared", "-fPIC", "-Wl,-soname,libamdhip64.so.6", "-Wl,--version-script=libamdhip64.map", "-o", b.HIP, "libamdhip64.c"},
		{"-pthread", "-o", b.Program, "allocator.c", "-ldl"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		gcc := child.Command(ctx, "gcc", append([]string{"-O2", "-Wall", "-Werror"}, args...)...)
		gcc.Dir = filepath.Join(work, "fake")
		out, err := gcc.CombinedOutput()
		cancel()
		if err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	return b
}

func in(dir string) Built {
	return Built{filepath.Join(dir, CUDA), filepath.Join(dir, HIP), filepath.Join(dir, "allocator")}
}

// copyTo copies an earlier build: tests need files of their own.
func copyTo(t testing.TB, dir, before string) Built {
	t.Helper()
	from, to := in(before), in(dir)
	for source, copied := range map[string]string{from.CUDA: to.CUDA, from.HIP: to.HIP, from.Program: to.Program} {
		text, err := os.ReadFile(source)
		if err == nil {
			err = os.WriteFile(copied, text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// Allocator is a running program.
type Allocator struct {
	*exec.Cmd
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

// Start starts a command that runs the program. It ends with the test.
func Start(t testing.TB, cmd *exec.Cmd) *Allocator {
	t.Helper()
	a := &Allocator{Cmd: cmd, t: t}
	var err error
	if a.in, err = cmd.StdinPipe(); err != nil {
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
	a.out = bufio.NewScanner(out)
	t.Cleanup(a.End)
	return a
}

// Do gives an order and returns the answer.
func (a *Allocator) Do(format string, args ...any) string {
	a.t.Helper()
	if _, err := fmt.Fprintf(a.in, format+"\n", args...); err != nil {
		a.t.Fatal(err)
	}
	if !a.out.Scan() {
		a.t.Fatalf("%s: no answer: %v", fmt.Sprintf(format, args...), errors.Join(a.out.Err(), io.ErrUnexpectedEOF))
	}
	return a.out.Text()
}

// OK gives an order that must succeed.
func (a *Allocator) OK(format string, args ...any) {
	a.t.Helper()
	if answer := a.Do(format, args...); answer != "ok" {
		a.t.Fatalf("%s: %s", fmt.Sprintf(format, args...), answer)
	}
}

// Failures calls a function (see allocator.c) and returns how often memory was lacking, as the program saw it.
func (a *Allocator) Failures(order string, args ...any) (failed uint64) {
	a.t.Helper()
	answer := a.Do(order, args...)
	var others [3]uint64
	if _, err := fmt.Sscan(answer, &others[0], &others[1], &failed, &others[2]); err != nil {
		a.t.Fatalf("%s: %s", fmt.Sprintf(order, args...), answer)
	}
	return failed
}

// End ends the program.
func (a *Allocator) End() {
	if a.ProcessState != nil {
		return
	}
	_ = a.in.Close()
	if err := a.Wait(); err != nil {
		a.t.Errorf("the program's end: %v", err)
	}
}
