// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// pods returns the pods that the API server lists.
func (c *cluster) pods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.get(ctx, "/api/v1/pods", &list)
	return list.Items, err
}

// statuses returns the statuses of all containers of a pod.
func statuses(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
}

// running returns the containers that run according to the API server, as "NAMESPACE POD CONTAINER ID".
func (c *cluster) running(ctx context.Context) (map[string]float64, error) {
	pods, err := c.pods(ctx)
	out := map[string]float64{}
	for i := range pods {
		p := &pods[i]
		for _, s := range statuses(p) {
			if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.State.Running != nil {
				out[strings.Join([]string{p.Namespace, p.Name, s.Name, id}, " ")] = 1
			}
		}
	}
	return out, err
}

// inContainers looks for device nodes in a directory of all running containers of a namespace. It returns them as
// "POD CONTAINER NODE", without those that every container has.
func (c *cluster) inContainers(ctx context.Context, namespace, dir, prefix string) (map[string]float64, error) {
	out := map[string]float64{}
	containers, err := c.running(ctx)
	if err != nil {
		return nil, err
	}
	for key := range containers {
		names := strings.Fields(key)
		if names[0] != namespace {
			continue
		}
		text, err := c.kubectl(ctx, "--namespace="+namespace, "exec", names[1], "--container="+names[2], "--", "/bin/busybox", "find", dir)
		if err != nil && !strings.Contains(err.Error(), "No such file") {
			return nil, err
		}
		for node := range strings.Lines(text) {
			if name := filepath.Base(strings.TrimSpace(node)); strings.HasPrefix(name, prefix) {
				out[fmt.Sprint(names[1], " ", names[2], " ", name)] = 1
			}
		}
	}
	return out, nil
}
