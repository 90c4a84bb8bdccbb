// SPDX-License-Identifier: Apache-2.0

// Package otel runs a real OpenTelemetry Collector for tests and parses its received data. The Collector is the module
// tests/machines/otelcol: an OTLP receiver and the debug exporter with detailed output.
package otel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// Build returns the path of the Collector, built once for each version of its source. The build takes half a minute, or
// minutes with downloads.
func Build(ctx context.Context) (string, error) {
	dir, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	return vm.Built("otelcol", os.DirFS(dir), []string{"go.mod", "go.sum", "main.go"}, func(path string) error {
		// CGO_ENABLED=0, because it also runs in a guest.
		if _, err := run(ctx, dir, []string{"CGO_ENABLED=0", "GOWORK=off"},
			"go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "."); err != nil {
			return fmt.Errorf("build of the Collector: %w", err)
		}
		return nil
	})
}

// moduleDir returns the directory of the Collector's source, from any package of ours.
func moduleDir(ctx context.Context) (string, error) {
	mod, err := run(ctx, "", nil, "go", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	if mod = strings.TrimSpace(mod); filepath.Base(mod) != "go.mod" {
		return "", errors.New("the Collector is built from the source tree of accelscope")
	}
	return filepath.Join(filepath.Dir(mod), "tests", "machines", "otelcol"), nil
}

func run(ctx context.Context, dir string, env []string, name string, args ...string) (string, error) {
	cmd := child.Command(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}
