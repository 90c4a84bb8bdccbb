// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// inside runs the demo in the guest: containerd, two pods, simulated GPUs, the sensor.
func inside(ctx context.Context, o options) error {
	fmt.Println("demo: starting containerd")
	c, err := guest.StartContainerd(ctx)
	if err != nil {
		return err
	}
	return errors.Join(pods(ctx, o, c), c.Stop())
}

func pods(ctx context.Context, o options, c *guest.Containerd) error {
	dir, err := os.MkdirTemp("", "gpus-")
	if err != nil {
		return err
	}
	g, err := newGPUs(dir)
	if err != nil {
		return err
	}
	fmt.Println("demo: starting two containers, of pods default/train-0 and default/train-1, with RDMA traffic")
	server, client := guest.Traffic()
	var pids []int
	for n, container := range []guest.Container{server, client} {
		container.Devices = append([]string{gpuNode(n)}, container.Devices...)
		pid, err := c.Run(ctx, container)
		if err != nil {
			return err
		}
		pids = append(pids, pid)
	}
	fmt.Println("demo: starting accelscope; the GPUs of the containers are SIMULATED by a fake of NVIDIA's library")
	log, err := os.Create(o.log)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := child.Command(ctx, o.binary, append([]string{"--gpu.nvml-library=" + o.library}, o.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	ctx, cancel := context.WithCancel(ctx)
	go obey(ctx, os.Stdin)
	used := make(chan error, 1)
	go func() { used <- g.use(ctx, pids) }()
	err = cmd.Run()
	cancel()
	return errors.Join(err, <-used)
}

// obey takes the network interface of rxe0 down or up, as lines of the test of the pages request, and prints that it has.
func obey(ctx context.Context, in io.Reader) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		state := lines.Text()
		if state != "down" && state != "up" {
			continue
		}
		if out, err := child.Command(ctx, "ip", "link", "set", "v0", state).CombinedOutput(); err != nil {
			fmt.Printf("demo: %v: %s\n", err, out)
			continue
		}
		fmt.Println("demo: the link is " + state)
	}
}
