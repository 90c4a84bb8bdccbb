// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// testRuntimeUpgrade replaces containerd 1 by containerd 2 while pods run.
func testRuntimeUpgrade(t *testing.T) {
	const ns = "upgrade"
	makeNamespace(t, ns)
	w := watchEvents(t, ns)
	startSensor(t, "--events.otlp-endpoint="+eventsEndpoint, "--events.otlp-insecure")
	t.Cleanup(func() { removePods(t, ns) })
	const spec = "  containers:\n  - {name: main, IMAGE, SLEEP}\n  - {name: other, IMAGE, SLEEP}\n"
	apply(t, podYAML(ns, "before", spec))
	ready(t, ns, "pod/before")
	same(t, "containers of containerd 1", running.running, shown)
	before, err := running.running(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	steady(t, func() {
		running.containerd.stop(syscall.SIGTERM)
		if err := running.startContainerd(t.Context(), os.Getenv(containerdVar)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // some scrapes with containerd 2
	})
	same(t, "containers of containerd 2", func(context.Context) (map[string]float64, error) { return before, nil }, shown)
	apply(t, podYAML(ns, "after", spec))
	ready(t, ns, "pod/after", "pod/before")
	same(t, "containers after the upgrade", running.running, shown)
	if after, err := running.running(t.Context()); err != nil || len(after) != len(before)+2 {
		t.Errorf("%v: before %v, after %v", err, before, after)
	}
	w.exactly(t, 4, "create", "start")
	if _, err := running.kubectl(t.Context(), "--namespace="+ns, "delete", "pods", "--all", "--timeout=2m"); err != nil {
		t.Fatal(err)
	}
	w.exactly(t, 4, "create", "start", "exit", "delete")
}

const claimsYAML = `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec: {selectors: [{cel: {expression: 'device.driver == "gpu.nvidia.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared, namespace: NS}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two, namespace: NS}
spec: {spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: split, namespace: NS}
spec: {spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com}}, {name: b, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
---
`

// testClaims has a driver of dynamic resource allocation, made with Kubernetes' helper library, allocate GPUs to the claims of pods. The
// sensor, which knows only the kubelet and the CDI specifications, must show those whose device nodes the containers have.
func testClaims(t *testing.T) {
	const ns = "claims"
	makeNamespace(t, ns)
	s := startSensor(t)
	var devices []draDevice
	for n := range gpus {
		devices = append(devices, draDevice{Name: fmt.Sprint("gpu-", n), Node: fmt.Sprint("/dev/nvidia", n)})
	}
	sick := startDriver(t, "gpu.nvidia.com", devices)
	t.Cleanup(func() { removePods(t, ns) })

	apply(t, expand(claimsYAML, "NS", ns))
	const use = "  resourceClaims: [%s]\n  containers:\n  - {name: main, IMAGE, SLEEP, resources: {claims: [{name: gpu}]}}\n  - {name: none, IMAGE, SLEEP}\n"
	apply(t, podYAML(ns, "one", fmt.Sprintf(use, "{name: gpu, resourceClaimName: shared}"))+
		podYAML(ns, "other", fmt.Sprintf(use, "{name: gpu, resourceClaimName: shared}"))+
		podYAML(ns, "two", fmt.Sprintf(use, "{name: gpu, resourceClaimTemplateName: two}")))
	ready(t, ns, "pod/one", "pod/other", "pod/two")
	same(t, "containers", running.running, shown)
	allocated(t, ns, s)
	claimed(t, ns)
	healthOfClaims(t, ns, sick)

	if _, err := running.kubectl(t.Context(), "--namespace="+ns, "delete", "pod", "two"); err != nil {
		t.Fatal(err)
	}
	apply(t, podYAML(ns, "split", "  resourceClaims: [{name: gpu, resourceClaimTemplateName: split}]\n  containers:\n"+
		"  - {name: a, IMAGE, SLEEP, resources: {claims: [{name: gpu, request: a}]}}\n"+
		"  - {name: b, IMAGE, SLEEP, resources: {claims: [{name: gpu, request: b}]}}\n"))
	ready(t, ns, "pod/split")
	allocated(t, ns, s)
	if _, err := running.kubectl(t.Context(), "--namespace="+ns, "delete", "pod", "split"); err != nil {
		t.Fatal(err)
	}
	apply(t, podYAML(ns, "three", fmt.Sprintf(use, "{name: gpu, resourceClaimTemplateName: two}")))
	ready(t, ns, "pod/three")
	allocated(t, ns, s)
	claimed(t, ns)
}

// draDevice is a device of the driver of programs/dradriver.
type draDevice struct {
	Name       string            `json:"name"`
	Node       string            `json:"node,omitempty"`
	Attributes map[string]string `json:"attributes,omitempty"`
}

// startDriver starts a driver of dynamic resource allocation until the end of the test. setSick makes exactly these devices unhealthy.
func startDriver(t *testing.T, name string, devices []draDevice) (setSick func(names ...string)) {
	t.Helper()
	text, err := json.Marshal(devices)
	if err != nil {
		t.Fatal(err)
	}
	unhealthy := filepath.Join(t.TempDir(), "unhealthy")
	d := running.daemon(os.Getenv(driverVar), "--kubeconfig="+running.pki("admin.kubeconfig"), "--node="+nodeName, "--driver="+name,
		"--devices="+string(text), "--unhealthy="+unhealthy)
	d.log = filepath.Join(running.dir, name+".log")
	if err := d.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.stop(syscall.SIGTERM) })
	until(t, "the driver publishes its devices", func(ctx context.Context) error {
		var slices resourcev1.ResourceSliceList
		if err := running.get(ctx, "/apis/resource.k8s.io/v1/resourceslices", &slices); err != nil {
			return err
		}
		for i := range slices.Items {
			if s := &slices.Items[i].Spec; s.Driver == name && len(s.Devices) == len(devices) {
				return nil
			}
		}
		return fmt.Errorf("%d slices\n%s", len(slices.Items), d.tail())
	})
	return func(names ...string) {
		if err := write(unhealthy, strings.Join(names, "\n")); err != nil {
			t.Fatal(err)
		}
	}
}

// claimed compares claims and GPUs with the allocations that the API server lists.
func claimed(t *testing.T, ns string) {
	t.Helper()
	same(t, "claims", func(ctx context.Context) (map[string]float64, error) {
		return claimedGPUs(ctx, ns, func(pod, claim, uuid string) string { return pod + " main " + claim + " " + uuid })
	}, func(ctx context.Context) (map[string]float64, error) {
		f, err := scrape(ctx)
		return f.values("container_gpu_allocated", "pod", "container", "claim", "uuid"), err
	})
	same(t, "GPUs of claims in REST", func(ctx context.Context) (map[string]float64, error) {
		return claimedGPUs(ctx, ns, func(pod, _, uuid string) string { return pod + " main " + uuid })
	}, func(ctx context.Context) (map[string]float64, error) {
		return restDevices(ctx, ns, func(d listedDevices) (uuids []string) {
			for _, g := range d.GPUs {
				uuids = append(uuids, g.UUID)
			}
			return uuids
		})
	})
}

// claimedGPUs returns what the API server lists: which pod has which GPU by which claim.
func claimedGPUs(ctx context.Context, ns string, key func(pod, claim, uuid string) string) (map[string]float64, error) {
	var claims resourcev1.ResourceClaimList
	err := running.get(ctx, "/apis/resource.k8s.io/v1/namespaces/"+ns+"/resourceclaims", &claims)
	out := map[string]float64{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		for _, pod := range claim.Status.ReservedFor {
			for _, device := range claim.Status.Allocation.Devices.Results {
				var n int
				if _, err := fmt.Sscanf(device.Device, "gpu-%d", &n); err != nil {
					return nil, err
				}
				out[key(pod.Name, claim.Name, nvml.UUID(n))] = 1
			}
		}
	}
	return out, err
}
