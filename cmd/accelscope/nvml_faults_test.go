// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/otel"
)

// faultsDuringRelease: the kernel log is read while NVML is released, and an XID that NVML would have reported meanwhile is
// counted as a fault only. A real OpenTelemetry Collector receives the fault. The kernel log and the GPUs are fakes.
func faultsDuringRelease(t *testing.T, binary, library string) {
	path, err := otel.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := otel.Config{Dir: t.TempDir(), Endpoint: l.Addr().String()}
	l.Close()
	collector, err := otel.Start(t.Context(), path, config)
	if err != nil {
		t.Fatal(err)
	}
	defer collector.Stop()
	n := newFaultNode(t)
	n.start(t, binary, library, time.Second, "--collector.runtime", "--events.otlp-endpoint="+config.Endpoint, "--events.otlp-insecure")
	defer func() { ends(t, n.stop) }()
	gpu, container := nvml.UUID(1), n.Containers[0].ID
	counts := func(e exposition) [3]float64 {
		return [3]float64{
			e.by("gpu_xid_errors_total", "uuid", "xid")[gpu+" 31"], e.by("gpu_faults_total", "uuid", "code")[gpu+" 31"],
			e.by("container_gpu_faults_total", "container_id", "uuid", "code")[container+" "+gpu+" 31"],
		}
	}
	want := func(state string, xids, faults, owned float64) {
		t.Helper()
		n.until(t, fmt.Sprint(state, ": XIDs of NVML, faults, faults of the container: ", xids, faults, owned), func(e exposition) bool {
			return e.nvidia() == state && counts(e) == [3]float64{xids, faults, owned}
		})
	}
	n.listening(t)
	n.XID("1", 31)
	n.write(t)
	want("ok", 1, 0, 0)
	if out, err := n.gpu(t, binary, "release"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.XID("1", 31)
	n.write(t)
	n.log.xid(4, 1, fmt.Sprintf("31, pid=%d, name=sleep, Ch 00000010, MMU Fault", n.pids[0]))
	want("released", 1, 1, 1)
	if out, err := n.gpu(t, binary, "resume"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want("ok", 1, 1, 1)
	n.until(t, "an XID after that", func(e exposition) bool { // those before the child waits for events are lost
		if got := counts(e); got[0] > 1 {
			return got[1] == 1 && got[2] == 1
		}
		n.XID("1", 31)
		n.write(t)
		return false
	})

	var faults []otel.Record
	for end := time.Now().Add(quickly); len(faults) == 0; time.Sleep(300 * time.Millisecond) {
		all, err := collector.Records()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.Event == "device.fault" {
				faults = append(faults, r)
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the Collector has received %d records, and no fault", len(all))
		}
	}
	got := map[string]string{}
	for _, name := range []string{"accelscope.fault.driver", "accelscope.fault.code", "accelscope.device", "container.id", "process.pid"} {
		got[name] = faults[0].Attributes[name]
	}
	if diff := cmp.Diff(map[string]string{
		"accelscope.fault.driver": "nvidia", "accelscope.fault.code": "31", "accelscope.device": gpu, "container.id": container,
		"process.pid": fmt.Sprint(n.pids[0]),
	}, got); diff != "" || len(faults) > 1 || faults[0].Severity != "Warn" {
		t.Errorf("%d faults, severity %s (-want +got):\n%s", len(faults), faults[0].Severity, diff)
	}
}
