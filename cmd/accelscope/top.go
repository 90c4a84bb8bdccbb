// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"os"
	"time"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/top"
)

type topCmd struct {
	URL      string        `name:"url" default:"http://127.0.0.1:9847/metrics" help:"Sensor metrics, optionally http://USER:PASSWORD@HOST."`
	Interval time.Duration `name:"interval" default:"2s" help:"Time between scrapes, over which rates are computed."`
	Once     bool          `name:"once" help:"Print one table after two scrapes and exit."`
	Plain    bool          `name:"plain" help:"Print tables in sequence, as without a terminal."`
	Devices  bool          `name:"devices" help:"Show HCA ports and GPUs instead of workloads."`
	Sort     string        `name:"sort" default:"name" placeholder:"KEY" help:"Sort by column, the largest number first."`
	Filter   string        `name:"filter" placeholder:"TEXT" help:"Show only rows whose workload or device name contains this."`
	JSON     bool          `name:"json" help:"Print verdicts, workloads and devices as one JSON line per interval."`

	Prometheus string `name:"prometheus" placeholder:"URL" help:"Show all nodes from this Prometheus."`
	prometheusFlags
}

func (c *topCmd) run(ctx context.Context, stdout io.Writer) error {
	var nodes top.FleetReader
	if c.Prometheus != "" {
		api, err := fleet.Connect(c.Prometheus, c.PrometheusFile)
		if err != nil {
			return err
		}
		nodes = fleet.NewReader(api)
	}
	return top.Run(ctx, top.Options{
		Fleet: nodes,
		URL:   c.URL, Interval: c.Interval, Once: c.Once, Plain: c.Plain, Out: stdout,
		Devices: c.Devices, Sort: c.Sort, Filter: c.Filter, JSON: c.JSON, NoColor: os.Getenv("NO_COLOR") != "", // https://no-color.org
	})
}
