// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/top"
)

// topRun shows the users of devices, or all nodes.
func topRun(ctx context.Context, c *config.TopCommand, stdout io.Writer) error {
	var nodes top.FleetReader
	if c.Prometheus != "" {
		api, err := fleet.Connect(c.Prometheus, c.PrometheusFile)
		if err != nil {
			return err
		}
		nodes = fleet.NewReader(api)
	}
	return top.Run(ctx, top.Options{
		Fleet: nodes, Job: c.Job,
		URL: c.URL, Interval: c.Interval, Once: c.Once, Plain: c.Plain, Out: stdout,
		Devices: c.Devices, Sort: c.Sort, Filter: c.Filter, JSON: c.JSON, NoColor: os.Getenv("NO_COLOR") != "", // https://no-color.org
	})
}
