// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
)

// The page of all nodes stays within the limit of the manifests while a Prometheus answers each query with 16 MiB: the queries of the state, and of
// searches of more clients than are asked for at a time.
func TestFleetMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	const limit = 512 << 20 // of deploy/kubernetes/overlays/fleet and deploy/systemd/accelscope-fleet.service
	t.Setenv("GOMEMLIMIT", "400MiB")
	var small, large bytes.Buffer
	for _, b := range []*bytes.Buffer{&small, &large} {
		b.WriteString(`{"status":"success","data":{"resultType":"vector","result":[`)
	}
	for i := 0; large.Len() < 16<<20-1<<10; i++ {
		if i > 0 {
			large.WriteString(",")
		}
		const format = `{"metric":{"instance":"gpu%04d.cluster.example:9847","device":"mlx5_%d","job_name":"job-%d"},"value":[1800000000.123,"1"]}`
		fmt.Fprintf(&large, format, i/10, i%10, i/10)
		if i == 10_000 { // of a thousand nodes
			small.Write(large.Bytes()[small.Len():])
		}
	}
	for _, b := range []*bytes.Buffer{&small, &large} {
		b.WriteString(`]}}`)
	}
	// The answers to the queries of nodes fit, so that there is a state, and of the others what fits beside it.
	prometheus := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := large.Bytes()
		switch r.FormValue("query") {
		case "max by (instance) (accelscope_build_info)", `max by (instance, device, port) (infiniband_port_state{state="active"})`:
			answer = small.Bytes()
		}
		_, _ = w.Write(answer)
	}))
	defer prometheus.Close()
	page, process, stop := startProcess(t, build(t), "fleet", "--prometheus="+prometheus.URL)
	var all sync.WaitGroup
	for i := range 9 {
		all.Go(func() {
			client := clientAt(fmt.Sprint("127.0.0.", 1+i/2))
			for _, path := range []string{"/?q=" + url.QueryEscape(fmt.Sprint("train", i)), "/api/v1/fleet"} {
				if answer, err := client.Get(page + path); err == nil {
					_ = answer.Body.Close()
				}
			}
		})
	}
	all.Wait()
	peak := peakMemory(t, process.Pid)
	t.Logf("at most %d MiB were resident", peak>>20)
	if peak > limit {
		t.Error("that is more than the limit of the manifests")
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}
