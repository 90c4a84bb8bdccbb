// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"slices"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	r, err := Read("../../../../gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for expr, want := range map[string]string{
		`sum by (workload) (rate(container_rdma_verbs_total{verb="reg_mr"}[5m]))`:                             "workload",
		`histogram_quantile(0.9, sum by (le, verb) (rate(container_rdma_verbs_duration_seconds_bucket[5m])))`: "verb",
		`sum without (device, port) (rdma_stat_np_cnp_sent)`:                                                  "instance job",
		`label_replace(sum by (device) (rdma_resources), "x", "$1", "device", "(.*)")`:                        "device x",
		`sum by (device) (rdma_resources) * on (device) group_left (firmware) infiniband_device_info`:         "device firmware",
		`count(up == 0) or vector(0)`:                    "",
		`count_values by (device) ("n", rdma_resources)`: "device n",
		`sum by (nobody) (rdma_resources)`:               `no label "nobody"`,
		`rdma_resource`:                                  `no metric "rdma_resource"`,
		`DCGM_FI_DEV_GPU_UTIL`:                           `no metric`,
		`rdma_resources{devices="a"}`:                    `no label "devices"`,
		`rdma_resources * on (device) group_left (firmwares) infiniband_device_info`: `no label "firmwares"`,
		`rdma_resources / on (port) infiniband_port_rate_gbps`:                       `no label "port"`,
		`rate(rdma_resources)`: `expected type range vector`,
		`histogram_quantile(0.9, sum by (le) (rate(container_rdma_verbs_duration_seconds[5m])))`:                        `no label "le"`,
		`sum by (device) (container_rdma_resources{workload=""}) / sum by (device) (container_rdma_resources{pod!=""})`: "device",
	} {
		labels, err := r.Check(expr)
		slices.Sort(labels)
		got := strings.Join(slices.Compact(labels), " ")
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != want || err != nil && (want == "" || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %s", expr, got, want)
		}
	}
}
