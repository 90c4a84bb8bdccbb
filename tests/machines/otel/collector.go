// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Config configures a Collector.
type Config struct {
	Dir      string // of its configuration, output and log; the same for a restarted Collector
	Endpoint string // HOST:PORT to listen on
	// CertFile and KeyFile enable TLS, ClientCAFile requires client certificates of that CA.
	CertFile, KeyFile, ClientCAFile string
}

// Write writes the configuration file and returns its path. The Collector prints received data to standard output:
// otelcol --config file:PATH.
func (c Config) Write() (string, error) {
	type object = map[string]any
	grpc := object{"endpoint": c.Endpoint}
	if c.CertFile != "" {
		tls := object{"cert_file": c.CertFile, "key_file": c.KeyFile}
		if c.ClientCAFile != "" {
			tls["client_ca_file"] = c.ClientCAFile
		}
		grpc["tls"] = tls
	}
	text, err := json.MarshalIndent(object{ // JSON is valid YAML
		"receivers": object{"otlp": object{"protocols": object{"grpc": grpc}}},
		"exporters": object{"debug": object{
			"verbosity": "detailed", "use_internal_logger": false,
			"sampling_initial": 1 << 30, "sampling_thereafter": 1,
		}},
		"service": object{
			"telemetry": object{"metrics": object{"level": "none"}, "logs": object{"level": "info"}},
			"pipelines": object{"logs": object{"receivers": []string{"otlp"}, "exporters": []string{"debug"}}},
		},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Dir, "otelcol.yaml")
	return path, os.WriteFile(path, text, 0o644)
}

// Output returns the file to which Start appends the output of the Collector.
func (c Config) Output() string { return filepath.Join(c.Dir, "otelcol.out") }

// A Collector is a running OpenTelemetry Collector.
type Collector struct {
	config Config
	cmd    *exec.Cmd
	ended  chan struct{}
}

// serves is the log line of a Collector whose receivers listen. A connection is not enough: another process may have
// the port.
const serves = "Everything is ready."

// Start starts the Collector at path and returns when it listens. In a used directory it appends to the earlier
// records.
func Start(ctx context.Context, path string, config Config) (*Collector, error) {
	file, err := config.Write()
	if err != nil {
		return nil, err
	}
	out, err := appendTo(config.Output())
	if err != nil {
		return nil, err
	}
	defer out.Close()
	log, err := appendTo(filepath.Join(config.Dir, "otelcol.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	before, err := log.Stat() // the log of earlier starts
	if err != nil {
		return nil, err
	}
	c := &Collector{config: config, ended: make(chan struct{})}
	c.cmd = child.Command(context.Background(), path, "--config", "file:"+file)
	c.cmd.Stdout, c.cmd.Stderr = out, log
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.ended)
	}()
	said := func() []byte {
		text, _ := os.ReadFile(log.Name())
		return text[min(int(before.Size()), len(text)):]
	}
	for !bytes.Contains(said(), []byte(serves)) {
		select {
		case <-c.ended:
			return nil, fmt.Errorf("the Collector ended: %s", said())
		case <-ctx.Done():
			c.Kill()
			return nil, fmt.Errorf("the Collector does not listen: %w: %s", ctx.Err(), said())
		case <-time.After(20 * time.Millisecond):
		}
	}
	return c, nil
}

func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// Records returns all received records in order, including earlier starts.
func (c *Collector) Records() ([]Record, error) {
	f, err := os.Open(c.config.Output())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Parse(f)
}

// Kill ends the Collector with SIGKILL.
func (c *Collector) Kill() {
	_ = c.cmd.Process.Kill()
	<-c.ended
}

// Pause stops the Collector without closing its connections.
func (c *Collector) Pause() error { return c.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused Collector.
func (c *Collector) Resume() error { return c.cmd.Process.Signal(syscall.SIGCONT) }

// Stop ends the Collector with SIGTERM.
func (c *Collector) Stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.ended:
	case <-time.After(5 * time.Second):
		c.Kill()
	}
}
