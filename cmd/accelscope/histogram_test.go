// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/sensor"
)

// TestNativeHistogramOverTLS serves a fake source with a verb as the program serves the real ones: the fake node has no
// histogram.
func TestNativeHistogramOverTLS(t *testing.T) {
	config, client := secure(t)
	e := engine.New(engine.Options{})
	e.Add(engine.Registration{Source: verbs{}})
	e.Start()
	defer e.Close()
	handler := sensor.MetricsHandler(metrics.New(e, metrics.Options{}).Encode, zap.NewNop())
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		t.Fatal(err)
	}
	server := httpserver.New(handler, httpserver.NewClients(zap.NewNop()), zap.NewNop())
	served := make(chan error, 1)
	go func() {
		served <- web.Serve(l, server, &web.FlagConfig{WebConfigFile: &config}, slog.New(slog.DiscardHandler))
	}()
	families := negotiate(t, client, "https://"+l.Addr().String()+"/metrics")
	const name = "container_rdma_verbs_duration_seconds"
	if m := families[name].GetMetric(); len(m) == 0 || len(m[0].GetHistogram().GetPositiveSpan()) == 0 {
		t.Errorf("%s is no native histogram: %v", name, m)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

// verbs is a source of one verb, which has a histogram.
type verbs struct{}

func (verbs) Name() string { return "probe" }
func (verbs) Close() error { return nil }
func (verbs) Read(context.Context) (model.Snapshot, error) {
	v := model.Series[model.VerbKey, model.Histogram]{
		Cgroup: 1, Key: model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, Value: model.Histogram{Count: 1},
	}
	v.Value.Buckets[3] = 1
	return model.Snapshot{Objects: []model.Objects{}, Verbs: []model.Series[model.VerbKey, model.Histogram]{v}}, nil
}
