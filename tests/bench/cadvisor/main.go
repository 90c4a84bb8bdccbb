// SPDX-License-Identifier: Apache-2.0

// Command cadvisor serves cAdvisor's container metrics with the kubelet's settings and groups of metrics
// (pkg/kubelet/cadvisor of Kubernetes 1.34). It knows cgroups but no container runtime, which saves work.
package main

import (
	"flag"
	"log"
	"net/http"
	"time"

	"github.com/google/cadvisor/cache/memory"
	"github.com/google/cadvisor/container"
	v2 "github.com/google/cadvisor/info/v2"
	"github.com/google/cadvisor/manager"
	"github.com/google/cadvisor/metrics"
	"github.com/google/cadvisor/utils/sysfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/utils/clock"
)

func main() {
	addr := flag.String("web.listen-address", "127.0.0.1:8080", "")
	flag.Parse()
	*manager.HousekeepingInterval = 10 * time.Second // as the kubelet
	longest, dynamic := 15*time.Second, true
	groups := container.MetricSet{
		container.CpuUsageMetrics: {}, container.MemoryUsageMetrics: {}, container.DiskIOMetrics: {}, container.NetworkUsageMetrics: {},
		container.AppMetrics: {}, container.ProcessMetrics: {}, container.OOMMetrics: {},
	}
	m, err := manager.New(memory.New(2*time.Minute, nil), sysfs.NewRealSysFs(),
		manager.HousekeepingConfig{Interval: &longest, AllowDynamic: &dynamic}, groups, http.DefaultClient, []string{"/"}, nil, "", 0)
	if err != nil {
		log.Fatal(err)
	}
	if err := m.Start(); err != nil {
		log.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		metrics.NewPrometheusCollector(m, nil, groups, clock.RealClock{}, v2.RequestOptions{IdType: v2.TypeName, Count: 1, Recursive: true}))
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	log.Fatal(http.ListenAndServe(*addr, nil))
}
