// SPDX-License-Identifier: Apache-2.0

// Package httpserver serves HTTP for the sensor and for the page of all nodes: with TLS and authentication, with limits of what clients may
// hold, so that a flood fails neither probes nor the client that scrapes regularly, and with an address for probes alone.
package httpserver

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"

	"github.com/accelscope/accelscope/pkg/config"
)

// DrainTimeout limits how long the end waits for running scrapes.
const DrainTimeout = 2 * time.Second

// Limits of the HTTP server. Slow or many scrapers must not hold memory or
// goroutines without end.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = time.Minute
	idleTimeout       = 5 * time.Minute // longer than scrape intervals: connections are kept
	maxHeaderBytes    = 64 << 10
)

// Ready returns whether the first refresh is done, and the sources that are not ok.
type Ready func() (done bool, problems []string)

// Server is a running server.
type Server struct {
	server, probes *http.Server // probes is nil without an address of their own
	served         chan error
	log            *zap.Logger
}

// Start serves a handler, and probes at their address. The log of clients is theirs.
func Start(f config.ListenFlags, handler http.Handler, ready Ready, c *Clients, log *zap.Logger) (*Server, error) {
	probes, err := serveProbes(f.ProbeAddress, ready, log)
	if err != nil {
		return nil, err
	}
	s := &Server{server: New(handler, c, log), probes: probes, served: make(chan error, 1), log: log}
	go func() {
		flags := &web.FlagConfig{WebListenAddresses: &f.ListenAddress, WebConfigFile: &f.WebConfig}
		s.served <- web.ListenAndServe(s.server, flags, bridge(log))
	}()
	return s, nil
}

// Failed returns the channel of the error that ends the server.
func (s *Server) Failed() <-chan error { return s.served }

// Shutdown stops the server and waits for running scrapes, up to DrainTimeout.
func (s *Server) Shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), DrainTimeout)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil {
		s.log.Warn("aborting scrapes that are still running", zap.Error(err))
		_ = s.server.Close() // the rest ends with the process
	}
}

// StopProbes ends the answers to probes.
func (s *Server) StopProbes() {
	if s.probes != nil {
		_ = s.probes.Close()
	}
}

// New returns a server that admits the connections of clients.
func New(handler http.Handler, c *Clients, log *zap.Logger) *http.Server {
	server := newServer(handler, log)
	server.ConnState = c.ConnState
	return server
}

func newServer(handler http.Handler, log *zap.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          zap.NewStdLog(log.Named("http")),
	}
}

// serveProbes answers probes of the process at their own address, so that other clients do not delay them. Without an address it returns
// nil.
func serveProbes(address string, ready Ready, log *zap.Logger) (*http.Server, error) {
	if address == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--web.probe-address: %w", err)
	}
	// Connections are not limited by address, because all processes of the node have the same address; they end at once instead.
	server := newServer(newProbeHandler(ready), log)
	server.SetKeepAlivesEnabled(false)
	go func() { _ = server.Serve(l) }()
	return server, nil
}

// bridge returns a log/slog logger that writes to log, for libraries that need one.
func bridge(log *zap.Logger) *slog.Logger { return slog.New(zapslog.NewHandler(log.Core())) }
