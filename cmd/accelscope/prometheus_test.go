// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// prometheus is a running Prometheus of Debian.
type prometheus struct {
	url   string
	began time.Time
}

// startPrometheus starts a Prometheus that scrapes the nodes every second, and evaluates the recording rules every two seconds in place
// of every minute.
func startPrometheus(t *testing.T, nodes []*jobNode) *prometheus {
	t.Helper()
	dir := t.TempDir()
	rules, err := os.ReadFile("../../deploy/prometheus/rules/recording.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := "global: {scrape_interval: 1s, scrape_timeout: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n" +
		"- job_name: accelscope\n  honor_labels: true\n  static_configs:\n"
	for _, n := range nodes {
		config += fmt.Sprintf("  - {targets: ['%s'], labels: {instance: %s}}\n", strings.TrimPrefix(n.url, "http://"), n.instance)
	}
	for name, text := range map[string]string{
		"prometheus.yml": config, "rules.yaml": strings.ReplaceAll(string(rules), "interval: 1m\n", "interval: 2s\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	address := freeAddress(t)
	cmd := child.Command(t.Context(), "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var log lines
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install the Debian package prometheus (make deps)", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("Prometheus:\n%s", log.String())
		}
	})
	p := &prometheus{"http://" + address, time.Now()}
	eventuallyTrue(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(p.url + "/-/ready")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	return p
}

// ask runs a query at a time, or over the time before it.
func (p *prometheus) ask(t *testing.T, expr string, end time.Time, length time.Duration) (a dashboards.Answer) {
	t.Helper()
	epoch := func(at time.Time) string { return fmt.Sprintf("%.3f", float64(at.UnixMilli())/1000) }
	path, values := "query", url.Values{"query": {expr}, "time": {epoch(end)}}
	if length > 0 {
		path, values = "query_range", url.Values{"query": {expr}, "start": {epoch(end.Add(-length))}, "end": {epoch(end)}, "step": {"1"}}
	}
	resp, err := http.Get(p.url + "/api/v1/" + path + "?" + values.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	envelope := struct {
		Status, Error string
		Data          any
	}{Data: &a}
	if err := json.NewDecoder(resp.Body).Decode(&envelope); err != nil || envelope.Status != "success" {
		t.Fatalf("%s: %v %s", expr, err, envelope.Error)
	}
	return a
}

// eventuallyTrue waits for a condition.
func eventuallyTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in two minutes: %s", what)
		}
	}
}

// lines is the log of a process.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
