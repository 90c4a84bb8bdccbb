// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

// TestSilence runs stages that hang: a grandchild that holds the output and sleeps, and a Go test that waits forever.
// Both must be killed, with a report of processes and goroutines.
func TestSilence(t *testing.T) {
	if os.Getenv("ACCELSCOPE_HANG") != "" {
		time.Sleep(time.Hour)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	log, pid := filepath.Join(dir, "log"), filepath.Join(dir, "pid")
	script := `setsid sleep 1000 & echo $! >` + pid + `; ACCELSCOPE_HANG=1 "$0" -test.run='^TestSilence$'; wait`
	began := time.Now()
	_, err = watch(t.Context(), log, 3*time.Second, "sh", "-c", script, exe)
	if !errors.Is(err, errSilent) {
		t.Errorf("the stage ended with %v after %v", err, time.Since(began))
	}
	text, _ := os.ReadFile(log)
	for _, want := range []string{"no output for 3s; processes:", "sleep 1000", "stages.test", "goroutine ", "TestSilence"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	left, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(left)))
	if err != nil {
		t.Fatal(err)
	}
	gone(t, n)
}

// TestReport: a stage has hung even if it ends by itself when its tests are asked for their goroutines.
func TestReport(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "log")
	_, err = watch(t.Context(), log, 3*time.Second, "sh", "-c", `ACCELSCOPE_HANG=1 "$0" -test.run='^TestSilence$'`, exe)
	if !errors.Is(err, errSilent) {
		t.Errorf("the stage ended with %v", err)
	}
	if text, _ := os.ReadFile(log); !strings.Contains(string(text), "goroutine ") {
		t.Errorf("no goroutines:\n%s", text)
	}
}

// TestCancel: canceling ends a stage and all its processes.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pid := filepath.Join(t.TempDir(), "pid")
	go func() {
		defer cancel()
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if text, _ := os.ReadFile(pid); len(text) > 0 {
				return
			}
		}
	}()
	_, err := watch(ctx, filepath.Join(t.TempDir(), "log"), time.Hour, "sh", "-c", "sleep 1000 & echo $! >"+pid+"; wait")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	text, _ := os.ReadFile(pid)
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	gone(t, n)
}

// gone waits until a process has ended. It may remain as a zombie.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if p, ok := read(pid); !ok || p.state == "Z" {
			return
		}
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	t.Errorf("process %d is left behind", pid)
}

// TestStatus: the exit status of a stage decides whether it failed.
func TestStatus(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if _, err := watch(t.Context(), log, time.Hour, "true"); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if _, err := watch(t.Context(), log, time.Hour, "sh", "-c", "echo said; exit 3"); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("ended with %v, want exit status 3", err)
	}
	if text, _ := os.ReadFile(log); string(text) != "said\n" {
		t.Errorf("the log is %q", text)
	}
}

// TestLanes: all stages run, with the priority of their lane.
func TestLanes(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("Makefile", []byte("%:\n\t@ps -o ni= -p $$$$\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var r runner
	if !r.run(t.Context(), []string{"first"}, []lane{{[]string{"a", "b"}, 0}, {[]string{"c"}, 3}, {[]string{"d"}, 19}, {}}) {
		t.Error("failed")
	}
	own, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		t.Fatal(err)
	}
	own = 20 - own // as getpriority(2) of the kernel returns it
	for name, add := range map[string]int{"first": 0, "a": 0, "b": 0, "c": 3, "d": 19} {
		text, err := os.ReadFile(filepath.Join(logs, name+".log"))
		if got, _ := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || got != min(own+add, 19) {
			t.Errorf("%s: %v, nice %q, want %d", name, err, text, min(own+add, 19))
		}
	}
}

// TestBuilds: the linter prints nothing for minutes.
func TestBuilds(t *testing.T) {
	for name, want := range map[string]bool{"compile": true, "golangci-lint-v2.15.0": true, "sleep": false} {
		if builds([]process{{name: "make"}, {name: name}}) != want {
			t.Errorf("%s: want %v", name, want)
		}
	}
}

func TestSummary(t *testing.T) {
	if got := summary([]byte("=== RUN\nstage: 5.10 truth\n    x_test.go:3: stage: 6.1 names\nok\n")); got != "  5.10 truth\n  6.1 names\n" {
		t.Errorf("%q", got)
	}
	long := "--- FAIL: TestFirst\n" + strings.Repeat("x\n", 64<<10) + "end"
	if got := tail([]byte(long)); !strings.HasPrefix(got, "--- FAIL: TestFirst\n…\n") || !strings.HasSuffix(got, "x\nend") {
		t.Errorf("%.60q", got)
	}
}

// TestAgain: the summary names one repeated guest; two fail the run.
func TestAgain(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	line := "[TestNode/7] " + shown + vm.Again + "kernel 7, guest hung at boot"
	makefile := "one:\n\t@echo '" + line + "'\ntwo: one\n\t@echo '" + line + "'\n"
	if err := os.WriteFile("Makefile", []byte(makefile), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		lane  []string
		again int
		ok    bool
	}{{[]string{"one"}, 1, true}, {[]string{"two"}, 2, false}, {[]string{"one", "one"}, 2, false}} {
		var r runner
		if ok := r.run(t.Context(), nil, []lane{{stages: tt.lane}}); ok != tt.ok || r.again != tt.again {
			t.Errorf("%v: %v, with %d guests that ran again", tt.lane, ok, r.again)
		}
	}
}
