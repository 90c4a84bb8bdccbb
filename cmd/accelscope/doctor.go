package main

import (
	"context"
	"go.uber.org/zap"
	"io"
)

type doctorCmd struct{ sensorFlags }

func (c *doctorCmd) run(ctx context.Context, stdout io.Writer, log *zap.Logger) error { return nil }
