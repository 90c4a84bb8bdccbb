// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	scale  = "../../../deploy/prometheus/scale/agent.yml"
	agents = 4 // in agent.yml
	// waitLimit is for a busy machine.
	waitLimit = 5 * time.Minute
)

// TestAgents: four Prometheus agents with the shipped configuration share eight sensors, and send the series that the
// rules read to a Prometheus, which evaluates the rules.
func TestAgents(t *testing.T) {
	scrape, err := os.ReadFile("../../../pkg/metrics/testdata/node.prom")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for range 2 * agents {
		sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = w.Write(scrape)
		}))
		t.Cleanup(sensor.Close)
		targets = append(targets, strings.TrimPrefix(sensor.URL, "http://"))
	}
	receiver := startReceiver(t)
	text, err := os.ReadFile(scale)
	if err != nil {
		t.Fatal(err)
	}
	scraped := 0
	for shard := range agents {
		scraped += len(startAgent(t, string(text), shard, receiver.url, targets))
	}
	if scraped != len(targets) {
		t.Errorf("the agents scrape %d targets, want %d", scraped, len(targets))
	}

	want := wantNames(string(text), string(scrape))
	var got []string
	for end := time.Now().Add(waitLimit); ; time.Sleep(time.Second) {
		up, err := receiver.query(t.Context(), `sum by (cluster) (up)`, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		recorded, err := receiver.query(t.Context(), `count({__name__=~".+:.+"})`, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		got = names(t, receiver)
		if len(up.Series) == 1 && up.Series[0].Labels["cluster"] == "gpus" && up.Series[0].Value.Value == float64(len(targets)) &&
			len(recorded.Series) == 1 && slices.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("up: %+v, series of rules: %+v\nnames %v\nwant %v", up.Series, recorded.Series, got, want)
		}
	}
}

// wantNames are the names that the filter keeps from a scrape, and Prometheus's own.
func wantNames(config, scrape string) []string {
	_, list, _ := strings.Cut(config, `[__name__]`)
	list, _, _ = strings.Cut(list, "action: keep")
	kept := map[string]bool{}
	for _, name := range regexp.MustCompile(`\w+`).FindAllString(strings.TrimPrefix(strings.TrimSpace(list), "regex:"), -1) {
		kept[name] = true
	}
	want := map[string]bool{"up": true, "scrape_duration_seconds": true, "scrape_samples_scraped": true}
	for line := range strings.Lines(scrape) {
		// The filter also drops the state ok of devices, the only state of a healthy node.
		name := regexp.MustCompile(`^\w+`).FindString(line)
		dropped := name == "accelscope_device_state" && strings.Contains(line, `state="ok"`)
		if kept[name] && !dropped {
			want[name] = true
		}
	}
	return slices.Sorted(maps.Keys(want))
}

// names returns the names of the series that agents have sent.
func names(t *testing.T, receiver api) []string {
	t.Helper()
	answer, err := receiver.query(t.Context(), `count by (__name__) ({job="accelscope",__name__!~".*:.*|ALERTS.*"})`, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, s := range answer.Series {
		found[s.Labels["__name__"]] = true
	}
	return slices.Sorted(maps.Keys(found))
}

// startReceiver starts a Prometheus that evaluates the rules every second.
func startReceiver(t *testing.T) api {
	t.Helper()
	dir := t.TempDir()
	rules, err := os.ReadFile("../../../deploy/prometheus/rules/recording.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "recording.yaml"), strings.ReplaceAll(string(rules), "interval: 1m", "interval: 1s"))
	config := filepath.Join(dir, "prometheus.yaml")
	write(t, config, "rule_files: [recording.yaml]\n")
	p, err := startPrometheus(t.Context(), free(t), config, filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return p.api
}

// startAgent starts an agent with the configuration's placeholders replaced, and returns its targets.
func startAgent(t *testing.T, config string, shard int, receiver string, targets []string) (active []struct{}) {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "targets"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "targets/sensors.yaml"), fmt.Sprintf("- targets: [%s]\n", strings.Join(targets, ", ")))
	for old, changed := range map[string]string{
		`regex: "0"`:                    fmt.Sprintf(`regex: "%d"`, shard),
		"http://mimir:9009/api/v1/push": receiver + "/api/v1/write",
		"scrape_interval: 30s":          "scrape_interval: 1s",
	} {
		if strings.Count(config, old) != 1 {
			t.Fatalf("%s is not once in the configuration", old)
		}
		config = strings.Replace(config, old, changed, 1)
	}
	file, address := filepath.Join(dir, "agent.yml"), free(t)
	write(t, file, config)
	agent, err := startService(t.Context(), file+".log", address, "prometheus", "--enable-feature=agent", "--config.file="+file,
		"--storage.agent.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		agent.stop()
		if text, err := os.ReadFile(file + ".log"); t.Failed() {
			t.Logf("agent %d: %v\n%s", shard, err, text)
		}
	})
	for end := time.Now().Add(waitLimit); ; time.Sleep(100 * time.Millisecond) {
		var data struct{ ActiveTargets, DroppedTargets []struct{} }
		err := agent.get(t.Context(), "targets", nil, &data)
		if err == nil && len(data.ActiveTargets)+len(data.DroppedTargets) == len(targets) {
			return data.ActiveTargets
		}
		if time.Now().After(end) {
			t.Fatalf("agent %d: %v, %+v", shard, err, data)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// free returns a free address.
func free(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
