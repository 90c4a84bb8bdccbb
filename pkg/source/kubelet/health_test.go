// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// TestUnhealthyDevices: the health in the status of a pod applies to its allocated devices, of a plugin and of claims
// with and without CDI devices. tests/machines/kubernetes has a real kubelet.
func TestUnhealthyDevices(t *testing.T) {
	const claimed, other = "gpu.nvidia.com/claim=a-gpu-3", "gpu.nvidia.com/claim=a-gpu-4"
	list := claims(
		resource("gpu.nvidia.com", "gpu-3", claimed), resource("gpu.nvidia.com", "gpu-4", claimed, other), // as in Kubernetes 1.35
		resource("dra.net", "pci-0000-8a-00-0"),
	)
	answer := list.list
	list.list = func(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		r, err := answer(ctx)
		r.PodResources[0].Containers[0].Devices = []*podresourcesv1.ContainerDevices{
			{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-0", "GPU-1"}}, {ResourceName: "example.com/gpu", DeviceIds: []string{"GPU-1"}},
		}
		return r, err
	}
	health := func(id, health string) corev1.ResourceHealth {
		return corev1.ResourceHealth{ResourceID: corev1.ResourceID(id), Health: corev1.ResourceHealthStatus(health)}
	}
	pods := onePod("train")
	pods.Items[0].Status.ContainerStatuses[0].AllocatedResourcesStatus = []corev1.ResourceStatus{
		{Name: "nvidia.com/gpu", Resources: []corev1.ResourceHealth{health("GPU-0", "Healthy"), health("GPU-1", "Unhealthy")}},
		{Name: "example.com/gpu", Resources: []corev1.ResourceHealth{health("GPU-1", "Unknown")}},
		{Name: "claim:gpus/a", Resources: []corev1.ResourceHealth{health(claimed, "Unhealthy"), health(other, "Healthy")}},
		{Name: "claim:net", Resources: []corev1.ResourceHealth{health("dra.net/node7/pci-0000-8a-00-0", "Unhealthy")}},
	}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveSocket(t, socket, list)
	api := serveAPI(t, pods, oneSummary(1))
	o := api.options()
	o.Socket = socket
	s := open(t, o)
	read := func() string {
		t.Helper()
		got, _ := s.Read(limit(t, time.Minute)) // there are no CDI specifications
		var unhealthy []string
		for _, a := range got.Allocations {
			if a.Unhealthy {
				unhealthy = append(unhealthy, a.Resource+"/"+a.ID)
			}
		}
		return strings.Join(unhealthy, " ")
	}
	want := "nvidia.com/gpu/GPU-1 gpu.nvidia.com/node7/gpu-3 dra.net/node7/pci-0000-8a-00-0"
	for range 2 { // kept answers do not contain the health
		if d := cmp.Diff(want, read()); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	}
}
