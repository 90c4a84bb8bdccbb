// SPDX-License-Identifier: Apache-2.0

// Command demo shows accelscope at work without hardware: in a guest with Soft-RoCE, two containers, each a pod's,
// exchange RDMA traffic, and accelscope, its port forwarded to this machine, tells which of them does what.
// Arguments after the flags go to accelscope. It ends at SIGINT or SIGTERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/vm"
	"github.com/accelscope/accelscope/tests/vm/guest"
)

func main() {
	kernel := flag.String("kernel", "6.1", "5.10, 6.1 or 6.12")
	port := flag.Int("port", 9847, "port on 127.0.0.1")
	binary := flag.String("accelscope", "bin/accelscope", "the program to show")
	timeout := flag.Duration("timeout", 24*time.Hour, "time limit")
	inside := flag.Bool("inside", false, "this is the guest (for its own use)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *inside {
		err = show(ctx, *binary, flag.Args())
	} else {
		err = host(ctx, *kernel, *binary, *port, *timeout, flag.Args())
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// host boots the guest, with this same program in it, and says where to look once accelscope answers.
func host(ctx context.Context, kernel, binary string, port int, timeout time.Duration, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%w: build it first", err)
	}
	share, err := os.MkdirTemp("", "demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(share)
	fmt.Printf("booting a guest with kernel %s ...\n", kernel)
	go announce(ctx, fmt.Sprintf("http://127.0.0.1:%d", port))
	res, err := vm.Run(ctx, vm.Options{
		Kernel: kernel, Devices: 2, Share: share, Forward: port, Stdout: os.Stdout, Timeout: timeout,
		Command: append([]string{self, "-inside", "-accelscope", binary, "--"}, args...),
		Env:     []string{"NODE_NAME=demo"},
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("accelscope ended in the guest, exit status %d", res.Status)
}

func announce(ctx context.Context, url string) {
	client := http.Client{Timeout: 5 * time.Second}
	for ctx.Err() == nil {
		if res, err := client.Get(url + "/metrics"); err == nil {
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				fmt.Printf("\n  %s/metrics\n\n  Ctrl-C ends the demo.\n\n", url)
				return
			}
		}
		time.Sleep(time.Second)
	}
}

// show is the demo as it runs in the guest.
func show(ctx context.Context, binary string, args []string) error {
	c, err := guest.StartContainerd(ctx)
	if err != nil {
		return err
	}
	if _, _, err := c.RunTraffic(ctx); err != nil {
		return errors.Join(err, c.Stop())
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return errors.Join(cmd.Run(), c.Stop())
}
