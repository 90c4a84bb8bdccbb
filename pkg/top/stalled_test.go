// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestStalledTable: the table names the remote ends of stalled queue pairs. Of a sensor that does not list peers, it has their
// number.
func TestStalledTable(t *testing.T) {
	const metrics = `accelscope_build_info 1
# TYPE container_rdma_stalled_queue_pairs gauge
container_rdma_stalled_queue_pairs{workload="ml/a/x",container_id="c1",device="mlx5_0"} 3
container_rdma_stalled_queue_pairs{workload="ml/b/x",container_id="c2",device="mlx5_0"} 0
container_rdma_stalled_queue_pairs{workload="ml/c/x",container_id="c3",device="mlx5_1"} 2
`
	const peers = `[
{"workload":"ml/a/x","container_id":"c1","device":"mlx5_0","qpn":17,"remote_gid":"::ffff:10.0.0.1","remote_qpn":90,"stalled_seconds":12.4},
{"workload":"ml/a/x","container_id":"c1","device":"mlx5_0","qpn":18,"remote_gid":"x\u001b[2J","remote_qpn":91,"stalled_seconds":100},
{"workload":"ml/c/x","container_id":"c3","device":"mlx5_1","qpn":5,"remote_lid":7,"remote_qpn":6,"stalled_seconds":11},
{"workload":"ml/c/x","container_id":"c3","device":"mlx5_1","qpn":6,"remote_qpn":8,"stalled_seconds":10}]`
	const named = `WORKLOAD  DEVICE       QPN  STALLED     CONNECTED TO  REMOTE QPN
ml/a/x    mlx5_0        18     100s         x\x1b[2J          91
ml/a/x    mlx5_0        17      12s  ::ffff:10.0.0.1          90
ml/a/x    mlx5_0  1 others        -                -           -
ml/c/x    mlx5_1         5      11s            LID 7           6
ml/c/x    mlx5_1         6      10s      (not known)           8
`
	const numbers = `WORKLOAD  DEVICE       QPN  STALLED  CONNECTED TO  REMOTE QPN
ml/a/x    mlx5_0  3 others        -             -           -
ml/c/x    mlx5_1  2 others        -             -           -
`
	for name, c := range map[string]struct {
		metrics string
		status  int
		want    string
	}{
		"named":     {metrics, http.StatusOK, named},
		"not named": {metrics, http.StatusServiceUnavailable, numbers},
		"none":      {"accelscope_build_info 1\n", http.StatusOK, "no workload uses an HCA or a GPU\n"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.String() {
				case "/metrics":
					fmt.Fprint(w, c.metrics)
				case "/api/v1/peers?stalled=true":
					asked++
					w.WriteHeader(c.status)
					fmt.Fprint(w, peers)
				case "/api/v1/verdicts":
					w.WriteHeader(http.StatusNotFound) // an older sensor
				default:
					t.Errorf("request of %s", r.URL)
				}
			}))
			defer sensor.Close()
			var out bytes.Buffer
			err := Run(t.Context(), Options{URL: sensor.URL + "/metrics", Interval: time.Millisecond, Once: true, Out: &out})
			if d := cmp.Diff(c.want, out.String()); d != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
			if (asked > 0) != strings.Contains(c.metrics, "stalled") {
				t.Errorf("asked for peers %d times", asked)
			}
		})
	}
}
