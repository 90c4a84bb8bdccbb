// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/format"
)

func inventoryAccept(ctx context.Context, c *config.AcceptCommand, stdout io.Writer) error {
	accepted, err := control.Accept(ctx, c.Socket, c.Devices)
	if err != nil {
		return err
	}
	for _, text := range accepted {
		fmt.Fprintln(stdout, "accepted:", format.Line(text))
	}
	if len(accepted) == 0 {
		if len(c.Devices) > 0 {
			return fmt.Errorf("nothing is missing of %s", strings.Join(c.Devices, ", "))
		}
		fmt.Fprintln(stdout, "nothing is missing")
	}
	return nil
}
