// SPDX-License-Identifier: Apache-2.0

// Package program has what the programs need of their process: settings of the Go runtime, signals, the exit status, the logger, what
// systemd and Kubernetes set in the environment, and the version.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// ErrReported is the result of a command that has printed why it failed.
var ErrReported = errors.New("reported")

// ErrUnknown is the result of a check that has printed why it cannot know.
var ErrUnknown = errors.New("unknown")

// Main runs a program until run returns or a signal ends its context, and exits.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	// One thread runs Go code: the sensor waits more than it computes, and more
	// threads cost more wake-ups and memory than they save. A thread that waits
	// in a system call, such as for a driver that hangs, is not limited by this.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
	// Where transparent huge pages are always enabled (the default of Debian and RHEL), the kernel backs parts of the heap with them even
	// if a few kB are in use: private memory would be three times as large. Children inherit the setting. An error costs memory only.
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0)
	Starting()
	// A second signal has the default action again and ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	os.Exit(exitStatus(run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

func exitStatus(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrReported):
		return 1
	case errors.Is(err, ErrUnknown):
		return 2
	}
	fmt.Fprintln(stderr, "accelscope: error:", err)
	return 1
}

// How much the heap grows, in percent, before Go collects garbage.
const (
	// Flags and the type information of the kernel are garbage soon: collecting it at each step would be a quarter of the start.
	startGrowth = 200
	// The heap of a program that runs is small, so that collecting often costs at most some percent of a scrape, and the memory of a
	// sensor that is idle most of the time matters more.
	steadyGrowth = 50
)

// Starting lets the heap grow further before garbage is collected, until Started is called. Both respect GOGC.
func Starting() { growHeap(startGrowth) }

// Started ends what Starting began.
func Started() { growHeap(steadyGrowth) }

func growHeap(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// MemoryShare is the part of the memory limit of the cgroup that Go's heap may use. The rest is for the kernel's maps, the
// vendors' libraries and the children.
const MemoryShare = 0.75

// LimitMemory sets the limit of Go's garbage collector from the limit of the cgroup, unless GOMEMLIMIT is set.
func LimitMemory(log *zap.Logger) {
	if _, err := memlimit.Set(memlimit.WithRatio(MemoryShare)); err != nil {
		log.Debug("the memory limit of the cgroup is not known", zap.Error(err))
	}
}

// APIServer returns the URL of the API server of Kubernetes, "" outside a pod.
func APIServer() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return "https://" + net.JoinHostPort(host, port)
}
