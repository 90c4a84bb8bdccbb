// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/machines/ibsim"
)

const dropIns = "/etc/systemd/system/accelscope.service.d"

// options: each source that is off by default works under the unit, with the drop-in that its option needs. The fabric
// is simulated; the receiver of events, the kubelet, amd-smi and NVIDIA's library are fakes.
func (d *deployment) options(t *testing.T) {
	defer d.restore(t)()
	for _, name := range []string{"fabric.conf", "amd-smi.conf"} {
		sh(t, "install", "-D", "-m", "644", "-t", dropIns, "/usr/share/accelscope/systemd/"+name)
	}
	net := ibsim.FatTree(2, 1, 1)
	fabric, err := ibsim.Start(t.Context(), ibsim.Options{Net: net.String(), Host: net.Nodes[net.Find("host0 mlx5_0")].ID()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = fabric.Close() }()
	// The simulation, not the sensor, writes to its own directory.
	simulation := "[Service]\nReadWritePaths=" + filepath.Dir(fabric.Tools) + "/work\n"
	if err := os.WriteFile(dropIns+"/simulation.conf", []byte(simulation), 0o644); err != nil {
		t.Fatal(err)
	}
	events, kubelet := receiveEvents(t), servePodResources(t)
	with(t, "--collector.fabric", "--fabric.tools="+fabric.Tools, "--events.otlp-endpoint="+events.address, "--events.otlp-insecure",
		"--kubelet.pod-resources="+kubelet, "--rdma.datapath=always", "--gpu.allocation-failures", "--collector.gpudriver")
	s := d.running(t, older)
	d.probing(t, s)
	eventually(t, 2*time.Minute, func() error {
		m := s.scrape()
		for source, want := range map[string]string{
			"fabric": "ok", "events": "ok", "kubelet": "ok", "datapath": "ok", "gpumemory": "ok",
			"gpudriver": "absent", // no driver of GPUs is loaded
		} {
			if m.sum("accelscope_source_state", "source", source, "state", want) != 1 {
				return fmt.Errorf("source %s is not %s: %v\n%s", source, want, m.all("accelscope_source_state", "source", source), page(t, "/readyz"))
			}
		}
		switch {
		case m.sum("infiniband_fabric_nodes", "type", "switch") != 3:
			return fmt.Errorf("the fabric has %v, want 3 switches", m.by("infiniband_fabric_nodes", "type"))
		case !events.began():
			return fmt.Errorf("no snapshot has arrived")
		case m.sum("accelscope_workload_device_info", "resource", "rdma/hca") == 0:
			return fmt.Errorf("nothing of the kubelet: %v", m.by("accelscope_workload_device_info", "resource"))
		}
		return nil
	})

	// An AMD GPU made of files, and amd-smi.
	dir := t.TempDir()
	writeAMD(t, dir)
	with(t, "--path.sysfs="+dir, "--gpu.amd-smi="+dir+"/amd-smi")
	d.running(t, older)
	eventually(t, time.Minute, func() error {
		if text := page(t, "/metrics"); !strings.Contains(text, "MI300X of a fake") {
			return fmt.Errorf("no name from amd-smi\n%s", page(t, "/readyz"))
		}
		return nil
	})
	d.child(t)
}

// child: the process that loads NVIDIA's library, a FAKE, works under the unit, releases the GPUs and opens them again.
func (d *deployment) child(t *testing.T) {
	t.Helper()
	gpus, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	gpus.AddH100(0)
	if err := gpus.Write(); err != nil {
		t.Fatal(err)
	}
	fake := "[Service]\nReadWritePaths=" + filepath.Dir(gpus.DeviceDir()) + "\n"
	for _, variable := range gpus.Environment() {
		fake += "Environment=" + variable + "\n"
	}
	if err := os.WriteFile(dropIns+"/nvml.conf", []byte(fake), 0o644); err != nil {
		t.Fatal(err)
	}
	with(t, "--gpu.nvml-library="+os.Getenv(nvmlVar))
	s := d.running(t, older)
	open := func(want bool) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			held, err := gpus.Held()
			if rates := len(s.scrape().all("gpu_utilization")); err != nil || (rates > 0) != want || (len(held) > 0) != want {
				return fmt.Errorf("utilization of %d GPUs, held: %v: %w\n%s", rates, held, err, page(t, "/readyz"))
			}
			return nil
		})
	}
	open(true)
	if out := sh(t, "accelscope", "gpu", "release", "--for=5m"); !strings.Contains(out, "nvidia0") {
		t.Errorf("released: %s", out)
	}
	open(false)
	sh(t, "accelscope", "gpu", "resume")
	open(true)
}

// restore returns a function that restarts the service without drop-ins, with its current arguments.
func (d *deployment) restore(t *testing.T) func() {
	t.Helper()
	before, err := os.ReadFile(defaults)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(defaults, before, 0o644); err != nil {
			t.Error(err)
		}
		sh(t, "rm", "-rf", dropIns)
		restart(t)
		d.exact(t, d.running(t, older))
	}
}

// with restarts the service with more arguments.
func with(t *testing.T, args ...string) {
	t.Helper()
	if err := os.WriteFile(defaults, []byte("ACCELSCOPE_OPTIONS=\""+strings.Join(args, " ")+"\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	restart(t)
}

// restart restarts the service, however often it was started before (StartLimitBurst).
func restart(t *testing.T) {
	t.Helper()
	sh(t, "systemctl", "daemon-reload")
	sh(t, "systemctl", "reset-failed", unit)
	sh(t, "systemctl", "restart", unit)
}

func page(t *testing.T, path string) string {
	t.Helper()
	res, err := http.Get("http://127.0.0.1:9847" + path)
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// receivedEvents is a FAKE receiver of events.
type receivedEvents struct {
	collogs.UnimplementedLogsServiceServer
	address string

	mu    sync.Mutex
	names []string
}

func receiveEvents(t *testing.T) *receivedEvents {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receivedEvents{address: l.Addr().String()}
	server := grpc.NewServer()
	collogs.RegisterLogsServiceServer(server, r)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return r
}

func (r *receivedEvents) Export(_ context.Context, req *collogs.ExportLogsServiceRequest) (*collogs.ExportLogsServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range req.ResourceLogs {
		for _, scope := range resource.ScopeLogs {
			for _, record := range scope.LogRecords {
				r.names = append(r.names, record.EventName)
			}
		}
	}
	return &collogs.ExportLogsServiceResponse{}, nil
}

// began reports whether a snapshot has arrived.
func (r *receivedEvents) began() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(strings.Join(r.names, " "), "container.snapshot.end")
}

// listedPod is a FAKE of the kubelet's PodResources: the pod of the traffic, with an HCA.
type listedPod struct {
	podresources.UnimplementedPodResourcesListerServer
}

func (listedPod) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return &podresources.ListPodResourcesResponse{PodResources: []*podresources.PodResources{{
		Name: "train-0", Namespace: "default", Containers: []*podresources.ContainerResources{{
			Name: "worker", Devices: []*podresources.ContainerDevices{{ResourceName: "rdma/hca", DeviceIds: []string{"rxe0"}}},
		}},
	}}}, nil
}

func (listedPod) GetAllocatableResources(
	context.Context, *podresources.AllocatableResourcesRequest,
) (*podresources.AllocatableResourcesResponse, error) {
	return &podresources.AllocatableResourcesResponse{}, nil
}

func servePodResources(t *testing.T) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "kubelet.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, listedPod{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket
}

// writeAMD writes the files of an AMD GPU and a FAKE amd-smi, a shell script.
func writeAMD(t *testing.T, dir string) {
	t.Helper()
	const script = `#!/bin/sh
if [ "$1" = static ]; then
	echo '[{"gpu": 0, "asic": {"market_name": "MI300X of a fake"}, "bus": {"bdf": "0000:04:00.0"}}]'
else
	echo '[{"gpu": 0, "power": {"socket_power": {"value": 131, "unit": "W"}}}]'
fi
`
	device := filepath.Join(dir, "devices/pci0000:00/0000:04:00.0")
	for _, path := range []string{device + "/power", dir + "/class/drm", dir + "/bus/pci/drivers/amdgpu"} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		device + "/driver":            dir + "/bus/pci/drivers/amdgpu",
		dir + "/class/drm/card0":      "../../devices/pci0000:00/0000:04:00.0/drm/card0",
		dir + "/class/drm/renderD128": "../../devices/pci0000:00/0000:04:00.0/drm/renderD128",
	} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		device + "/class": "0x030000\n", device + "/vendor": "0x1002\n", device + "/device": "0x1638\n",
		device + "/power/runtime_status": "active\n", device + "/power/control": "on\n", dir + "/amd-smi": script,
	} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
