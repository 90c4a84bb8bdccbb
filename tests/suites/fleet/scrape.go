// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v3"
)

// template is a series of the recorded scrape.
type template struct {
	labels  map[string]string // with __name__
	counter bool
	value   float64
	share   float64 // for buckets: fraction of the histogram's observations; otherwise 1
	seed    uint64  // of what it counts: equal for all series of a histogram
}

func (t *template) name() string { return t.labels[model.MetricNameLabel] }

// parse returns the kept series of a scrape.
func parse(text []byte, keep keeper) ([]template, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	var all []template
	for _, name := range slices.Sorted(maps.Keys(families)) {
		for _, m := range families[name].GetMetric() {
			for _, t := range expand(families[name], m) {
				if keep(t.labels) {
					all = append(all, t)
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the scrape has none of the series")
	}
	return all, nil
}

// expand returns the series of a metric, several for a histogram.
func expand(family *dto.MetricFamily, m *dto.Metric) []template {
	labels := map[string]string{model.MetricNameLabel: family.GetName()}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	t := template{labels: labels, counter: family.GetType() == dto.MetricType_COUNTER, share: 1, seed: hash(fmt.Sprint(labels))}
	switch {
	case m.Histogram != nil:
		return histogram(t, m.GetHistogram())
	case m.Counter != nil:
		t.value = m.GetCounter().GetValue()
	case m.Gauge != nil:
		t.value = m.GetGauge().GetValue()
	default:
		// The counters of drivers have no type.
		t.value, t.counter = m.GetUntyped().GetValue(), strings.HasPrefix(t.name(), "rdma_stat_")
	}
	return []template{t}
}

// shares are the fractions of the observations in a histogram's first buckets; later buckets have all.
var shares = []float64{0.9, 0.97}

func histogram(t template, h *dto.Histogram) []template {
	t.counter = true
	with := func(suffix, le string, share float64) template {
		s := t
		s.labels = maps.Clone(t.labels)
		s.labels[model.MetricNameLabel] += suffix
		if le != "" {
			s.labels[model.BucketLabel] = le
		}
		s.share = share
		return s
	}
	all := []template{with("_count", "", 1), with("_sum", "", 1e-4)}
	for i, b := range h.GetBucket() {
		share := 1.0
		if i < len(shares) {
			share = shares[i]
		}
		all = append(all, with("_bucket", fmt.Sprint(b.GetUpperBound()), share))
	}
	return all
}

// keeper reports whether series with the labels are kept.
type keeper func(labels map[string]string) bool

func everything(map[string]string) bool { return true }

// filter returns the filter for series that rules and dashboards read, from the users' configuration: the actions
// "keep" and "drop" of Prometheus's relabeling, with the default separator.
func filter(file string) (keeper, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c struct {
		Remote []struct {
			Relabel []struct {
				Labels        []string `yaml:"source_labels"`
				Action, Regex string
			} `yaml:"write_relabel_configs"`
		} `yaml:"remote_write"`
	}
	if err := yaml.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(c.Remote) != 1 || len(c.Remote[0].Relabel) == 0 {
		return nil, fmt.Errorf("%s has no filter of series", file)
	}
	keep := everything
	for _, r := range c.Remote[0].Relabel {
		expr, err := regexp.Compile("^(?:" + r.Regex + ")$")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if r.Action != "keep" && r.Action != "drop" {
			return nil, fmt.Errorf("%s: action %q", file, r.Action)
		}
		before := keep
		keep = func(labels map[string]string) bool {
			var values []string
			for _, name := range r.Labels {
				values = append(values, labels[name])
			}
			return before(labels) && expr.MatchString(strings.Join(values, ";")) == (r.Action == "keep")
		}
	}
	return keep, nil
}

func hash(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		fmt.Fprint(h, p, "/") //nolint:errcheck // always nil
	}
	// FNV's upper bits differ little for texts that differ at the end.
	return h.Sum64() * 0x9e3779b97f4a7c15
}
