// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Describe sends the descriptions of families whose names are unknown before a refresh.
func (p *Page) Describe(known map[string]bool, ch chan<- *prometheus.Desc) {
	for _, f := range p.Proto() {
		if !known[f.GetName()] {
			ch <- descOf(f)
		}
	}
}

// Collect sends the series of the page.
func (p *Page) Collect(ch chan<- prometheus.Metric) {
	for _, f := range p.Proto() {
		desc := descOf(f)
		for _, m := range f.Metric {
			ch <- series{desc, m}
		}
	}
}

func descOf(f *dto.MetricFamily) *prometheus.Desc {
	names := make([]string, len(f.Metric[0].Label))
	for i, l := range f.Metric[0].Label {
		names[i] = l.GetName()
	}
	return prometheus.NewDesc(f.GetName(), f.GetHelp(), names, nil)
}

type series struct {
	desc   *prometheus.Desc
	metric *dto.Metric
}

func (s series) Desc() *prometheus.Desc { return s.desc }

func (s series) Write(out *dto.Metric) error {
	out.Label = s.metric.Label
	out.Counter, out.Gauge, out.Untyped = s.metric.Counter, s.metric.Gauge, s.metric.Untyped
	out.Histogram = s.metric.Histogram
	return nil
}
