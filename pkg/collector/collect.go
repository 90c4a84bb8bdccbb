// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Describe tells every metric of the table, and of the patterns what the
// drivers of this node have now.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.build.metrics {
		if m := &c.build.metrics[i]; !m.pattern() {
			ch <- prometheus.NewDesc(m.name, m.help, m.labelNames(), nil)
		}
	}
	fixed := map[string]bool{}
	for i := range c.build.metrics {
		fixed[c.build.metrics[i].name] = true
	}
	for _, f := range c.now().proto() {
		if !fixed[f.GetName()] {
			ch <- descOf(f)
		}
	}
}

// Collect is Gather for a registry. Whatever is asked, the figures are those
// of the same refresh.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, f := range c.now().proto() {
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

// series is one that is built already.
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
