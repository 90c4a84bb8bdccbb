// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/program"
	"github.com/accelscope/accelscope/pkg/taint"
	"github.com/accelscope/accelscope/pkg/taint/cluster"
)

// maxGap is the time between two observations above which nothing is known of the time between them.
const maxGap = 2 * time.Minute

// taintRun marks sick nodes and devices of a Kubernetes cluster. It reads nothing of the node that it runs on.
func taintRun(ctx context.Context, c *config.TaintCommand, log *zap.Logger) error {
	if err := httpserver.Check(c.ListenFlags); err != nil {
		return err
	}
	program.LimitMemory(log)
	prometheus, err := fleet.Connect(c.Prometheus, c.PrometheusFile)
	if err != nil {
		return err
	}
	o := taint.Options{
		Prometheus: fleet.NewReader(prometheus), Interval: c.Interval, Effect: c.Effect, DryRun: c.DryRun, Log: log.Named("taint"),
		Limits: taint.Limits{Set: c.SetAfter, Clear: c.ClearAfter, Gap: maxGap, MaxNodes: c.MaxNodes},
	}
	if err := o.Check(); err != nil {
		return err
	}
	o.Cluster, err = cluster.New(cluster.Options{URL: cmp.Or(c.URL, program.APIServer()), TokenFile: c.TokenFile, CAFile: c.CAFile})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		taint.NewLoop(o).Run(ctx)
	}()
	err = serve(ctx, c.ListenFlags, httpserver.ProbeRoutes(answers), log)
	cancel()
	<-ended
	return err
}
