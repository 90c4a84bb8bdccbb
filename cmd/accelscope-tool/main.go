// SPDX-License-Identifier: Apache-2.0

// Command accelscope-tool has the commands that only ask a running sensor, its node or Prometheus. Users start it as accelscope top, fleet,
// taint, peers, topo, job, gpu, inventory and check node: accelscope executes the accelscope-tool in its own directory.
package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/program"
)

// version is set by the linker in a release: -X main.version=v1.2.3.
var version string

func main() { program.Main(run) }

// run runs the command in args. It returns when the command or ctx is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, command, err := config.Parse(config.Tool, args, program.VersionOf(version).String(), stdout, stderr, os.Exit)
	if err != nil {
		return err
	}
	program.Started()
	switch name, rest, _ := strings.Cut(command, " "); name {
	case "check":
		return checkNode(ctx, &c.Check.Node, stdout)
	case "top":
		return topRun(ctx, &c.Top, stdout)
	case "peers":
		return peersRun(ctx, &c.Peers, stdout)
	case "topo":
		return topoRun(ctx, &c.Topo, stdout)
	case "job":
		return jobRAS(ctx, &c.Job.RAS, stdout)
	case "gpu":
		if rest == "release" {
			return gpuRelease(ctx, &c.GPU.Release, stdout)
		}
		return gpuResume(ctx, &c.GPU.Resume, stdout)
	case "inventory":
		return inventoryAccept(ctx, &c.Inventory.Accept, stdout)
	}
	log, err := program.NewLogger(stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal refuses it
	if command == "taint" {
		return taintRun(ctx, &c.Taint, log)
	}
	return fleetRun(ctx, &c.Fleet, log)
}
