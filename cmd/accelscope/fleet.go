// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/pages"
)

// prometheusFlags configure the connection to a Prometheus. fleet and top share them.
type prometheusFlags struct {
	PrometheusFile string `name:"prometheus.config.file" placeholder:"FILE" help:"HTTP client (credentials, TLS, headers) as for promtool."`
}

// fleetCmd serves the page of all nodes. It reads nothing of the node that it runs on.
type fleetCmd struct {
	Prometheus string `name:"prometheus" required:"" placeholder:"URL" help:"Prometheus with accelscope's series and rules."`
	prometheusFlags
	NodeURL    string `name:"fleet.node-url" placeholder:"URL" help:"Node page, such as http://{instance}/. Default: no links."`
	GrafanaURL string `name:"fleet.grafana-url" placeholder:"URL" help:"Grafana with accelscope's dashboards. Default: no links."`
	SensorURL  string `name:"fleet.sensor-url" placeholder:"URL" help:"Node sensor to ask for peers, such as http://{instance}/."`
	SensorFile string `name:"fleet.sensor.config.file" placeholder:"FILE" help:"HTTP client for sensors (credentials, TLS, headers)."`
	listenFlags
}

func (c *fleetCmd) run(ctx context.Context, log *zap.Logger) error {
	if err := c.validate(); err != nil {
		return err
	}
	limitMemory(log)
	routes, err := c.routes()
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	for pattern, handler := range routes {
		mux.Handle(pattern, handler)
	}
	stopProbes, err := c.serveProbes(answers, log)
	if err != nil {
		return err
	}
	defer stopProbes()
	server := newServer(mux, log)
	server.ConnState = newClients(log.Named("http")).connState
	served := make(chan error, 1)
	go func() {
		flags := &web.FlagConfig{WebListenAddresses: &c.ListenAddress, WebConfigFile: &c.WebConfig}
		served <- web.ListenAndServe(server, flags, bridge(log))
	}()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		log.Info("shutting down")
		shutdown(server, log)
		return nil
	}
}

// answers reports that the page answers. Without Prometheus it shows why.
func answers() (ready bool, problems []string) { return true, nil }

// routes returns the pages, /healthz and /readyz, by the patterns of http.ServeMux.
func (c *fleetCmd) routes() (map[string]http.Handler, error) {
	api, err := fleet.Connect(c.Prometheus, c.PrometheusFile)
	if err != nil {
		return nil, err
	}
	links := pages.Links{Node: c.NodeURL, Grafana: c.GrafanaURL}
	if err := links.Check(); err != nil {
		return nil, err
	}
	version, _ := buildVersion()
	o := pages.FleetOptions{Reader: fleet.NewReader(api), Version: version, Links: links}
	if o.Matrix, err = c.matrix(); err != nil {
		return nil, err
	}
	routes := pages.FleetHandlers(o)
	maps.Copy(routes, probeRoutes(answers))
	return routes, nil
}

// matrix returns what asks the sensors of jobs for their peers, nil if none is to be asked.
func (c *fleetCmd) matrix() (pages.MatrixReader, error) {
	switch {
	case c.SensorURL == "" && c.SensorFile != "":
		return nil, errors.New("--fleet.sensor.config.file: needs --fleet.sensor-url")
	case c.SensorURL == "":
		return nil, nil
	}
	r, err := matrix.NewReader(c.SensorURL, c.SensorFile)
	if err != nil {
		return nil, fmt.Errorf("--fleet.sensor-url: %w", err)
	}
	return r, nil
}
