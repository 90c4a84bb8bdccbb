// SPDX-License-Identifier: Apache-2.0

//go:build cgo

// Package nvmltest has what the tests of both processes of pkg/source/nvidia use.
package nvmltest

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// Long is the timeout for asynchronous events on a busy machine.
const Long = 30 * time.Second

// Eventually waits until good is true.
func Eventually(t testing.TB, what string, good func() bool) {
	t.Helper()
	for end := time.Now().Add(Long); !good(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", Long, what)
		}
	}
}

// Ended waits until a channel is closed.
func Ended(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(Long):
		t.Fatal("it did not end, or did not start")
	}
}

// Library builds the fake libnvidia-ml.so.1 of tests/fakes/nvml, with or without the functions
// that were added after R450.
func Library(t testing.TB, old bool) string {
	t.Helper()
	build := builtNew
	if old {
		build = builtOld
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var (
	builtOld = sync.OnceValues(func() (string, error) { return fake.Build(context.Background(), filepath.Join(built, "old"), true) })
	builtNew = sync.OnceValues(func() (string, error) { return fake.Build(context.Background(), filepath.Join(built, "new"), false) })
	built    string
)

// Main runs the tests of a package that uses Library, and ends the process.
func Main(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "nvml"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

// OneGPU returns the answers of the fake libraries: one GPU.
func OneGPU(t testing.TB) *fake.Scenario {
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

// Missing sets the functions of a mock that a test did not set. They return the error of missing functions, like
// bind.c.
func Missing[T any](m *T) *T {
	for _, f := range reflect.ValueOf(m).Elem().Fields() {
		if f.Kind() != reflect.Func || !f.IsNil() {
			continue
		}
		f.Set(reflect.MakeFunc(f.Type(), func([]reflect.Value) (results []reflect.Value) {
			for result := range f.Type().Outs() {
				results = append(results, reflect.Zero(result))
			}
			if last := len(results) - 1; last >= 0 && results[last].Type() == reflect.TypeFor[nvml.Return]() {
				results[last] = reflect.ValueOf(nvml.ERROR_FUNCTION_NOT_FOUND)
			}
			return results
		}))
	}
	return m
}

// Unshared runs the current test in other namespaces, with unshare's options. It returns true there.
func Unshared(t *testing.T, options ...string) bool {
	t.Helper()
	const inside = "ACCELSCOPE_UNSHARED"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	args := append(options, "--fork", "--kill-child", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd := child.Command(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in other namespaces: %v\n%s", err, out)
	}
	return false
}
