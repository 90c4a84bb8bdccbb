// SPDX-License-Identifier: Apache-2.0

// Command accelscope shows which container uses which RDMA HCA and which GPU,
// how hard, and how well that goes. It is the sensor, and the commands doctor,
// check and version. For all other commands it executes accelscope-tool.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/program"
	"github.com/accelscope/accelscope/pkg/sensor"
)

// version is set by the linker in a release: -X main.version=v1.2.3.
var version string

func main() { program.Main(run) }

// run runs the command in args. It returns when the command or ctx is done.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, command, err := config.Parse(config.Sensor, args, program.VersionOf(version).String(), stdout, stderr, os.Exit)
	if errors.Is(err, config.ErrOtherProgram) {
		return executeTool(args)
	}
	if err != nil {
		return err
	}
	program.Started()
	log, err := program.NewLogger(stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal refuses it
	switch command {
	case "doctor":
		return doctorRun(ctx, &c.Doctor, stdout, log)
	case "check config":
		o := options(c.Check.Config, log)
		if err := o.Check(); err != nil {
			return err
		}
		fmt.Fprintln(stdout, "the configuration is valid")
		return nil
	case "version":
		_, err := fmt.Fprintln(stdout, program.VersionOf(version))
		return err
	}
	return sensor.Run(ctx, options(c.Run, log))
}

// options returns the options of a sensor with these flags.
func options(flags config.RunCommand, log *zap.Logger) sensor.Options {
	return sensor.Options{
		RunCommand: flags, Version: program.VersionOf(version), Logger: log,
		Directory: program.RuntimeDirectory(), APIServer: program.APIServer(),
	}
}
