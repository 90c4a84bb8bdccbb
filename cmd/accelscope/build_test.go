// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// artifacts is the directory of what tests build once and share.
var artifacts string

func TestMain(m *testing.M) {
	var err error
	if artifacts, err = os.MkdirTemp("", "accelscope-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// Sensors of tests keep nothing, unless a test says where.
	if err := os.Setenv("ACCELSCOPE_STATE_DIR", ""); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(artifacts)
	os.Exit(code)
}

var builtProgram = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	if out, err := child.Command(ctx, "go", "build", "-o", artifacts+"/", ".", "../accelscope-tool").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return filepath.Join(artifacts, "accelscope"), nil
})

var builtLibrary = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return nvml.Build(ctx, artifacts, false)
})

// build returns the program under test.
func build(t *testing.T) string {
	t.Helper()
	path, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// buildNVML returns the program and the fake of NVIDIA's library.
func buildNVML(t *testing.T) (binary, library string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the program")
	}
	library, err := builtLibrary()
	if err != nil {
		t.Fatal(err)
	}
	return build(t), library
}
