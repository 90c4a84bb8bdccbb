// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// sensor is a running accelscope.
type sensor struct {
	t    *testing.T
	cmd  *exec.Cmd
	url  string
	log  *lockedBuffer
	last map[string]float64 // last value of every counter series, by its text
	// reborn is a label of a workload that is started again in a new cgroup, whose counters start at zero.
	reborn string
	// ports has the last counters of the ports, before has the counters of ports before a driver reload; by device
	// and direction.
	ports, before map[[2]string]float64

	largest int // largest number of bytes of text in a scrape
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func start(t *testing.T, args ...string) *sensor {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	s := &sensor{
		t: t, url: "http://" + address, log: &lockedBuffer{}, last: map[string]float64{},
		ports: map[[2]string]float64{}, before: map[[2]string]float64{},
	}
	s.cmd = child.Command(context.Background(), os.Getenv(binaryVar), append([]string{"--web.listen-address=" + address}, args...)...)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("log of the sensor:\n%s", s.log)
		}
	})
	eventually(t, time.Minute, func() error {
		res, err := http.Get(s.url + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(res.Body)
			return fmt.Errorf("/readyz: %s: %s", res.Status, text)
		}
		return nil
	})
	return s
}

// stop ends the sensor with SIGTERM, like systemd, and expects exit status 0.
func (s *sensor) stop() {
	s.t.Helper()
	begin := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("SIGTERM: %v", err)
	}
	s.t.Logf("SIGTERM: gone after %v", time.Since(begin).Round(time.Millisecond))
}

func (s *sensor) kill() {
	s.t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.cmd.Wait()
}

type metrics map[string]*dto.MetricFamily

// scrape reads /metrics and checks the invariants of every scrape.
func (s *sensor) scrape() metrics {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		// SIGQUIT makes the sensor log its goroutines.
		_ = s.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(2 * time.Second)
		s.t.Fatalf("scrape: %v\n%s", err, s.log)
	}
	defer res.Body.Close()
	// Parsing several hundred workloads takes longer on this emulated machine than scraping them.
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("reading a scrape: %v", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	m, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		s.t.Fatalf("scrape: %v", err)
	}
	s.largest = max(s.largest, len(text))
	s.conserved(m)
	s.monotonic(m)
	return m
}

// fresh scrapes values that were read after the call: the sensor reuses a read for one second.
func (s *sensor) fresh() metrics {
	s.t.Helper()
	time.Sleep(1100 * time.Millisecond)
	return s.scrape()
}

// conserved: the shares of every device add up to the device.
func (s *sensor) conserved(m metrics) {
	s.t.Helper()
	for _, total := range m["rdma_resources"].GetMetric() {
		device, kind := label(total, "device"), label(total, "type")
		shares := metrics(m).sum("container_rdma_resources", "device", device, "type", kind)
		if want := total.GetGauge().GetValue(); shares != want {
			s.t.Errorf("%s of %s: the shares add up to %v, the device has %v", kind, device, shares, want)
		}
	}
	for _, direction := range []string{"transmit", "receive"} {
		for device, port := range m.by("infiniband_port_"+direction+"_data_bytes_total", "device") {
			k := [2]string{device, direction}
			if port < s.ports[k] {
				s.before[k] += s.ports[k] // the driver was reloaded
			}
			s.ports[k] = port
			want := port + s.before[k]
			if shares := m.sum("container_rdma_"+direction+"_bytes_total", "device", device); shares != want {
				s.t.Errorf("%s of %s: the shares add up to %v bytes, the port has %v", direction, device, shares, want)
			}
		}
	}
}

// monotonic checks that no counter falls while its series exists.
func (s *sensor) monotonic(m metrics) {
	s.t.Helper()
	now := map[string]float64{}
	for name, family := range m {
		if family.GetType() == dto.MetricType_COUNTER {
			for _, x := range family.GetMetric() {
				now[series(name, x)] = x.GetCounter().GetValue()
			}
		}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			for _, x := range family.GetMetric() {
				h := x.GetHistogram()
				series := series(name, x)
				now[series+" count"] = float64(h.GetSampleCount())
				now[series+" sum"] = h.GetSampleSum()
				for _, b := range h.GetBucket() {
					now[fmt.Sprint(series, " ", b.GetUpperBound())] = float64(b.GetCumulativeCount())
				}
			}
		}
	}
	for series, value := range now {
		if s.reborn != "" && strings.Contains(series, s.reborn) && !strings.HasPrefix(series, "container_rdma_") {
			continue
		}
		if last, ok := s.last[series]; ok && value < last {
			s.t.Errorf("%s fell from %v to %v", series, last, value)
		}
	}
	s.last = now
}

// series is a name with its labels. Printing each series of each scrape as text is slow on an emulated CPU.
func series(name string, m *dto.Metric) string {
	text := []byte(name)
	for _, l := range m.GetLabel() {
		text = append(append(append(append(text, ' '), l.GetName()...), '='), l.GetValue()...)
	}
	return string(text)
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// match reports whether a series has all these labels, given as name, value, name, value.
func match(m *dto.Metric, labels []string) bool {
	for pair := range slices.Chunk(labels, 2) {
		if label(m, pair[0]) != pair[1] {
			return false
		}
	}
	return true
}

func (m metrics) all(name string, labels ...string) []*dto.Metric {
	var out []*dto.Metric
	for _, x := range m[name].GetMetric() {
		if match(x, labels) {
			out = append(out, x)
		}
	}
	return out
}

func (m metrics) sum(name string, labels ...string) float64 {
	var sum float64
	for _, x := range m.all(name, labels...) {
		sum += x.GetGauge().GetValue() + x.GetCounter().GetValue() + x.GetUntyped().GetValue()
	}
	return sum
}

// by sums the series of a family with these labels by another label.
func (m metrics) by(name, by string, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, x := range m.all(name, labels...) {
		out[label(x, by)] += x.GetGauge().GetValue() + x.GetCounter().GetValue()
	}
	return out
}

// checked reports whether the kernel checks its locks (node.debug), which makes everything several times slower.
var checked = sync.OnceValue(func() bool { _, err := os.Stat("/proc/lockdep"); return err == nil })

// longer returns the time limit on this kernel.
func longer(limit time.Duration) time.Duration {
	if checked() {
		return 5 * limit
	}
	return limit
}

func eventually(t *testing.T, limit time.Duration, f func() error) time.Duration {
	t.Helper()
	limit = longer(limit)
	begin := time.Now()
	for {
		err := f()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > limit {
			t.Fatalf("after %v: %v", limit, err)
		}
		time.Sleep(250 * time.Millisecond)
	}
}

func sh(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := child.Command(t.Context(), name, args...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}
