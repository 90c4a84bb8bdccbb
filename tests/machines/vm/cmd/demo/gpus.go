// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// The guest has no GPU. The demo uses the tests' FAKE of NVIDIA's library, which answers from a file that the demo
// writes. The names and UUIDs of the GPUs say so.
const (
	simulatedGPUs = 2
	simulatedName = "SIMULATED GPU"
	stepInterval  = 5 * time.Second
)

func simulatedUUID(n int) string { return fmt.Sprintf("GPU-SIMULATED-0000-0000-%012d", n) }

type gpus struct{ *nvml.Scenario }

// newGPUs makes the GPUs and their device nodes, and sets the environment variables of the library.
func newGPUs(dir string) (gpus, error) {
	s, err := nvml.New(dir)
	if err != nil {
		return gpus{}, err
	}
	for n := range simulatedGPUs {
		d := strconv.Itoa(n)
		s.AddH100(n)
		s.Set(d, "nvmlDeviceGetName", simulatedName)
		s.Set(d, "nvmlDeviceGetUUID", simulatedUUID(n))
		s.Set(d, "nvmlDeviceGetSerial", "none")
		for _, reasons := range []string{"Event", "Throttle"} {
			s.Set(d, "nvmlDeviceGetCurrentClocks"+reasons+"Reasons", 0)
		}
		const nvidia = 195 // major number of the driver
		if err := syscall.Mknod(gpuNode(n), syscall.S_IFCHR|0o666, nvidia<<8|n); err != nil && !errors.Is(err, os.ErrExist) {
			return gpus{}, fmt.Errorf("device node of a simulated GPU: %w", err)
		}
	}
	for _, variable := range s.Environment() {
		name, value, _ := strings.Cut(variable, "=")
		if err := os.Setenv(name, value); err != nil {
			return gpus{}, err
		}
	}
	return gpus{s}, s.Write()
}

func gpuNode(n int) string { return fmt.Sprint("/dev/nvidia", n) }

// use has the first process of each container use a GPU, more or less busy, until ctx ends.
func (g gpus) use(ctx context.Context, pids []int) error {
	const gib = 1 << 30
	for n, pid := range pids {
		g.Processes = append(g.Processes, nvml.Process{Device: strconv.Itoa(n), PID: pid, Memory: (48 - 8*uint64(n)) * gib})
	}
	for step := uint64(0); ; step++ {
		for n := range g.Processes {
			const period = 24 // steps of a triangle
			x := (step + 5*uint64(n)) % period
			g.Processes[n].SM = 60 + 3*min(x, period-x)
			g.Processes[n].Mem = g.Processes[n].SM / 2
		}
		g.Balance()
		if err := g.Write(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(stepInterval):
		}
	}
}
