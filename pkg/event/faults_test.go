// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestFaultEvents: each fault since the start is one record with its device and owner.
func TestFaultEvents(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	r.up(t)
	fault := func(id uint64, code string, change func(*attribution.FaultRecord)) attribution.FaultRecord {
		f := attribution.FaultRecord{
			FaultDevice: attribution.FaultDevice{GPU: "0", UUID: "GPU-0"},
			Fault: &model.Fault{
				ID: id, Time: time.Unix(1700000000, 0), Text: "NVRM: …",
				FaultKey: model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:c1:00.0", Code: code},
			},
		}
		change(&f)
		return f
	}
	all := []attribution.FaultRecord{
		fault(1, "79", func(f *attribution.FaultRecord) { f.Earlier = true }),
		fault(2, "31", func(f *attribution.FaultRecord) {
			f.Owner = identity.Owner{Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1"}
			f.PID, f.Repeated = 4711, 2
		}),
		fault(3, "154", func(f *attribution.FaultRecord) { f.Recovered = true }),
		fault(4, "health", func(f *attribution.FaultRecord) {
			f.Driver, f.FaultDevice = model.DriverMLX5, attribution.FaultDevice{HCA: "mlx5_0"}
		}),
		fault(5, "13", func(f *attribution.FaultRecord) { f.FaultDevice, f.GPUInstance = attribution.FaultDevice{}, "5" }),
	}
	var shown atomic.Int64
	shown.Store(2)
	open(t, newWorld(1), quick, Options{Endpoint: r.endpoint, Insecure: true, Shares: func() attribution.Attribution {
		return attribution.Attribution{Owners: []identity.Owner{{}}, FaultHistory: all[:shown.Load()]}
	}})
	sent := func() (lines []string) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, record := range r.got {
			if record.Event == "device.fault" {
				a := record.Attributes
				lines = append(lines, fmt.Sprint(a["accelscope.fault.code"], " [", a["accelscope.device"], "|", a["accelscope.workload"], "|",
					a["k8s.pod.name"], "|", a["container.id"], "|", a["process.pid"], "|", a["accelscope.fault.repeated"], "|",
					a["accelscope.fault.gpu_instance"], "|", a["accelscope.verdict"], "]"))
			}
		}
		return lines
	}
	within(t, waitLimit, func() string { return map[bool]string{false: fmt.Sprint(sent())}[len(sent()) >= 1] })
	shown.Store(int64(len(all)))
	within(t, waitLimit, func() string { return map[bool]string{false: fmt.Sprint(sent())}[len(sent()) >= 4] })
	time.Sleep(5 * quick.poll) // a duplicate would arrive
	if d := cmp.Diff([]string{
		"31 [GPU-0|ml/train-0/worker|train-0|c1|4711|2||]", "154 [GPU-0|||||||]", "health [mlx5_0|||||||RDMAFault]", "13 [0000:c1:00.0||||||5|]",
	}, sent()); d != "" {
		t.Error(d)
	}

	var lines []string
	for _, ev := range new(faults).update(attribution.Attribution{FaultHistory: all}) {
		lines = append(lines, fmt.Sprint(warns(&ev), ": ", sentence(&ev)))
	}
	if d := cmp.Diff([]string{
		"true: nvidia GPU-0 logged fault 31 of ml/train-0/worker", "false: nvidia GPU-0 recovered: 154",
		"true: mlx5_core mlx5_0 logged fault health", "true: nvidia 0000:c1:00.0 logged fault 13",
	}, lines); d != "" {
		t.Error(d)
	}
}
