// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/control"
	"github.com/accelscope/accelscope/pkg/doctor"
	"github.com/accelscope/accelscope/pkg/program"
	"github.com/accelscope/accelscope/pkg/sensor"
)

// errCannotRun is the verdict "no" of doctor, which has printed the reason.
var errCannotRun = fmt.Errorf("the use of HCAs cannot be counted by workload: %w", program.ErrReported)

// doctorRun makes and reads all sources once, as the sensor would, and prints their states. It detaches what it attached.
func doctorRun(ctx context.Context, c *config.DoctorCommand, stdout io.Writer, log *zap.Logger) error {
	if c.Health {
		return checkHealth(ctx, &c.ListenFlags)
	}
	o := options(config.RunCommand{SensorFlags: c.SensorFlags}, zap.NewNop())
	o.Strict = false // the report shows what does not work
	if o.QPCounters == "manage" {
		o.QPCounters = "use" // doctor changes nothing on the node
	}
	o.Released, o.ReadOnly = control.Released(ctx, c.Socket), true
	s, err := sensor.New(o)
	if err != nil {
		return err
	}
	defer s.CloseInTime(log)
	s.AwaitRuntimes(ctx)
	r := doctor.Examine(ctx, o.SensorFlags, s.Engine())
	if o.NodeLabels {
		r.AddNodeLabels(ctx, o.OwnNode())
	}
	r.AddCgroups(s.Cgroups())
	if err := r.Write(stdout, c.JSON); err != nil {
		return err
	}
	if r.CannotRun() {
		return errCannotRun
	}
	return nil
}
