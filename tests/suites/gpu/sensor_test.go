// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

const limit = 20 * time.Second // for what the sensor should notice within two or three seconds

// sensor is a running accelscope.
type sensor struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	socket string
}

// start starts the sensor and waits until it is ready. Its log is printed if the test fails.
func start(t *testing.T, args ...string) *sensor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s := &sensor{t: t, url: "http://" + address, socket: filepath.Join(dir, "control.sock")}
	s.cmd = child.Command(context.Background(), os.Getenv("ACCELSCOPE_BINARY"),
		append([]string{"run", "--web.listen-address=" + address, "--gpu.control-socket=" + s.socket, "--state.dir=" + dir}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(os.Interrupt)
		if err := s.cmd.Wait(); err != nil {
			t.Errorf("the sensor's end: %v", err)
		}
		if text, err := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("log of the sensor: %v\n%s", err, text)
		}
	})
	eventually(t, func() error {
		_, err := s.get("/readyz")
		return err
	})
	return s
}

func (s *sensor) get(path string) (string, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, response.Status, body)
	}
	return string(body), err
}

// metrics is the text of a scrape.
type metrics string

// scrape reads /metrics after the next refresh and the next round of the GPUs' processes.
func (s *sensor) scrape() metrics {
	s.t.Helper()
	time.Sleep(2500 * time.Millisecond)
	text, err := s.get("/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	return metrics(text)
}

// all returns the series of a family with labels name="value", by their labels.
func (m metrics) all(name string, labels ...string) map[string]float64 {
	found := map[string]float64{}
next:
	for line := range strings.Lines(string(m)) {
		series, number, ok := strings.Cut(strings.TrimSpace(line), "} ")
		if !ok || !strings.HasPrefix(series, name+"{") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(series, "{"+l) && !strings.Contains(series, ","+l) {
				continue next
			}
		}
		if v, err := strconv.ParseFloat(number, 64); err == nil {
			found[series[len(name):]] = v
		}
	}
	return found
}

// sum adds up the series. A family without such series is an error.
func (m metrics) sum(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	found := m.all(name, labels...)
	if len(found) == 0 {
		t.Errorf("no series %s %v", name, labels)
	}
	return total(found)
}

func total(series map[string]float64) (sum float64) {
	for _, v := range series {
		sum += v
	}
	return sum
}

// eventually calls f until it returns nil.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(200 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// run returns what a command prints.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := child.Command(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
