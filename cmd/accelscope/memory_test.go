// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/program"
)

// The sensor takes the limit of its heap from its cgroup.
func TestMemoryLimit(t *testing.T) {
	const limit = 256 << 20
	dir := ""
	for file, root := range map[string]string{"memory.limit_in_bytes": "/sys/fs/cgroup/memory", "memory.max": "/sys/fs/cgroup"} {
		at := filepath.Join(root, fmt.Sprintf("accelscope-limit-%d", os.Getpid()))
		if err := os.Mkdir(at, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			for range 100 {
				if err := os.Remove(at); err == nil || errors.Is(err, fs.ErrNotExist) {
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
			t.Errorf("%s is left", at)
		})
		f, err := os.OpenFile(filepath.Join(at, file), os.O_WRONLY, 0)
		if err != nil {
			continue // another version of cgroups
		}
		if _, err := f.WriteString(strconv.Itoa(limit)); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		dir = at
	}
	if dir == "" {
		t.Fatal("no hierarchy with a memory controller")
	}
	// The shell moves itself before it becomes the sensor.
	script := filepath.Join(t.TempDir(), "limited")
	text := fmt.Sprintf("#!/bin/sh\necho $$ > %s/cgroup.procs\nexec %s \"$@\"\n", dir, build(t))
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	_, args := fakeNode(t)
	url, stop := start(t, script, args...)
	e := scrape(t, url)
	if got, want := e.gauge("go_gc_gomemlimit_bytes"), float64(limit)*program.MemoryShare; got != want {
		t.Errorf("the limit is %v, want %v", got, want)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// The kernel gives the sensor no huge pages.
func TestHugePages(t *testing.T) {
	const field = "THP_enabled"
	if got := processStatus(t, os.Getpid(), field); got != "1" {
		t.Skipf("this process has none either: %q", got)
	}
	_, args := fakeNode(t)
	_, process, stop := startProcess(t, build(t), args...)
	if got := processStatus(t, process.Pid, field); got != "0" {
		t.Errorf("%s is %q", field, got)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}
