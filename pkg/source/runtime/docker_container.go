// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"path"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

func dockerInspected(i *dockerInspection, runtime string, labels []string) model.Container {
	restarts := uint64(max(i.RestartCount, 0))
	c := model.Container{
		ID: i.ID, Runtime: runtime, ImageID: i.Image,
		Created: dockerTime(i.Created), Restarts: &restarts, Devices: []string{},
	}
	var all map[string]string
	if i.Config != nil {
		c.Image, all = i.Config.Image, i.Config.Labels
	}
	dockerIdentity(&c, i.Name, all)
	c.Labels = pick(labels, all)
	if i.HostConfig != nil {
		c.AllDevices, c.GPURequests = i.HostConfig.Privileged, dockerGPUs(i.HostConfig.DeviceRequests)
		c.Cgroup = dockerCgroup(i.HostConfig.CgroupParent, i.ID, runtime)
		for _, d := range i.HostConfig.Devices {
			c.Devices = append(c.Devices, d.PathOnHost)
		}
	}
	s := i.State
	if s == nil {
		return c
	}
	c.Status, c.Started = dockerStatus(s.Status), dockerTime(s.StartedAt)
	if s.Health != nil {
		c.Health = dockerHealth(s.Health.Status)
	}
	switch c.Status {
	case model.ContainerRunning, model.ContainerPaused:
		c.PID = s.Pid
	case model.ContainerExited:
		c.Finished = dockerTime(s.FinishedAt)
		if code := uint32(s.ExitCode); s.ExitCode >= 0 && !c.Started.IsZero() {
			c.ExitCode = &code
		}
	}
	return c
}

// dockerCgroup returns the cgroup of a container with a parent, which Docker's cgroupfs driver names after the id. The
// systemd driver (with slices as parents) and podman (with a prefix for the id) need no path.
func dockerCgroup(parent, id, runtime string) string {
	if runtime != model.RuntimeDocker || !path.IsAbs(parent) || strings.HasSuffix(parent, ".slice") {
		return ""
	}
	return path.Join(parent, id)
}

func dockerListed(s *dockerSummary, runtime string, labels []string) model.Container {
	c := model.Container{
		ID: s.ID, Runtime: runtime, Image: s.Image, ImageID: s.ImageID,
		Labels: pick(labels, s.Labels), Status: dockerStatus(s.State),
	}
	if s.Created > 0 {
		c.Created = time.Unix(s.Created, 0)
	}
	name := ""
	for _, n := range s.Names { // an alias of a link is /OTHER/ALIAS
		if strings.LastIndexByte(n, '/') == 0 {
			name = n
		}
	}
	dockerIdentity(&c, name, s.Labels)
	return c
}

// dockerIdentity sets the name of c. It uses the pod labels of dockershim and cri-dockerd only if the name of the
// container has their format, k8s_CONTAINER_POD…: an image can bring labels, but cannot choose the name of a container.
func dockerIdentity(c *model.Container, name string, labels map[string]string) {
	c.Name = strings.TrimPrefix(name, "/")
	pod, namespace := labels["io.kubernetes.pod.name"], labels["io.kubernetes.pod.namespace"]
	if pod == "" || namespace == "" || !strings.HasPrefix(c.Name, "k8s_") {
		return
	}
	c.Namespace, c.Pod, c.PodUID = namespace, pod, labels["io.kubernetes.pod.uid"]
	c.Sandbox = labels["io.kubernetes.docker.type"] == "podsandbox"
	c.Name = labels["io.kubernetes.container.name"]
}

func dockerStatus(s string) model.ContainerStatus {
	switch s {
	case "created", "configured", "initialized":
		return model.ContainerCreated
	case "running", "stopping":
		return model.ContainerRunning
	case "paused":
		return model.ContainerPaused
	case "exited", "restarting", "removing", "dead", "stopped":
		return model.ContainerExited
	}
	return ""
}

func dockerHealth(s string) string {
	switch s {
	case "healthy", "unhealthy", "starting":
		return s
	}
	return ""
}

// dockerTime parses a time. It returns zero if s is not a time.
func dockerTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}
