// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestDoctorWaits: a runtime that takes longer for its first answer than a scrape waits has its answer in the report.
func TestDoctorWaits(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(2 * time.Second)
		http.Error(w, `{"message":"the engine is sick"}`, http.StatusInternalServerError)
	})}
	t.Cleanup(func() { _ = s.Close() })
	go func() { _ = s.Serve(l) }()
	empty := t.TempDir()
	var out bytes.Buffer
	err = run(t.Context(), []string{
		"doctor", "--runtime.socket=docker:" + socket, "--path.host=/", "--path.sysfs=" + empty, "--no-collector.probe", "--no-collector.access",
		"--no-collector.rdma",
	}, &out, &out)
	if text := out.String(); !strings.Contains(text, "the engine is sick") || strings.Contains(text, "has not answered yet") {
		t.Error(text, err)
	}
}
