// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// outside boots the guest with this program in it, and shows tables of its sensor.
func outside(ctx context.Context, o options) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	share, err := os.MkdirTemp("", "demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(share)
	fmt.Printf("demo: kernel %s (a download, the first time)\n", o.kernel)
	if _, err := vm.FetchKernel(ctx, o.kernel); err != nil {
		return err
	}
	library, err := nvml.Build(ctx, filepath.Join(share, "nvml"), false)
	if err != nil {
		return err
	}
	fmt.Println("demo: booting the guest")

	log := filepath.Join(share, "accelscope.log")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		res, err := vm.Run(ctx, vm.Options{
			Kernel: o.kernel, Devices: 2, Share: share, Forward: o.port, Stdout: os.Stdout, Timeout: 24 * time.Hour,
			Command: append([]string{self, "-inside", log, "-nvml", library, "-accelscope", o.binary, "--"}, o.args...),
			Env:     []string{"NODE_NAME=demo-with-simulated-gpus"},
		})
		if err == nil {
			text, _ := os.ReadFile(log)
			err = fmt.Errorf("the guest ended, exit status %d\n%s", res.Status, text)
		}
		cancel()
		ended <- err
	}()

	page := fmt.Sprintf("http://127.0.0.1:%d/", o.port)
	err = waitFor(ctx, page+"metrics")
	if err == nil {
		fmt.Printf("demo: open %s in a browser to see who uses what; %smetrics has the metrics; Ctrl-C ends the demo\n\n", page, page)
		err = top(ctx, o, page+"metrics")
	}
	// A guest that ends by itself also ends the table, and its error is returned.
	alone := ctx.Err() != nil
	cancel()
	if guestErr := <-ended; alone {
		return guestErr
	}
	return err
}

// waitFor waits until the sensor exports the use of RDMA devices by containers.
func waitFor(ctx context.Context, url string) error {
	client := http.Client{Timeout: 10 * time.Second}
	for {
		if res, err := client.Get(url); err == nil {
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err == nil && bytes.Contains(text, []byte("\ncontainer_rdma_")) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// top runs `accelscope top` until ctx or the demo's time ends; its last table stays on the terminal.
func top(ctx context.Context, o options, url string) error {
	if o.last != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.last)
		defer cancel()
	}
	cmd := child.Command(ctx, o.binary, "top", "--url", url)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("accelscope top: %w", err)
	}
	return nil
}
