// SPDX-License-Identifier: Apache-2.0

// Package metrics exposes a refresh of the engine as Prometheus metrics.
//
// Every metric is a row of one table (table.go), from which the families and the reference (gen/metrics.md) are built.
// An Exporter builds the families once per refresh; all scrapes of the refresh share them.
package metrics

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/exposition"
)

// Options of an Exporter.
type Options struct {
	// Compat are the additional sets to export: names in CompatSets, and Process.
	Compat []string
	// Node is the node's name. Labels are the labels and annotations of pods and containers that
	// accelscope_workload_info has as label_NAME.
	Node   string
	Labels []string
	// Scope selects the workloads of the group "Containers"; default all. Accelerated, if not nil, receives the
	// workloads that ScopeAccelerated selects.
	Scope       Scope
	Accelerated *Accelerated
	// Excludes reports whether a metric is left out; default none.
	Excludes func(name string) bool
	// ExcludesInterface reports whether a network interface of the node is left out; default none.
	ExcludesInterface func(name string) bool
	// Histograms are the forms of histograms, and whether OpenMetrics has start times.
	Histograms Forms
	// GPUDetail exports all series of GPUs. Otherwise series of links and of blocks of memory are added up, and some
	// are left out.
	GPUDetail bool
	// AllStates exports a series for each possible state of a source, a device or a hook. Otherwise only the current
	// state has a series.
	AllStates bool

	Version  string
	Revision string
}

func (o *Options) excludes(name string) bool {
	return o.Excludes != nil && !exposition.IsPattern(name) && o.Excludes(name)
}

// Forms are the forms in which histograms are exported.
type Forms = exposition.Forms

// ErrNoCollector is the error of Encode for an unknown collector.
var ErrNoCollector = errors.New("there is no such collector")

// Exporter turns refreshes into metrics. It is also a prometheus.Gatherer and a prometheus.Collector.
type Exporter struct {
	engine     *engine.Engine
	metrics    []metric
	encoder    exposition.Encoder
	forms      Forms
	collectors []string

	mu    sync.Mutex // guards the fields below
	build *exposition.Builder
	view  view
	last  *engine.Refresh // the refresh of page
	page  *exposition.Page
}

var (
	_ prometheus.Gatherer  = (*Exporter)(nil)
	_ prometheus.Collector = (*Exporter)(nil)
)

// New returns an exporter of the refreshes of e.
func New(e *engine.Engine, o Options) *Exporter {
	x := &Exporter{
		engine: e,
		forms:  o.Histograms,
		build:  exposition.NewBuilder(o.Excludes),
		view: view{
			scope: scope{Scope: o.Scope, published: o.Accelerated}, excludesInterface: o.ExcludesInterface, node: o.Node,
			allStates: o.AllStates,
			build:     []string{o.Version, o.Revision, runtime.Version()},
		},
	}
	all := table(o.Labels)
	x.metrics = make([]metric, 0, len(all))
	for _, m := range all {
		x.collectors = append(x.collectors, m.collector)
		if (m.compat == "" || slices.Contains(o.Compat, m.compat)) && (o.GPUDetail || !m.full) && !o.excludes(m.name) {
			m.declared = x.build.Declare(m.name, m.help, m.typ, m.labelNames(), m.shown(o.GPUDetail))
			x.metrics = append(x.metrics, m)
		}
	}
	slices.Sort(x.collectors)
	x.collectors = slices.Compact(x.collectors)
	return x
}

// Encode returns the current metrics in a format that expfmt negotiated, compressed by gzip if compress is set. If collectors
// are named, only their metrics. The caller must not change the bytes.
func (x *Exporter) Encode(format expfmt.Format, compress bool, collectors ...string) ([]byte, error) {
	for _, name := range collectors {
		if !slices.Contains(x.collectors, name) {
			return nil, fmt.Errorf("%q: %w", name, ErrNoCollector)
		}
	}
	page, err := x.current()
	if err != nil {
		return nil, err
	}
	if len(collectors) > 0 {
		page = page.Of(collectors)
	}
	return x.encoder.Encode(page, format, compress)
}

// Gather returns the current metric families. The caller must not change them.
func (x *Exporter) Gather() ([]*dto.MetricFamily, error) {
	page, err := x.current()
	if err != nil {
		return nil, err
	}
	return page.Proto(), nil
}

// Describe sends the descriptions of all metrics, and of the families that patterns have on this node now.
func (x *Exporter) Describe(ch chan<- *prometheus.Desc) {
	known := map[string]bool{}
	for i := range x.metrics {
		m := &x.metrics[i]
		known[m.name] = true
		if !exposition.IsPattern(m.name) {
			ch <- prometheus.NewDesc(m.name, m.help, m.labelNames(), nil)
		}
	}
	if page, err := x.current(); err == nil {
		page.Describe(known, ch)
	}
}

// Collect sends the series that Gather returns, or its error.
func (x *Exporter) Collect(ch chan<- prometheus.Metric) {
	page, err := x.current()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	page.Collect(ch)
}

// current returns the page of the engine's current refresh, or the refresh's error.
func (x *Exporter) current() (*exposition.Page, error) {
	r := x.engine.Refresh()
	if r.Err != nil {
		return nil, r.Err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.page == nil || x.last != r {
		x.last, x.page = r, exposition.NewPage(x.families(r), x.forms)
	}
	return x.page, nil
}

// families builds the metric families of a refresh. A refresh without a time (the engine was closed before its first
// refresh) has no families.
func (x *Exporter) families(r *engine.Refresh) []exposition.Family {
	if r.At.IsZero() {
		return nil
	}
	x.build.Begin()
	x.view.fill(r, x.build)
	for i := range x.metrics {
		m := &x.metrics[i]
		x.build.Metric(m.declared)
		m.emit(&x.view, x.build)
	}
	return x.build.End()
}
