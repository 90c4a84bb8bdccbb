// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const mpsControl = "nvidia-cuda-mps-control"

// mps: clients of the multi-process service own their memory. The driver's samples attribute their multiprocessors to
// the server, so clients have no such series.
func (s *sensor) mps(t *testing.T, program string) {
	environment := startMPS(t)
	loads := map[string]*load{}
	for name, bytes := range map[string]int{"large": 4 << 30, "small": 1 << 30} {
		l := enter(t, "client of MPS, "+name, append([]string{"env"}, append(environment, program)...)...)
		l.OK("start")
		l.OK("allocate %d", bytes)
		loads[name] = l
	}
	loads["large"].OK("busy 50 0")
	time.Sleep(3 * time.Second)
	m, want, sm := s.scrape(), memoryByPID(t), startPmon(t, 5)()
	t.Logf("nvidia-smi: memory %v, SM %v\n%s", want, sm, run(t, "nvidia-smi"))
	for name, l := range loads {
		memory := m.sum(t, "container_gpu_memory_used_bytes", l.container)
		if memory < 1<<30 || memory != want[l.Process.Pid] {
			t.Errorf("memory of the %s client: %v, nvidia-smi has %v", name, memory, want[l.Process.Pid])
		}
		if busy := m.all("container_gpu_utilization_ratio", l.container); len(busy) != 0 || sm[l.Process.Pid] != 0 {
			t.Errorf("use by the %s client: %v, nvidia-smi has %v", name, busy, sm[l.Process.Pid])
		}
	}
	if shares := total(m.all("container_gpu_utilization_ratio", `engine="sm"`)); math.Abs(shares-1) > 0.15 {
		t.Errorf("the shares of the multiprocessors, with that of the server, add up to %v", shares)
	}
	if shares, used := total(m.all("container_gpu_memory_used_bytes")), m.sum(t, "gpu_memory_used_bytes"); shares != used {
		t.Errorf("the shares of memory add up to %v, the GPU has %v", shares, used)
	}
}

// startMPS starts the control daemon, which starts a server for the first client, and returns the environment of clients.
func startMPS(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	environment := []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir}
	daemon := child.Command(context.Background(), mpsControl, "-f")
	daemon.Env = append(os.Environ(), environment...)
	if err := daemon.Start(); err != nil {
		t.Skip("without MPS: ", err)
	}
	t.Cleanup(func() {
		quit := child.Command(context.Background(), mpsControl)
		quit.Env, quit.Stdin = daemon.Env, strings.NewReader("quit\n")
		if out, err := quit.CombinedOutput(); err != nil {
			t.Errorf("quit: %v: %s", err, out)
			_ = daemon.Process.Kill()
		}
		_ = daemon.Wait()
	})
	eventually(t, func() error {
		_, err := os.Stat(filepath.Join(dir, "control"))
		return err
	})
	return environment
}
