// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
		{"the kubelet's read-only port", "https://HOST:PORT", []string{"--kubelet.url=http://127.0.0.1:10255"}},
		{"a kubelet", "", []string{"--kubelet.url=https://10.0.0.1:10250"}},
		{
			"a token for anybody", "--kubelet.insecure-send-token",
			[]string{"--kubelet.url=https://10.0.0.1:10250", "--kubelet.insecure-skip-verify"},
		},
		{"no address of the node", "--node.ip", []string{"--node.ip=abc"}},
		{"addresses of the node", "--node.ip", []string{"--node.ip=10.0.0.1,fe80::1"}},
		{"an IPv6 address of the node", "", []string{"--node.ip=fe80::1"}},
		{"no port to listen on", "--web.listen-address", []string{"--web.listen-address=foo"}},
		{"a port above 65535", "--web.listen-address", []string{"--web.listen-address=:98470"}},
		{"an IP address with a part above 255", "--web.listen-address", []string{"--web.listen-address=10.0.0.300:9847"}},
		{"a URL in place of a host", "--web.listen-address", []string{"--web.listen-address=http://localhost:9847"}},
		{"the second address", "--web.listen-address=x", []string{"--web.listen-address=:9847", "--web.listen-address=x"}},
		{"an address twice", "another listener", []string{"--web.listen-address=:9847", "--web.listen-address=:9847"}},
		{
			"addresses", "",
			[]string{"--web.listen-address=[::1]:9847", "--web.listen-address=node-1.example:9847", "--web.listen-address=127.0.0.1:0"},
		},
		{"a port by its name", "", []string{"--web.listen-address=localhost:https"}},
		{"a socket of a guest", "", []string{"--web.listen-address=vsock://:9847"}},
		{"no port for probes", "--web.probe-address", []string{"--web.probe-address=localhost"}},
		{"one address for both", "another listener", []string{"--web.listen-address=:9847", "--web.probe-address=:9847"}},
		{"a negative grace", "--grace", []string{"--grace=-5m"}},
		{"no grace", "--grace", []string{"--grace=0s"}},
		{"a negative interval of GPUs", "--gpu.process-interval", []string{"--gpu.process-interval=-1s"}},
		{"a negative limit", "--probe.attach-limit", []string{"--probe.attach-limit=-100ms"}},
		{"negative mappings", "--probe.max-mappings", []string{"--probe.max-mappings=-1"}},
		{"negative entries", "--probe.map-entries", []string{"--probe.map-entries=-1"}},
		{"negative objects", "--probe.max-objects", []string{"--probe.max-objects=-1"}},
		{"no switch at a time", "--fabric.parallel", []string{"--fabric.parallel=0"}},
		{"a port of the fabric", "--fabric.port", []string{"--fabric.port=x"}},
		{"a long socket", "--gpu.control-socket", []string{"--gpu.control-socket=/" + strings.Repeat("x", 107)}},
		{"two labels of one name", "label_ops_managed", []string{"--workload.labels=ops-managed,ops_managed"}},
		{"a label twice", "", []string{"--workload.labels=team,team,ops_managed"}},
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

// TestRunChecks checks that the sensor does not start with a configuration that check refuses, and says the same.
func TestRunChecks(t *testing.T) {
	for _, flag := range []string{
		"--kubelet.url=http://127.0.0.1:10255", "--node.ip=abc", "--web.listen-address=foo", "--grace=-5m", "--fabric.port=x",
		"--workload.labels=a-b,a_b", "--events.otlp-endpoint=collector", "--web.telemetry-path=metrics", "--probe.attach-limit=-1s",
	} {
		var stdout, stderr bytes.Buffer
		checked := run(t.Context(), []string{"check", flag}, &stdout, &stderr)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		started := run(ctx, []string{flag, "--path.sysfs=" + t.TempDir()}, &stdout, &stderr)
		cancel()
		if checked == nil || started == nil || checked.Error() != started.Error() {
			t.Errorf("%s: check: %v, run: %v", flag, checked, started)
		}
	}
}
