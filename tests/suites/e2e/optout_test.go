// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// optOut: a process of a container with the label accelscope.io/probe=off gets no probe, and no mapping [uprobes], at
// which debuggers lose its stack and checkpoints fail. A process of a container without the label is counted.
func (w *world) optOut(t *testing.T) {
	s := start(t, "--rdma.datapath=always")
	poll := func(name string, flags ...string) (id, pid string) {
		t.Helper()
		id = w.runDocker(t, w.flags(name, flags...), filepath.Join(w.programs, "posts"), "-d", "rxe0", "-n", "100", "-s", "64", "-p")
		pid, err := w.docker.Do(t.Context(), "inspect", "-f", "{{.State.Pid}}", id)
		if err != nil {
			t.Fatal(err)
		}
		return id, strings.TrimSpace(pid)
	}
	trapped := func(pid string) bool {
		t.Helper()
		maps, err := os.ReadFile(filepath.Join("/proc", pid, "maps"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(maps), "libibverbs") {
			t.Fatalf("process %s does not use verbs: %s", pid, maps)
		}
		return strings.Contains(string(maps), "[uprobes]")
	}

	off, pid := poll("off", "--label=accelscope.io/probe=off")
	eventually(t, 30*time.Second, func() error {
		got := s.fresh().by("container_rdma_datapath_coverage", "reason", "container_id", off)
		if _, left := got["not_selected"]; !left {
			return fmt.Errorf("coverage of the container that opted out: %v", got)
		}
		return nil
	})
	if m := s.fresh(); trapped(pid) || m.sum("accelscope_datapath_probes") != 0 {
		t.Errorf("%v probes; a probe was hit: %v", m.sum("accelscope_datapath_probes"), trapped(pid))
	}

	own := t.TempDir() // containers of one image share the file of the provider
	sh(t, "cp", "-r", providers(t)+"/.", own)
	on, pidOn := poll("on", "--volume="+own+":"+providers(t)+":ro")
	eventually(t, 60*time.Second, func() error {
		if m := s.fresh(); !trapped(pidOn) {
			return fmt.Errorf("%v probes, none was hit; coverage %v", m.sum("accelscope_datapath_probes"),
				m.by("container_rdma_datapath_coverage", "reason", "container_id", on))
		}
		return nil
	})
	if trapped(pid) {
		t.Error("the container that opted out got a probe with the other one")
	}
	for _, id := range []string{on, off} {
		_, _ = w.docker.Do(context.Background(), "rm", "-f", id)
	}
	s.stop()
}
