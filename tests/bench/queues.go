// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const queuePairs = "queue pairs"

// measureQueues measures exporters in a guest with a process that holds Soft-RoCE queue pairs. Emulation makes it
// slower. Only the sensor counts queue pairs; the others read the HCA's counters.
func measureQueues(ctx context.Context, use []exporter, short bool) ([]curve, error) {
	workloads, err := vm.BuildWorkloads(ctx)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := []string{self, "-inside", workloads, "-short=" + strconv.FormatBool(short)}
	for _, e := range use {
		if option := map[string]string{accelscope: "-accelscope", nodeExporter: "-node-exporter", floor: "-floor"}[e.name]; option != "" {
			path, err := filepath.Abs(e.path)
			if err != nil {
				return nil, err
			}
			command = append(command, option, path)
		}
	}
	var out bytes.Buffer
	res, err := vm.Run(ctx, vm.Options{
		Kernel: "6.12", Devices: 1, Stdout: io.MultiWriter(&out, os.Stderr), Timeout: 15 * time.Minute,
		Command: command,
	})
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out.String()) {
		var curves []curve
		if json.Unmarshal([]byte(line), &curves) == nil && len(curves) > 0 {
			return curves, nil
		}
	}
	return nil, fmt.Errorf("exit status %d in the guest: %s", res.Status, out.String())
}

// queuesInside runs in the guest, and prints the curves.
func queuesInside(ctx context.Context, workloads string, programs paths, p growthPlan) error {
	g := growth{queuePairs, []int{1, 100, 1000, 10000}, func(ctx context.Context, _ string, n int) (site, error) {
		return queueSite(ctx, workloads, programs, n)
	}}
	curves, err := g.measure(ctx, p)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(curves)
}

// queueSite starts a process with n queue pairs.
func queueSite(ctx context.Context, workloads string, programs paths, n int) (s site, err error) {
	cmd := child.Command(ctx, filepath.Join(workloads, "verbs"), "-d", "rxe0", "-q", strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // closing it ends the process
	if err != nil {
		return s, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return s, err
	}
	if err := cmd.Start(); err != nil {
		return s, err
	}
	s.remove = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	lines, ready := bufio.NewScanner(out), false
	for !ready && lines.Scan() {
		ready = strings.HasPrefix(lines.Text(), "ready")
	}
	if !ready {
		return s, fmt.Errorf("no %d queue pairs: the process has ended", n)
	}
	s.Dir = "/"
	s.shown = []string{`type="qp"`}
	for _, e := range exporters(programs) {
		switch {
		case e.name == accelscope:
			e.args = func(_ fixtures.Manifest, addr string) []string {
				return []string{
					"--web.listen-address=" + addr, "--log.level=error", "--no-collector.node", "--no-collector.container", "--no-collector.gpu",
					"--no-collector.access", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.kernellog",
				}
			}
			s.use = append(s.use, e)
		case e.name == nodeExporter && programs.nodeExporter != "", e.name == floor && programs.floor != "":
			s.blind = append(s.blind, e)
		}
	}
	return s, nil
}
