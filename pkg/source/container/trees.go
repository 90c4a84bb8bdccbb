// SPDX-License-Identifier: Apache-2.0

package container

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

type trees struct {
	v2 string            // "" if not mounted
	v1 map[string]string // by controller
	// secondary means that the cgroups of workloads are not identified in v2: a runtime may have made a cgroup there
	// without processes.
	secondary bool
}

// findTrees finds the other hierarchies in the directory of the mount.
func findTrees(mount string, v2 bool) (trees, error) {
	t := trees{v1: map[string]string{}, secondary: !v2}
	if v2 {
		t.v2 = mount
	}
	parent := filepath.Dir(mount)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return t, fmt.Errorf("cgroup mounts: %w", err)
	}
	for _, e := range entries {
		dir := filepath.Join(parent, e.Name())
		switch {
		case dir == t.v2 || !exists(filepath.Join(dir, "cgroup.procs")): // not a mount point of cgroups
			continue
		case exists(filepath.Join(dir, "cgroup.controllers")):
			t.v2 = cmp.Or(t.v2, dir)
			continue
		}
		for c := range strings.SplitSeq(e.Name(), ",") {
			if slices.ContainsFunc(controllers, func(k controller) bool { return k.v1 == c }) {
				t.v1[c] = dir
			}
		}
	}
	return t, nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// A controller has its name in version 1 and the functions that read its files in each version.
type controller struct {
	v1     string
	readV1 func(*reader, int, *model.Usage)
	readV2 func(*reader, int, *model.Usage)
}

var controllers = []controller{
	{"cpu", (*reader).cpuV1, nil},
	{"cpuacct", (*reader).cpuacctV1, (*reader).cpuV2},
	{"memory", (*reader).memoryV1, (*reader).memoryV2},
	{"blkio", (*reader).blkioV1, (*reader).ioV2},
	{"pids", (*reader).pids, (*reader).pids},
}

func (t *trees) read(r *reader, path string, u *model.Usage) {
	for _, c := range controllers {
		if t.v1[c.v1] == "" {
			continue
		}
		if dir, ok := r.open(t.v1[c.v1] + path); ok {
			c.readV1(r, dir, u)
			unix.Close(dir)
		}
	}
	if t.v2 == "" {
		return
	}
	dir, ok := r.open(t.v2 + path)
	if !ok {
		return
	}
	defer unix.Close(dir)
	if t.secondary && !r.populated(dir) {
		return
	}
	for _, c := range controllers {
		if t.v1[c.v1] == "" && c.readV2 != nil {
			c.readV2(r, dir, u)
		}
	}
	r.pressure(dir, "cpu.pressure", &u.CPU.Waiting, &u.CPU.Stalled)
	r.pressure(dir, "memory.pressure", &u.Memory.Waiting, &u.Memory.Stalled)
	r.pressure(dir, "io.pressure", &u.IOWaiting, &u.IOStalled)
}
