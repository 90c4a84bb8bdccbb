// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/accelscope/accelscope/pkg/format"
)

// maxExposition bounds the size of an answer.
const maxExposition = 64 << 20

// A key is one row: a workload on one HCA. The zero owner is unattributed.
type key struct {
	workload, containerID, device string
}

// A series is one counter of a row: its name and its other labels.
type series struct {
	key
	labels string // verb, or method
}

// A sample is the result of one scrape, summed by row where possible: counters are kept apart
// until their growth is known.
type sample struct {
	at         time.Time
	objects    map[key]map[string]float64 // type → number
	registered map[key]float64            // bytes
	errors     map[key]float64
	verbs      map[series]float64
	durations  map[series]histogram
	// transmitted and received are bytes, by method.
	transmitted map[series]float64
	received    map[series]float64
	gaps        map[key][]string // why bytes are missing; empty if all are counted

	gpus     gpuUse
	stalled  stalled
	devices  deviceSet
	verdicts verdicts
}

// A histogram is a classic one: cumulative counts by upper bound.
type histogram map[float64]float64

// scrape reads the metrics at a URL once, and what the sensor adds to them.
func scrape(ctx context.Context, client *http.Client, metrics string) (*sample, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, metrics, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	resp, err := client.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w: no sensor runs there; --url names another", err)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", req.URL.Redacted(), resp.Status)
	}
	s, err := parse(io.LimitReader(resp.Body, maxExposition))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.URL.Redacted(), err)
	}
	s.at = time.Now()
	s.stalled.readPeers(ctx, client, metrics)
	s.verdicts = readVerdicts(ctx, client, metrics)
	return s, nil
}

// readAPI requests a path from the sensor with these metrics, and reports whether it answered with JSON.
func readAPI(ctx context.Context, client *http.Client, metrics, path, query string, answer any) bool {
	u, err := url.Parse(metrics)
	if err != nil {
		return false
	}
	u.Path = strings.TrimSuffix(u.Path, "/metrics")
	u = u.JoinPath(path)
	u.RawQuery = query
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(io.LimitReader(resp.Body, maxExposition)).Decode(answer) == nil
}

// errNoSensor reports that the URL belongs to another program.
var errNoSensor = errors.New("these are not the metrics of accelscope")

// parse reads an exposition in the text format.
func parse(r io.Reader) (*sample, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, err
	}
	found := false
	for name := range families {
		found = found || strings.HasPrefix(name, "accelscope_")
	}
	if !found {
		return nil, errNoSensor
	}
	s := &sample{
		objects:    map[key]map[string]float64{},
		registered: map[key]float64{},
		errors:     map[key]float64{},
		verbs:      map[series]float64{},
		durations:  map[series]histogram{},

		transmitted: map[series]float64{},
		received:    map[series]float64{},
		gaps:        map[key][]string{},

		gpus:    parseGPUs(families),
		stalled: parseStalled(families),
		devices: parseDevices(families),
	}
	each(families, "container_rdma_resources", func(k key, label map[string]string, m *dto.Metric) {
		if s.objects[k] == nil {
			s.objects[k] = map[string]float64{}
		}
		s.objects[k][label["type"]] += value(m)
	})
	each(families, "container_rdma_registered_bytes", func(k key, _ map[string]string, m *dto.Metric) {
		s.registered[k] += value(m)
	})
	each(families, "container_rdma_verbs_errors_total", func(k key, label map[string]string, m *dto.Metric) {
		// An error of a query is a valid answer: libraries query every possible GID, thousands
		// of them, and most do not exist.
		if !strings.HasPrefix(label["verb"], "query_") {
			s.errors[k] += value(m)
		}
	})
	each(families, "container_rdma_verbs_total", func(k key, label map[string]string, m *dto.Metric) {
		s.verbs[series{k, label["verb"]}] += value(m)
	})
	each(families, "container_rdma_verbs_duration_seconds", func(k key, label map[string]string, m *dto.Metric) {
		h := histogram{}
		for _, b := range m.GetHistogram().GetBucket() {
			h[b.GetUpperBound()] = float64(b.GetCumulativeCount())
		}
		h[math.Inf(1)] = float64(m.GetHistogram().GetSampleCount())
		s.durations[series{k, label["verb"]}] = h
	})
	each(families, "container_rdma_datapath_coverage", func(k key, label map[string]string, m *dto.Metric) {
		if value(m) == 0 {
			s.gaps[k] = append(s.gaps[k], format.Escape(label["reason"]))
		} else {
			s.gaps[k] = nil
		}
	})
	each(families, "container_rdma_transmit_bytes_total", func(k key, label map[string]string, m *dto.Metric) {
		s.transmitted[series{k, label["method"]}] += value(m)
	})
	each(families, "container_rdma_receive_bytes_total", func(k key, label map[string]string, m *dto.Metric) {
		s.received[series{k, label["method"]}] += value(m)
	})
	return s, nil
}

// split is the method with parts of the bytes of a device.
const split = "survey"

// each calls do for every series of a family, with its row and its labels.
func each(families map[string]*dto.MetricFamily, name string, do func(key, map[string]string, *dto.Metric)) {
	for _, m := range families[name].GetMetric() {
		label := make(map[string]string, len(m.GetLabel()))
		for _, l := range m.GetLabel() {
			label[l.GetName()] = l.GetValue()
		}
		do(key{label["workload"], label["container_id"], label["device"]}, label, m)
	}
}

// value returns the value of a counter, gauge or untyped metric.
func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}
