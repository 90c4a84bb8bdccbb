// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

type collector struct {
	*engine.Engine
	*Exporter
}

type setup struct {
	Sources           []engine.Registration
	Reuse             time.Duration
	Logger            *zap.Logger
	Compat            []string
	Node              string
	Labels            []string
	GPUDetail         bool
	AllStates         bool
	Scope             Scope
	Excludes          func(string) bool
	Forms             Forms
	ExcludesInterface func(string) bool
	Version, Revision string
}

func newCollector(s setup) collector {
	e := engine.New(engine.Options{Reuse: s.Reuse, Logger: s.Logger})
	for _, r := range s.Sources {
		e.Add(r)
	}
	e.Start()
	x := New(e, Options{
		Compat: s.Compat, Node: s.Node, Labels: s.Labels, GPUDetail: s.GPUDetail, AllStates: s.AllStates, Scope: s.Scope, Excludes: s.Excludes, Histograms: s.Forms,
		ExcludesInterface: s.ExcludesInterface,
		Version:           s.Version, Revision: s.Revision,
	})
	x.view.build[2] = "go1" // independent of the Go version of the test
	return collector{e, x}
}

func (c collector) now(t testing.TB) []exposition.Family {
	t.Helper()
	page, err := c.current()
	if err != nil {
		t.Fatal(err)
	}
	return page.Families
}

// unnamed panics from the second call of Name on.
type unnamed struct{ asked int }

func (s *unnamed) Name() string {
	if s.asked++; s.asked > 1 {
		panic("boom")
	}
	return "unnamed"
}
func (s *unnamed) Close() error                                 { return nil }
func (s *unnamed) Read(context.Context) (model.Snapshot, error) { return model.Snapshot{}, nil }

// A refresh that panics has an error instead of metrics.
func TestRefreshPanics(t *testing.T) {
	c := newCollector(setup{Sources: []engine.Registration{{Source: &unnamed{}}}})
	if text, err := c.Encode(expfmt.NewFormat(expfmt.TypeTextPlain), false); err == nil || len(text) > 0 {
		t.Errorf("%q %v", text, err)
	}
	registry := prometheus.NewRegistry()
	if err := registry.Register(c); err == nil {
		if _, err := registry.Gather(); err == nil {
			t.Error("a registry gathers it without an error")
		}
	}
}

func (c collector) states() []model.SourceState { return c.Refresh().States }
