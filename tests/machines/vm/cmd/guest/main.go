// SPDX-License-Identifier: Apache-2.0

// Command guest runs a command in a guest with a live RDMA stack and exits with its status.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
)

func main() {
	opts := vm.Options{Stdin: os.Stdin, Stdout: os.Stdout}
	flag.StringVar(&opts.Kernel, "kernel", "6.1", "5.10, 6.1, 6.12 or 7")
	flag.StringVar(&opts.Share, "share", "", "directory that the guest can write (default: a temporary one)")
	flag.StringVar(&opts.Cgroup, "cgroup", vm.CgroupV2, "v2, v1 or hybrid")
	flag.IntVar(&opts.Devices, "devices", 2, "number of rxe devices")
	flag.BoolVar(&opts.Systemd, "systemd", false, "make systemd the first process")
	flag.StringVar(&opts.Preempt, "preempt", "", "none, voluntary or full (default: the kernel's)")
	flag.IntVar(&opts.Forward, "forward", 0, "port on 127.0.0.1 that leads to port 9847 of the guest")
	flag.DurationVar(&opts.Timeout, "timeout", 5*time.Minute, "time limit")
	flag.Func("env", "NAME=VALUE for the command (repeatable)", func(s string) error {
		opts.Env = append(opts.Env, s)
		return nil
	})
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: guest [flags] COMMAND [ARGUMENT]...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if opts.Command = flag.Args(); len(opts.Command) == 0 {
		opts.Command = []string{"bash", "-i"}
	}
	os.Exit(run(opts))
}

func run(opts vm.Options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	temporary := false
	if opts.Share == "" {
		dir, err := os.MkdirTemp("", "guest-")
		if err != nil {
			fmt.Fprintln(os.Stderr, "guest:", err)
			return 125
		}
		opts.Share = dir
		temporary = true
	}
	res, err := vm.Run(ctx, opts)
	if err != nil { // the share is kept, because it contains the kernel log
		fmt.Fprintln(os.Stderr, "guest:", err)
		return 125
	}
	if temporary {
		os.RemoveAll(opts.Share)
	}
	return res.Status
}
