// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/accelscope/accelscope/tests/child"
	"github.com/accelscope/accelscope/tests/vm/guest"
)

// inside runs the demo in the guest: containerd, two pods, the sensor.
func inside(ctx context.Context, o options) error {
	fmt.Println("demo: starting containerd")
	c, err := guest.StartContainerd(ctx)
	if err != nil {
		return err
	}
	fmt.Println("demo: starting two containers, of pods default/train-0 and default/train-1, with RDMA traffic")
	if _, _, err := c.RunTraffic(ctx); err != nil {
		return errors.Join(err, c.Stop())
	}
	fmt.Println("demo: starting accelscope")
	log, err := os.Create(o.log)
	if err != nil {
		return errors.Join(err, c.Stop())
	}
	defer log.Close()
	cmd := child.Command(ctx, o.binary, o.args...)
	cmd.Stdout, cmd.Stderr = log, log
	return errors.Join(cmd.Run(), c.Stop())
}
