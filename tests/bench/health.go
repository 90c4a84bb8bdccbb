// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// measureHealth prints what the health check of the image costs, which Docker runs every 30 s.
func measureHealth(ctx context.Context, sensor exporter, m fixtures.Manifest, out io.Writer) error {
	const runs = 20
	dir, err := os.MkdirTemp("", "health-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "accelscope-health")
	if err := build(ctx, "", "github.com/accelscope/accelscope/cmd/accelscope-health", path); err != nil {
		return err
	}
	p, err := sensor.start(ctx, m)
	if err != nil {
		return err
	}
	defer p.stop()
	address := strings.TrimSuffix(strings.TrimPrefix(p.url, "http://"), "/metrics")
	before, err := cpuTime(p.pid())
	if err != nil {
		return err
	}
	var program float64
	for range runs {
		check := child.Command(ctx, path)
		check.Env = append(os.Environ(), "ACCELSCOPE_WEB_LISTEN_ADDRESS="+address)
		if err := check.Run(); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		program += ms(check.ProcessState.UserTime()+check.ProcessState.SystemTime()) / runs
	}
	after, err := cpuTime(p.pid())
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\nA health check takes %s ms of CPU, and %s ms of the sensor.\n",
		number(program, 2), number(ms(after-before)/runs, 2))
	return nil
}
