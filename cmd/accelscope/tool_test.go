// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestTool starts a sensor through a link. It must execute the accelscope-tool in the directory of the sensor, here a script, with the same
// arguments, environment and descriptors, and end with its status.
func TestTool(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	dir := t.TempDir()
	sensor, tool, link := filepath.Join(dir, "accelscope"), filepath.Join(dir, "accelscope-tool"), filepath.Join(t.TempDir(), "accelscope")
	if err := errors.Join(os.Link(build(t), sensor), os.Symlink(sensor, link)); err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (out, log string, status int) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := child.Command(t.Context(), link, args...)
		cmd.Env = append(os.Environ(), "MARK=of the caller")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("a line\n"), &stdout, &stderr
		if err, exit := cmd.Run(), new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
	}
	const missing = "accelscope: error: execute TOOL, which is in the same package and image as SENSOR: no such file or directory\n"
	want := strings.NewReplacer("TOOL", tool, "SENSOR", sensor).Replace(missing)
	if out, log, status := start("top", "--once"); out != "" || log != want || status != 1 {
		t.Errorf("without the tool: status %d, %q, %q, want %q", status, out, log, want)
	}
	script := "#!/bin/sh\nread -r line\necho \"$0|$*|$MARK|$line\"\necho failed >&2\nexit 7\n"
	if err := os.WriteFile(tool, []byte(script), 0o700); err != nil { //nolint:gosec // executable
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"top", "--once"},
		{"--log.level", "debug", "fleet", "--prometheus=http://localhost"},
		{"peers", "--config.file=/nonexistent"},
		{"topo", "--json"},
		{"gpu", "release", "--for=5m"},
		{"inventory", "accept", "GPU 1"},
	} {
		want := tool + "|" + strings.Join(args, " ") + "|of the caller|a line\n"
		if out, log, status := start(args...); out != want || log != "failed\n" || status != 7 {
			t.Errorf("status %d, %q, %q, want 7, %q", status, out, log, want)
		}
	}
	for _, args := range [][]string{{"version"}, {"top", "--version"}, {"top", "--help"}, {"--help"}} {
		if out, log, status := start(args...); !strings.Contains(out, "accelscope") || log != "" || status != 0 {
			t.Errorf("%q: status %d, %q, %q, want no tool", args, status, out, log)
		}
	}
}
