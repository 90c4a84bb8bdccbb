// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"cmp"
	"path"
	"strings"

	"github.com/containerd/containerd/api/events"
	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/accelscope/accelscope/pkg/model"
)

// Labels, annotations and extensions that containerd's CRI plugin and other clients use.
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"
	labelKind          = "io.cri-containerd.kind" // sandbox or container

	labelNerdctlName      = "nerdctl/name"
	labelNerdctlNamespace = "nerdctl/namespace"
	labelNerdctlState     = "nerdctl/state-dir" // …/containers/NAMESPACE/ID

	annotationSandboxID     = "io.kubernetes.cri.sandbox-id"
	annotationSandboxName   = "io.kubernetes.cri.sandbox-name"
	annotationSandboxNS     = "io.kubernetes.cri.sandbox-namespace"
	annotationSandboxUID    = "io.kubernetes.cri.sandbox-uid"
	annotationContainerName = "io.kubernetes.cri.container-name"
	annotationContainerType = "io.kubernetes.cri.container-type"
	annotationImageName     = "io.kubernetes.cri.image-name"

	// Names in containerd 1.6 to 2.x.
	extensionContainer = "io.cri-containerd.container.metadata"
	extensionSandbox   = "io.cri-containerd.sandbox.metadata"
)

type record struct {
	model.Container
	sandbox string
}

// qualifiedID returns the id of a container in the model. Ids that clients choose are unique only within their
// namespace, which is added.
func qualifiedID(ns, id string) string {
	if isID(id) || ns == "default" {
		return id
	}
	return ns + "/" + id
}

// qualifiedName adds the namespace to a name, except the usual namespaces.
func qualifiedName(ns, name string) string {
	if ns == "default" || ns == "k8s.io" {
		return name
	}
	return ns + "/" + name
}

// nameOf returns the name of a container without a pod: the given name, or the id unless it is generated.
func nameOf(ns, given, id string) string {
	switch {
	case given != "":
		return qualifiedName(ns, given)
	case isID(id):
		return ""
	}
	return qualifiedName(ns, id)
}

// newRecord converts a container of containerd. Clients copy the labels of the image to the container, so labels do not
// prove its pod. The record of the CRI plugin, an extension, does: an image cannot contain it. Without this record, a
// container of the namespace k8s.io belongs to the pod in its labels if its cgroup is in this pod's cgroup, which only
// root can choose.
func newRecord(ns string, m *containers.Container, labels []string) *record {
	s := parseSpec(m.GetSpec().GetValue())
	a := s.Annotations
	r := &record{Container: model.Container{
		ID:      qualifiedID(ns, m.GetID()),
		Runtime: model.RuntimeContainerd,
		Image:   cmp.Or(a[annotationImageName], m.GetImage()),
		Cgroup:  s.cgroup(),
		Status:  model.ContainerCreated,
		Created: moment(m.GetCreatedAt()),
	}}
	if m.GetSpec() != nil {
		r.Devices, r.AllDevices, r.GPURequests = s.devices(), s.allDevices(), s.gpuRequests()
	}
	meta, byCRI := parseCRIRecord(m.GetExtensions()[extensionSandbox].GetValue())
	if r.Sandbox = byCRI; !byCRI {
		meta, byCRI = parseCRIRecord(m.GetExtensions()[extensionContainer].GetValue())
	}
	switch l := m.GetLabels(); {
	case byCRI:
		config := &meta.Metadata.Config
		r.setPod(config.Labels, a)
		if r.Sandbox {
			pod := &config.Metadata
			r.Pod, r.Namespace, r.PodUID = cmp.Or(pod.Name, r.Pod), cmp.Or(pod.Namespace, r.Namespace), cmp.Or(pod.UID, r.PodUID)
		} else {
			restarts := uint64(config.Metadata.Attempt)
			r.Restarts, r.ImageID = &restarts, meta.Metadata.ImageRef
			r.Name = cmp.Or(config.Metadata.Name, r.Name)
			r.GPURequests = config.gpuRequests(cdiAnnotated(r.GPURequests, config.Annotations))
		}
		r.Labels = pick(labels, a, config.Annotations, config.Labels)
	case ns == "k8s.io" && s.inPod(cmp.Or(l[labelPodUID], a[annotationSandboxUID])):
		r.Sandbox = cmp.Or(l[labelKind], a[annotationContainerType]) == "sandbox"
		r.setPod(l, a)
		r.Labels = pick(labels, a, l)
	default:
		r.Name, r.Labels = nameOf(ns, nerdctlName(ns, m), m.GetID()), pick(labels, a, l)
	}
	if r.ImageID == "" && strings.HasPrefix(m.GetImage(), "sha256:") {
		r.ImageID = m.GetImage()
	}
	return r
}

// setPod sets the names of the pod from labels and annotations that do not come from an image.
func (r *record) setPod(l, a map[string]string) {
	r.sandbox = a[annotationSandboxID]
	r.Pod = cmp.Or(l[labelPodName], a[annotationSandboxName])
	r.Namespace = cmp.Or(l[labelPodNamespace], a[annotationSandboxNS])
	r.PodUID = cmp.Or(l[labelPodUID], a[annotationSandboxUID])
	if !r.Sandbox {
		r.Name = cmp.Or(l[labelContainerName], a[annotationContainerName])
	}
}

// nerdctlName returns the name that nerdctl gave a container, or "". nerdctl's labels contain the id of the container.
// An image cannot contain the id, unless the user chose it beforehand.
func nerdctlName(ns string, m *containers.Container) string {
	l := m.GetLabels()
	if !isID(m.GetID()) || l[labelNerdctlNamespace] != ns || path.Base(l[labelNerdctlState]) != m.GetID() {
		return ""
	}
	return l[labelNerdctlName]
}

func (r *record) setTask(t *task.Process, procfs string) {
	r.Status, r.PID = taskStatus[t.GetStatus()], int(t.GetPid())
	switch r.Status {
	case model.ContainerRunning, model.ContainerPaused:
		r.Started = processStart(procfs, r.PID)
	case model.ContainerExited:
		code := t.GetExitStatus()
		r.ExitCode, r.Finished = &code, moment(t.GetExitedAt())
	}
}

// parseEvent parses an event of containerd. The id of the container is the id within the namespace. It returns false
// for unused events.
func parseEvent(env *types.Envelope) (model.Event, bool) {
	e := model.Event{Time: moment(env.GetTimestamp())}
	body, err := env.GetEvent().UnmarshalNew()
	if err != nil {
		return e, false
	}
	c := &e.Container
	switch b := body.(type) {
	case *events.ContainerCreate:
		c.ID, c.Image, e.Type = b.GetID(), b.GetImage(), model.EventCreate
	case *events.ContainerUpdate: // reported as a second create event, which updates the changed fields
		c.ID, c.Image, e.Type = b.GetID(), b.GetImage(), model.EventCreate
	case *events.ContainerDelete:
		c.ID, e.Type = b.GetID(), model.EventDelete
	case *events.TaskStart:
		c.ID, c.PID, c.Started, e.Type = b.GetContainerID(), int(b.GetPid()), e.Time, model.EventStart
	case *events.TaskExit:
		parseExit(&e, b)
	case *events.TaskDelete: // has the same fields, in case the exit was missed
		parseExit(&e, b)
	case *events.TaskOOM:
		c.ID, e.Type = b.GetContainerID(), model.EventOOM
	case *events.TaskPaused:
		c.ID, e.Type = b.GetContainerID(), model.EventPause
	case *events.TaskResumed:
		c.ID, e.Type = b.GetContainerID(), model.EventResume
	}
	return e, c.ID != "" && e.Type != ""
}

// exited is the interface that TaskExit and TaskDelete share.
type exited interface {
	GetContainerID() string
	GetID() string
	GetPid() uint32
	GetExitStatus() uint32
	GetExitedAt() *timestamppb.Timestamp
}

// parseExit parses the end of the first process of a container. It ignores other processes, which have their own ids.
func parseExit(e *model.Event, x exited) {
	if x.GetID() != "" && x.GetID() != x.GetContainerID() {
		return
	}
	code := x.GetExitStatus()
	c := &e.Container
	c.ID, c.PID, c.Finished = x.GetContainerID(), int(x.GetPid()), moment(x.GetExitedAt())
	e.Type, e.ExitCode = model.EventExit, &code
}
