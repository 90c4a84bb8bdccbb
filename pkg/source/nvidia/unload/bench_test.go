// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// BenchmarkRequest requests the labels of the node, which has 64, and receives one event. With
// --gpu.release-on-node-labels the sensor does this every watchTime. The CPU time includes the server, which runs in
// the same process.
func BenchmarkRequest(b *testing.B) {
	labels := map[string]string{}
	for i := range 64 {
		labels[fmt.Sprint("feature.node.kubernetes.io/cpu-cpuid.FEATURE", i)] = "true"
	}
	event := nodeEvent(b, "ADDED", "gpu01", labels)
	a := newAPIServer(b, func(w http.ResponseWriter, _ *http.Request) { send(w, event) })
	received := 0
	begin := cpuTime(b)
	for b.Loop() {
		if err := a.node.request(b.Context(), func(got map[string]string) { received += len(got) }); err != nil {
			b.Fatal(err)
		}
	}
	if received != b.N*len(labels) {
		b.Fatalf("%d labels in %d requests", received, b.N)
	}
	b.ReportMetric(float64(cpuTime(b)-begin)/float64(b.N)/1e6, "cpu-ms/op")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
