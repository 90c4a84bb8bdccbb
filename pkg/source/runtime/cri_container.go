// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"encoding/json"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/accelscope/accelscope/pkg/model"
)

// A podOf is a sandbox in a list or in an event.
type podOf interface {
	GetId() string
	GetMetadata() *api.PodSandboxMetadata
	GetLabels() map[string]string
	GetAnnotations() map[string]string
	GetCreatedAt() int64
}

// sandbox returns the container that holds the namespaces of a pod.
func (d *criDriver) sandbox(p podOf, state api.PodSandboxState) model.Container {
	m := p.GetMetadata()
	c := model.Container{
		ID: p.GetId(), Runtime: d.runtime, Sandbox: true,
		Pod: m.GetName(), Namespace: m.GetNamespace(), PodUID: m.GetUid(),
		Labels:  pick(d.labels, p.GetAnnotations(), p.GetLabels()),
		Status:  model.ContainerExited,
		Created: nanos(p.GetCreatedAt()),
	}
	if state == api.PodSandboxState_SANDBOX_READY {
		c.Status = model.ContainerRunning
	}
	return c
}

// A criNamed is a container in a list or in a status.
type criNamed interface {
	GetId() string
	GetMetadata() *api.ContainerMetadata
	GetImage() *api.ImageSpec
	GetImageRef() string
	GetLabels() map[string]string
	GetAnnotations() map[string]string
	GetState() api.ContainerState
	GetCreatedAt() int64
}

// name adds the common fields of lists and statuses to c. An unknown pod has no metadata. The pod's labels override the
// container's.
func (d *criDriver) name(c *model.Container, m criNamed, pod podOf) {
	restarts := uint64(m.GetMetadata().GetAttempt())
	c.ID, c.Runtime, c.Restarts = m.GetId(), d.runtime, &restarts
	c.Name, c.Created, c.ImageID = m.GetMetadata().GetName(), nanos(m.GetCreatedAt()), m.GetImageRef()
	c.Image = cmp.Or(m.GetImage().GetUserSpecifiedImage(), m.GetImage().GetImage())
	l := m.GetLabels()
	c.Pod, c.Namespace, c.PodUID = l[labelPodName], l[labelPodNamespace], l[labelPodUID]
	c.Labels = pick(d.labels, m.GetAnnotations(), l)
	if p := pod.GetMetadata(); p != nil {
		c.Pod, c.Namespace, c.PodUID = p.GetName(), p.GetNamespace(), p.GetUid()
		c.Labels = pick(d.labels, m.GetAnnotations(), l, pod.GetAnnotations(), pod.GetLabels())
	}
	c.Status = map[api.ContainerState]model.ContainerStatus{
		api.ContainerState_CONTAINER_CREATED: model.ContainerCreated,
		api.ContainerState_CONTAINER_RUNNING: model.ContainerRunning,
		api.ContainerState_CONTAINER_EXITED:  model.ContainerExited,
	}[m.GetState()]
}

// times returns the start, the end and the exit code of a status.
func times(s *api.ContainerStatus) model.Container {
	c := model.Container{Started: nanos(s.GetStartedAt()), Finished: nanos(s.GetFinishedAt())}
	if s.GetState() == api.ContainerState_CONTAINER_EXITED {
		code := uint32(s.GetExitCode())
		c.ExitCode = &code
	}
	return c
}

// parseInfo adds the fields of the verbose answer, in the format of containerd and CRI-O.
func parseInfo(c *model.Container, b []byte) {
	var info struct {
		PID         int             `json:"pid"`
		RuntimeSpec json.RawMessage `json:"runtimeSpec"`
		Config      struct {        // containerd's
			Annotations map[string]string `json:"annotations"`
			criDevices
		} `json:"config"`
	}
	if len(b) == 0 || len(b) > maxSpec || json.Unmarshal(b, &info) != nil {
		return
	}
	c.PID = info.PID
	if len(info.RuntimeSpec) > 0 {
		s := parseSpec(info.RuntimeSpec)
		c.Devices, c.Cgroup = s.devices(), s.cgroup()
		c.AllDevices, c.GPURequests = s.allDevices(), s.gpuRequests()
	}
	c.GPURequests = info.Config.gpuRequests(cdiAnnotated(c.GPURequests, info.Config.Annotations))
}

// nanos converts a time in nanoseconds since 1970 that may be unset.
func nanos(n int64) time.Time {
	if n <= 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}
