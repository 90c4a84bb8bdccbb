// SPDX-License-Identifier: Apache-2.0

// Command accelscope shows which container uses which RDMA HCA and which GPU,
// how hard, and how well that goes. It is the sensor, and the commands doctor,
// check, top, fleet, peers, topo, gpu, inventory and version. This package turns flags into sources and an
// HTTP server; the packages below pkg do the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	// One thread runs Go code: the sensor waits more than it computes, and more
	// threads cost more wake-ups and memory than they save. A thread that waits
	// in a system call, such as for a driver that hangs, is not limited by this.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	// Where transparent huge pages are always enabled (the default of Debian and RHEL), the kernel backs parts of the heap with them even
	// if a few kB are in use: private memory would be three times as large. Children inherit the setting. An error costs memory only.
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)
	growHeap(startGrowth)
	// A second signal has the default action again and ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	os.Exit(exitStatus(run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// How much the heap grows, in percent, before Go collects garbage.
const (
	// Flags and the type information of the kernel are garbage soon: collecting it at each step would be a quarter of the start.
	startGrowth = 200
	// The heap of a program that runs is small, so that collecting often costs at most some percent of a scrape, and the memory of a
	// sensor that is idle most of the time matters more.
	steadyGrowth = 50
)

func growHeap(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// run runs the command in args. It returns when the command or ctx is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c cli
	command, err := parse(&c, args, stdout, stderr, os.Exit)
	if err != nil {
		return err
	}
	growHeap(steadyGrowth)
	log, err := newLogger(stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal refuses it
	switch name, rest, _ := strings.Cut(command.Command(), " "); name {
	case "doctor":
		return c.Doctor.run(ctx, stdout, log)
	case "check":
		return c.Check.run(stdout)
	case "top":
		return c.Top.run(ctx, stdout)
	case "fleet":
		return c.Fleet.run(ctx, log)
	case "peers":
		return c.Peers.run(ctx, stdout)
	case "topo":
		return c.Topo.run(ctx, stdout)
	case "gpu":
		if rest == "release" {
			return c.GPU.Release.run(ctx, stdout)
		}
		return c.GPU.Resume.run(ctx, stdout)
	case "inventory":
		return c.Inventory.Accept.run(ctx, stdout)
	case "version":
		return c.Version.run(stdout)
	}
	return c.Run.run(ctx, log)
}

// errCannotRun is the verdict "no" of doctor, which has printed the reason.
var errCannotRun = errors.New("the use of HCAs cannot be counted by workload")

func exitStatus(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errCannotRun):
		return 1
	}
	fmt.Fprintln(stderr, "accelscope: error:", err)
	return 1
}
