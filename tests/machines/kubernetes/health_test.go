// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// testHealth has the device plugin report a device of a container as unhealthy. The sensor, which asks only the kubelet, must show the
// health that the API server has in the status of the pod, that the container still has the device, and that fewer are left.
func testHealth(t *testing.T) {
	const ns = "health"
	makeNamespace(t, ns)
	s := startSensor(t)
	plugins := startPlugins(t, s)
	t.Cleanup(func() { removePods(t, ns) })
	apply(t, podYAML(ns, "train-0", `  containers:
  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 2, example.com/vf: 1}}}
`)+podYAML(ns, "train-1", `  containers:
  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 1}}}
`))
	ready(t, ns, "pod/train-0", "pod/train-1")
	allocated(t, ns, s)
	var mine []string // GPUs of train-0
	f, err := scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for key := range f.values("accelscope_workload_device_info", "pod", "resource", "device") {
		if names := strings.Fields(key); names[0] == "train-0" && names[1] == "nvidia.com/gpu" {
			mine = append(mine, names[2])
		}
	}
	if len(mine) != 2 {
		t.Fatalf("train-0 has %q", mine)
	}
	var vfs []string
	for id := range plugins[1].nodes {
		vfs = append(vfs, id)
	}
	rate := func(want float64) {
		t.Helper()
		same(t, "allocated GPUs in percent", func(context.Context) (map[string]float64, error) { return map[string]float64{"": want}, nil },
			func(ctx context.Context) (map[string]float64, error) {
				f, err := scrape(ctx)
				return f.values("node_k8s_gpu_allocation_rate"), err
			})
	}
	check := func(want int) {
		t.Helper()
		same(t, "unhealthy devices", func(ctx context.Context) (map[string]float64, error) {
			got, err := unhealthy(ctx, ns, s)
			if err == nil && len(got) != want {
				err = fmt.Errorf("the API server has %v", got)
			}
			return got, err
		}, func(ctx context.Context) (map[string]float64, error) {
			f, err := scrape(ctx)
			return f.values("accelscope_workload_device_unhealthy", "namespace", "pod", "container", "resource", "device"), err
		})
		allocated(t, ns, s)
	}
	check(0)
	rate(75)
	steady(t, func() {
		plugins[0].setSick(mine[0])
		check(1)
		plugins[1].setSick(vfs...)
		check(2)
		rate(75) // an allocated GPU counts
		plugins[0].setSick(mine[0], idle(t))
		rate(100) // one that is not allocated is not there for pods
		plugins[0].setSick()
		plugins[1].setSick()
		check(0)
		rate(75)
	})
}

// healthOfClaims has the driver report the first GPU of each claim as unhealthy: of one that two pods share, and of one that is made from
// a template.
func healthOfClaims(t *testing.T, namespace string, setSick func(names ...string)) {
	t.Helper()
	check := func(want int) {
		t.Helper()
		same(t, "unhealthy claimed devices", func(ctx context.Context) (map[string]float64, error) {
			pods, err := running.pods(ctx)
			out := map[string]float64{}
			for i := range pods {
				for _, c := range pods[i].Status.ContainerStatuses {
					for _, r := range c.AllocatedResourcesStatus {
						for _, d := range r.Resources {
							// The ID is the CDI name, which ends with the device's name.
							var n int
							_, name, _ := strings.Cut(string(d.ResourceID), "-gpu-")
							if _, err := fmt.Sscan(name, &n); err != nil {
								return nil, fmt.Errorf("%q: %w", d.ResourceID, err)
							}
							if d.Health == corev1.ResourceHealthStatusUnhealthy {
								out[strings.Join([]string{pods[i].Namespace, pods[i].Name, c.Name, nvml.UUID(n)}, " ")] = 1
							}
						}
					}
				}
			}
			if err == nil && len(out) != want {
				err = fmt.Errorf("the API server has %v", out)
			}
			return out, err
		}, func(ctx context.Context) (map[string]float64, error) {
			f, err := scrape(ctx)
			return f.values("accelscope_workload_device_unhealthy", "namespace", "pod", "container", "device"), err
		})
	}
	var list resourcev1.ResourceClaimList
	if err := running.get(t.Context(), "/apis/resource.k8s.io/v1/namespaces/"+namespace+"/resourceclaims", &list); err != nil {
		t.Fatal(err)
	}
	var sick []string
	for i := range list.Items {
		sick = append(sick, list.Items[i].Status.Allocation.Devices.Results[0].Device)
	}
	check(0)
	steady(t, func() {
		setSick(sick...)
		check(3)
		setSick()
		check(0)
	})
}

// idle returns the GPU that no container has.
func idle(t *testing.T) string {
	t.Helper()
	f, err := scrape(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has := f.values("container_gpu_allocated", "uuid")
	for uuid := range f.values("gpu_info", "uuid") {
		if has[uuid] == 0 {
			return uuid
		}
	}
	t.Fatalf("all GPUs are allocated: %v", has)
	return ""
}

// unhealthy returns the unhealthy devices of a namespace as "NAMESPACE POD CONTAINER RESOURCE DEVICE" from the status of its pods.
func unhealthy(ctx context.Context, namespace string, s *sensor) (map[string]float64, error) {
	pods, err := running.pods(ctx)
	out := map[string]float64{}
	for i := range pods {
		if pods[i].Namespace != namespace {
			continue
		}
		for _, c := range pods[i].Status.ContainerStatuses {
			for _, r := range c.AllocatedResourcesStatus {
				for _, d := range r.Resources {
					name := string(d.ResourceID)
					for _, h := range s.hcas { // the plugin's ID is the address of the HCA
						if h.PCIAddress == name {
							name = h.Name
						}
					}
					if d.Health == corev1.ResourceHealthStatusUnhealthy {
						out[strings.Join([]string{namespace, pods[i].Name, c.Name, string(r.Name), name}, " ")] = 1
					}
				}
			}
		}
	}
	return out, err
}
