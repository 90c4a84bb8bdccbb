// SPDX-License-Identifier: Apache-2.0

// Command demo shows accelscope without hardware. In a guest with Soft-RoCE, two containers of two pods exchange RDMA
// traffic, and each uses a GPU that the fake of NVIDIA's library simulates. accelscope runs in the same guest, with its
// port forwarded to this machine: its page is there, and `accelscope top` shows the use by each container. The demo
// ends at SIGINT, SIGTERM, or DEMO_SECONDS after the first table. Arguments after the flags are passed to accelscope.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

type options struct {
	kernel string
	binary string
	port   int
	log    string // file in the guest for accelscope's output
	// library is the fake of NVIDIA's library, in the guest.
	library string
	last    time.Duration // how long to show tables; 0: until a signal
	args    []string
}

func main() {
	var o options
	flag.StringVar(&o.kernel, "kernel", "6.1", "5.10, 6.1, 6.12 or 7")
	flag.IntVar(&o.port, "port", 9847, "port on 127.0.0.1")
	flag.StringVar(&o.binary, "accelscope", "bin/accelscope", "the program to show")
	flag.StringVar(&o.log, "inside", "", "this is the guest, log to that file (for its own use)")
	flag.StringVar(&o.library, "nvml", "", "the fake of NVIDIA's library (for its own use)")
	flag.Parse()
	o.args = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.log != "" {
		return inside(ctx, o)
	}
	if s := os.Getenv("DEMO_SECONDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n <= 0 {
			return fmt.Errorf("DEMO_SECONDS=%s: want a number of seconds", s)
		}
		o.last = time.Duration(n) * time.Second
	}
	var err error
	if o.binary, err = filepath.Abs(o.binary); err != nil {
		return err
	}
	if _, err := os.Stat(o.binary); err != nil {
		return fmt.Errorf("%w: build it first", err)
	}
	return outside(ctx, o)
}
