// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		name, refused string // refused is part of the error; empty: it is valid
		args          []string
	}{
		{"nothing", "", nil},
		{"a file", "", []string{"--config.file=" + file("good.yaml", "grace: 1m\nrdma.datapath-select: ns/.*\n")}},
		{"an unknown key", `unknown key "gracee"`, []string{"--config.file=" + file("key.yaml", "gracee: 1m\n")}},
		{"a value", "grace", []string{"--config.file=" + file("value.yaml", "grace: long\n")}},
		{"an expression", "--rdma.datapath-select", []string{"--rdma.datapath-select=("}},
		{"an include", "--collector.rdma.device-include", []string{"--collector.rdma.device-include=("}},
		{"a socket", "--runtime.socket", []string{"--runtime.socket=rkt:/run/rkt"}},
		{"no variable", "--workload.env=RANK=1", []string{"--workload.env=RANK=1"}},
		{"too many variables", "--workload.env", []string{"--workload.env=A,B,C,D,E,F,G,H,I"}},
		{"no time", "--rdma.stall-after", []string{"--rdma.stall-after=0s"}},
		{"no time for ioctls", "--gpu.stuck-after", []string{"--gpu.stuck-after=0s"}},
		{"no interval", "--fabric.interval", []string{"--fabric.interval=0s"}},
		{"a negative interval", "--kubelet.interval", []string{"--kubelet.interval=-1m"}},
		{"a path", "--web.telemetry-path", []string{"--web.telemetry-path=metrics"}},
		{"the web file", "--web.config.file", []string{"--web.config.file=" + file("web.yaml", "tls: {}\n")}},
		{"a web file that is empty", "", []string{"--web.config.file=" + file("empty.yaml", "# nothing\n")}},
		{"a certificate", "no-such", []string{"--web.config.file=" +
			file("tls.yaml", "tls_server_config: {cert_file: no-such.crt, key_file: no-such.key}\n")}},
		{"events", "", []string{"--events.otlp-endpoint=collector:4317"}},
		{"an endpoint", "HOST:PORT", []string{"--events.otlp-endpoint=collector"}},
		{"a queue", "a queue of 0 events", []string{"--events.otlp-endpoint=collector:4317", "--events.queue-size=0"}},
		{"an authority", "no-such", []string{"--events.otlp-endpoint=collector:4317", "--events.otlp-ca-file=/no-such"}},
		{"events without runtimes", "--collector.runtime", []string{"--events.otlp-endpoint=collector:4317", "--no-collector.runtime"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), append([]string{"check"}, tt.args...), &stdout, &stderr)
			switch {
			case tt.refused == "" && (err != nil || stdout.String() != "the configuration is valid\n"):
				t.Errorf("%v, %q; want that it is valid", err, &stdout)
			case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
				t.Errorf("%v; want an error with %q", err, tt.refused)
			}
		})
	}
}
