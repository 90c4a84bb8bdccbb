// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/fleet/matrix"
	"github.com/accelscope/accelscope/pkg/fleet/page"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/program"
)

// fleetRun serves the page of all nodes. It reads nothing of the node that it runs on.
func fleetRun(ctx context.Context, c *config.FleetCommand, log *zap.Logger) error {
	if err := httpserver.Check(c.ListenFlags); err != nil {
		return err
	}
	program.LimitMemory(log)
	routes, err := fleetRoutes(c)
	if err != nil {
		return err
	}
	return serve(ctx, c.ListenFlags, routes, log)
}

// serve serves routes until ctx ends.
func serve(ctx context.Context, f config.ListenFlags, routes map[string]http.Handler, log *zap.Logger) error {
	mux := http.NewServeMux()
	for pattern, handler := range routes {
		mux.Handle(pattern, handler)
	}
	server, err := httpserver.Start(f, mux, answers, httpserver.NewClients(log.Named("http")), log)
	if err != nil {
		return err
	}
	defer server.StopProbes()
	select {
	case err := <-server.Failed():
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
		log.Info("shutting down")
		server.Shutdown()
		return nil
	}
}

// answers reports that the page answers. Without Prometheus it shows why.
func answers() (ready bool, problems []string) { return true, nil }

// fleetRoutes returns the pages, /healthz and /readyz, by the patterns of http.ServeMux.
func fleetRoutes(c *config.FleetCommand) (map[string]http.Handler, error) {
	api, err := fleet.Connect(c.Prometheus, c.PrometheusFile)
	if err != nil {
		return nil, err
	}
	links := page.Links{Node: c.NodeURL, Grafana: c.GrafanaURL}
	if err := links.Check(); err != nil {
		return nil, err
	}
	o := page.Options{Reader: fleet.NewReader(api), Version: program.VersionOf(version).Number, Links: links}
	if o.Rights, err = rightsOf(c); err != nil {
		return nil, err
	}
	if o.Matrix, err = matrixOf(c); err != nil {
		return nil, err
	}
	routes := page.Handlers(o)
	maps.Copy(routes, httpserver.ProbeRoutes(answers))
	return routes, nil
}

// rightsOf returns who may see what. Links that need no rights have no use if everybody has all rights.
func rightsOf(c *config.FleetCommand) (page.Rights, error) {
	r := page.Rights{Header: c.NamespacesHeader, Lifetime: c.LinkLifetime}
	switch {
	case c.LinkKeyFile == "":
		return r, nil
	case r.Header == "":
		return r, errors.New("--fleet.link-key-file: needs --fleet.namespaces-header")
	case r.Lifetime <= 0:
		return r, errors.New("--fleet.link-lifetime: is not positive")
	}
	key, err := os.ReadFile(c.LinkKeyFile)
	if err != nil {
		return r, fmt.Errorf("--fleet.link-key-file: %w", err)
	}
	if r.Key = bytes.TrimSpace(key); len(r.Key) < page.MinKey {
		return r, fmt.Errorf("--fleet.link-key-file: %s has %d bytes, at least %d are needed", c.LinkKeyFile, len(r.Key), page.MinKey)
	}
	return r, nil
}

// matrixOf returns what asks the sensors of jobs for their peers, nil if none is to be asked.
func matrixOf(c *config.FleetCommand) (page.MatrixReader, error) {
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
