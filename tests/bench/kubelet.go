// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/accelscope/accelscope/tests/fixtures"
)

// A kubelet serves the PodResources API with Kubernetes' types: each container has one HCA.
type kubelet struct {
	podresources.UnimplementedPodResourcesListerServer
	list *podresources.ListPodResourcesResponse
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return k.list, nil
}

// startKubelet serves the pods of m on a socket until stop is called.
func startKubelet(path string, m fixtures.Manifest) (stop func(), err error) {
	list := &podresources.ListPodResourcesResponse{}
	for i, c := range m.Containers {
		if i%containersPerPod == 0 {
			list.PodResources = append(list.PodResources,
				&podresources.PodResources{Namespace: "ml", Name: fmt.Sprintf("train-%d", i/containersPerPod)})
		}
		pod := list.PodResources[len(list.PodResources)-1]
		pod.Containers = append(pod.Containers, &podresources.ContainerResources{
			Name:    fmt.Sprintf("c%d", i%containersPerPod),
			Devices: []*podresources.ContainerDevices{{ResourceName: "rdma/hca_" + c.HCA, DeviceIds: []string{fmt.Sprint(i)}}},
		})
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, &kubelet{list: list})
	go server.Serve(l)
	return server.Stop, nil
}
