// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

//go:embed load/load.c
var source []byte

// build compiles the program that uses the GPU.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file, program := filepath.Join(dir, "load.c"), filepath.Join(dir, "load")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, "gcc", "-O2", "-Wall", "-rdynamic", "-pthread", "-o", program, file, "-ldl")
	return program
}

// load is a running program, with the orders of load.c.
type load struct {
	*gpumemory.Allocator
	t *testing.T
	// container is the label of the container in whose cgroup it runs.
	container string
}

// enter starts a program as the only process of a container. Its use of the GPU begins with the order "start".
func enter(t *testing.T, name string, program ...string) *load {
	t.Helper()
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	pod := filepath.Join(cgroup.V2(), "kubepods", "pod"+id[:32])
	dir := filepath.Join(pod, id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cgroup.Remove(pod); err != nil {
			t.Error(err)
		}
	})
	return begin(t, fmt.Sprintf("container_id=%q", id),
		child.Command(context.Background(), "sh", append([]string{"-c", `echo $$ >"$0/cgroup.procs"; exec "$@"`, dir}, program...)...))
}

// outside starts a program in no container.
func outside(t *testing.T, program string) *load {
	t.Helper()
	return begin(t, `container_id=""`, child.Command(context.Background(), program))
}

func begin(t *testing.T, container string, cmd *exec.Cmd) *load {
	t.Helper()
	return &load{Allocator: gpumemory.Start(t, cmd), t: t, container: container}
}

// counts is what a program did, by its own count.
type counts struct {
	ioctls  map[string]float64 // by driver
	opens   float64
	handles float64
}

func (l *load) counts() counts {
	l.t.Helper()
	var nvidia, uvm float64
	var c counts
	answer := l.Do("count")
	if _, err := fmt.Sscan(answer, &nvidia, &uvm, &c.opens, &c.handles); err != nil {
		l.t.Fatalf("count: %s", answer)
	}
	c.ioctls = map[string]float64{"nvidia": nvidia, "nvidia_uvm": uvm}
	return c
}
