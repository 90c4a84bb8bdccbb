// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

// goldenFamilies are the golden files of pkg/metrics with series that no machine without such hardware has, and the families that are
// served from each.
var goldenFamilies = map[string]string{
	"links.prom":   `rdma_port_.*`,
	"modules.prom": `rdma_port_module_.*`,
	"failed.prom":  `rdma_device_pcie_.*`,
	"node.prom":    `infiniband_.*|rdma_port_roce_.*`,
	"traffic.prom": `infiniband_vf_.*`,
}

// clusterLines are series of the kubelet and of Slurm, and a workload with a VF of traffic.prom.
const clusterLines = `# TYPE accelscope_build_info gauge
accelscope_build_info{version="1.0",revision="abc",goversion="go1"} 1
# TYPE node_ephemeral_storage_usage_bytes gauge
node_ephemeral_storage_usage_bytes{node="n2"} 4e10
# TYPE node_ephemeral_storage_capacity_bytes gauge
node_ephemeral_storage_capacity_bytes{node="n2"} 1e11
# TYPE pod_ephemeral_storage_usage_bytes gauge
pod_ephemeral_storage_usage_bytes{namespace="ml",pod="train-0",node="n2"} 1e9
# TYPE accelscope_workload_device_info gauge
accelscope_workload_device_info{workload="ml/train-0/main",device="mlx5_2",pci_address="0000:18:00.2",method="kubelet"} 1
# TYPE accelscope_slurm_step_info gauge
accelscope_slurm_step_info{workload="slurm:42",job_id="42",step="0",user="alice"} 1
accelscope_slurm_step_info{workload="slurm:42",job_id="42",step="1",user="alice"} 1
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{workload="slurm:42",cpu="total"} 1
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{workload="slurm:42"} 2e9
`

// goldenNode serves the golden series. Counters grow with each scrape: seconds by 0.1, others by 10.
func goldenNode(t *testing.T) string {
	t.Helper()
	text := clusterLines
	for file, families := range goldenFamilies {
		golden, err := os.ReadFile(filepath.Join("../../pkg/metrics/testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		wanted := regexp.MustCompile(`^(?:# TYPE )?(?:` + families + `)[{ ]`)
		for line := range strings.Lines(string(golden)) {
			if wanted.MatchString(line) {
				text += line
			}
		}
	}
	var scrapes atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := float64(scrapes.Add(1))
		counter := false
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
			line := lines.Text()
			if strings.HasPrefix(line, "# TYPE ") {
				counter = strings.HasSuffix(line, " counter")
			}
			end := strings.LastIndexByte(line, ' ')
			if value, err := strconv.ParseFloat(line[end+1:], 64); err == nil && counter {
				step := 10.0
				if strings.Contains(line, "_seconds_total") {
					step = 0.1
				}
				line = line[:end+1] + strconv.FormatFloat(value+n*step, 'g', -1, 64)
			}
			_, _ = fmt.Fprintln(w, line)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// notAnswered are the queries without data here, with the reason: "file: panel: query".
var notAnswered = map[string]string{}

// TestLinkAndNodeDashboards runs the queries of the dashboards Links and Nodes in a real Prometheus. The metrics of the node come from
// this machine. Metrics of links, modules, PCIe, VFs, the kubelet and Slurm are golden series, for lack of hardware.
func TestLinkAndNodeDashboards(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	t.Parallel()
	args := []string{"--node.name=n1"}
	for _, name := range []string{
		"rdma", "link", "pci", "cgroup", "probe", "runtime", "kubelet", "container", "gpu", "access", "kernellog",
	} {
		args = append(args, "--no-collector."+name)
	}
	url, stop := start(t, build(t), args...)
	defer ends(t, stop)
	ready(t, url)
	p := startPrometheus(t, []*jobNode{{instance: "n1", url: url}, {instance: "n2", url: goldenNode(t)}})
	eventuallyTrue(t, "both are scraped for 20 seconds", func() bool {
		a := p.ask(t, "min(count_over_time(up[30s]) and on (instance) up == 1)", time.Now(), 0)
		return len(a.Series) == 1 && a.Series[0].Value.Value > 20 && len(p.ask(t, "up == 1", time.Now(), 0).Series) == 2
	})
	p.answers(t, "links.json")
	p.answers(t, "node.json")

	// The worst port is the one with flaps, pause, storms, uncorrectable blocks and a module with alarms.
	all, err := dashboards.Load("../../deploy/grafana")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		for _, panel := range d.Panels {
			if d.File != "links.json" || panel.Title != "Ports" {
				continue
			}
			got := p.ask(t, "topk(1, "+d.Expand(panel.Targets[0].Expr, rates)+")", time.Now(), 0)
			if len(got.Series) != 1 || got.Series[0].Labels["device"] != "mlx5_0" || got.Series[0].Value.Value != 5 {
				t.Errorf("the worst port is %v, want mlx5_0 with 5 problems", got.Series)
			}
		}
	}
}

// rates are the ranges of rates and of the dashboards here.
var rates = dashboards.Values{"__rate_interval": "20s", "__range": "20s", "__range_s": "20"}

// answers runs the queries of a dashboard.
func (p *prometheus) answers(t *testing.T, file string) {
	t.Helper()
	all, err := dashboards.Load("../../deploy/grafana")
	if err != nil {
		t.Fatal(err)
	}
	d := all[slices.IndexFunc(all, func(d dashboards.Dashboard) bool { return d.File == file })]
	end := time.Now()
	for _, panel := range d.Panels {
		series := 0
		for _, q := range panel.Targets {
			length := end.Sub(p.began)
			if q.Instant {
				length = 0
			}
			expr := d.Expand(q.Expr, rates)
			answer := p.ask(t, expr, end, length)
			name := fmt.Sprintf("%s: %s: %s", file, panel.Title, q.Ref)
			if why, listed := notAnswered[name]; answer.HasData() == listed {
				t.Errorf("%s: data %v, listed %q:\n%s", name, answer.HasData(), why, expr)
			}
			if series += len(answer.Series); panel.Type == "timeseries" && series > 50 {
				t.Errorf("%s shows %d series", name, series)
			}
		}
	}
}
