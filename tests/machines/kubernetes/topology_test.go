// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// testTopology turns the managers of CPUs and of the topology on. The kubelet then admits a container only if a NUMA node has all of its GPUs,
// and gives it CPUs of its own. The kubelet, the kernel and the sensor must agree, and a pod that the kubelet refuses must have nothing.
//
// One of the GPUs is on a NUMA node that the machine does not have. On a machine with one node the kubelet does not choose among devices by
// their node.
func testTopology(t *testing.T) {
	const ns = "topology"
	makeNamespace(t, ns)
	s := startSensor(t)
	plugins := startPlugins(t, s)
	const nowhere = 63
	plugins[0].numa = map[string]int64{}
	for n := range gpus {
		plugins[0].numa[nvml.UUID(n)] = 0
	}
	plugins[0].numa[nvml.UUID(gpus-1)] = nowhere
	manage := func(ctx context.Context, lines ...string) { // the kubelet does not start with the state of another policy
		t.Helper()
		running.kubelet.stop(syscall.SIGTERM)
		for _, p := range plugins {
			p.stop()
		}
		if err := os.Remove("/var/lib/kubelet/cpu_manager_state"); err != nil {
			t.Error(err)
		}
		if err := running.startKubelet(ctx, lines...); err != nil {
			t.Fatal(err)
		}
		for _, p := range plugins {
			if err := p.start(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		removePods(t, ns)
		manage(context.Background())
	})
	manage(t.Context(), "cpuManagerPolicy: static", "topologyManagerPolicy: single-numa-node", `reservedSystemCPUs: "0"`)

	until(t, "the kubelet has the devices", func(ctx context.Context) error { // else it refuses the pod for another reason
		return podResources(func(c podresourcesv1.PodResourcesListerClient) error {
			devices := 0
			r, err := c.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{})
			for _, d := range r.GetDevices() {
				devices += len(d.GetDeviceIds())
			}
			if want := gpus + len(plugins[1].nodes); err == nil && devices != want {
				err = fmt.Errorf("%d of %d", devices, want)
			}
			return err
		})
	})

	const main = "  containers:\n  - {name: main, IMAGE, SLEEP, resources: {limits: {%s}}}\n"
	apply(t, podYAML(ns, "far", fmt.Sprintf(main, fmt.Sprint("nvidia.com/gpu: ", gpus)))) // which no node has
	until(t, "the kubelet refuses the pod", func(ctx context.Context) error {
		pods, err := running.pods(ctx)
		for i := range pods {
			if p := &pods[i]; p.Namespace == ns && p.Name == "far" && p.Status.Reason == "TopologyAffinityError" {
				return nil
			}
		}
		events, _ := running.kubectl(ctx, "--namespace="+ns, "get", "events", "--sort-by=.lastTimestamp")
		return fmt.Errorf("it is not refused: %w\n%s", errors.Join(os.ErrNotExist, err), events)
	})
	apply(t, podYAML(ns, "near", fmt.Sprintf(main, "cpu: 1, memory: 64Mi, nvidia.com/gpu: 2"))+
		podYAML(ns, "shares", "  containers:\n  - {name: main, IMAGE, SLEEP}\n"))
	ready(t, ns, "pod/near", "pod/shares")
	same(t, "containers", running.running, shown)
	allocated(t, ns, s)
	resources(t, ns, plugins[0].numa)
}

// podResources calls the kubelet's API of device allocations.
func podResources(call func(podresourcesv1.PodResourcesListerClient) error) error {
	conn, err := grpc.NewClient("unix:///var/lib/kubelet/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	return errors.Join(call(podresourcesv1.NewPodResourcesListerClient(conn)), conn.Close())
}

// resources compares what the kubelet gives to containers of a namespace with the CPUs that the kernel lets their processes use, with the
// NUMA nodes of the plugin, and with the GPUs that the sensor shows.
func resources(t *testing.T, namespace string, numa map[string]int64) {
	t.Helper()
	var list *podresourcesv1.ListPodResourcesResponse
	if err := podResources(func(c podresourcesv1.PodResourcesListerClient) (err error) {
		list, err = c.List(t.Context(), &podresourcesv1.ListPodResourcesRequest{})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	given, cpus := map[string]float64{}, map[string]string{}
	for _, pod := range list.GetPodResources() {
		if pod.GetNamespace() != namespace {
			continue
		}
		for _, c := range pod.GetContainers() {
			name := pod.GetName() + " " + c.GetName()
			if ids := c.GetCpuIds(); len(ids) > 0 {
				cpus[name] = strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ids)), ","), "[]")
			}
			for _, d := range c.GetDevices() {
				for _, id := range d.GetDeviceIds() {
					given[name+" "+id] = 1
					if nodes := d.GetTopology().GetNodes(); len(nodes) != 1 || nodes[0].GetID() != numa[id] {
						t.Errorf("%s: %s has %v, the plugin reports the NUMA node %d", name, id, nodes, numa[id])
					}
				}
			}
		}
	}
	if len(given) != 2 || len(cpus) != 1 {
		t.Errorf("GPUs %v, CPUs %v", given, cpus)
	}
	for name, want := range cpus {
		pod, container, _ := strings.Cut(name, " ")
		out, err := running.kubectl(t.Context(), "--namespace="+namespace, "exec", pod, "--container="+container, "--",
			"/bin/busybox", "grep", "Cpus_allowed_list", "/proc/1/status")
		if got := strings.Fields(out); err != nil || len(got) != 2 || got[1] != want {
			t.Errorf("%s: %v: the kernel allows the CPUs %q, the kubelet has %q", name, err, got, want)
		}
	}
	t.Logf("CPUs %v, GPUs %v", cpus, slices.Sorted(maps.Keys(given)))
	same(t, "GPUs of PodResources", func(context.Context) (map[string]float64, error) { return given, nil },
		func(ctx context.Context) (map[string]float64, error) {
			f, err := scrape(ctx)
			out := map[string]float64{}
			for key, v := range f.values("container_gpu_allocated", "namespace", "pod", "container", "uuid") {
				if name, ok := strings.CutPrefix(key, namespace+" "); ok {
					out[name] = v
				}
			}
			return out, err
		})
}
