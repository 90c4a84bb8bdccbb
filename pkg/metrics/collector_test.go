// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// collector is an engine with its exporter.
type collector struct {
	*engine.Engine
	*Exporter
}

// setup has the parts of a collector.
type setup struct {
	Sources           []engine.Registration
	Reuse             time.Duration
	Logger            *zap.Logger
	Compat            []string
	Node              string
	Labels            []string
	Version, Revision string
}

func newCollector(s setup) collector {
	e := engine.New(engine.Options{Reuse: s.Reuse, Logger: s.Logger})
	for _, r := range s.Sources {
		e.Add(r)
	}
	e.Start()
	x := New(e, Options{Compat: s.Compat, Node: s.Node, Labels: s.Labels, Version: s.Version, Revision: s.Revision})
	x.view.build[2] = "go1" // independent of the Go version of the test
	return collector{e, x}
}

// states refreshes and returns the states of the sources.
func (c collector) states() []model.SourceState { return c.Refresh().States }
