// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"path"
	"strings"
	"time"

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

// record is a container of containerd, and its sandbox.
type record struct {
	model.Container
	sandbox string
}

// qualifiedID returns the id of a container in the model. It adds the namespace to ids that clients
// choose, because they are unique only within it.
func qualifiedID(ns, id string) string {
	if isID(id) || ns == "default" {
		return id
	}
	return ns + "/" + id
}

// qualifiedName adds the namespace to a name, unless it is one of the usual namespaces.
func qualifiedName(ns, name string) string {
	if ns == "default" || ns == "k8s.io" {
		return name
	}
	return ns + "/" + name
}

// nameOf returns the name of a container without a pod: the given name, else its id. A generated id
// is no name.
func nameOf(ns, given, id string) string {
	switch {
	case given != "":
		return qualifiedName(ns, given)
	case isID(id):
		return ""
	}
	return qualifiedName(ns, id)
}

// newRecord converts a container of containerd. Its clients copy the labels of the image to the
// container, so labels do not prove which pod it belongs to. The record of the CRI plugin, an
// extension, does: an image cannot contain it. Without that record, a container of the namespace
// k8s.io belongs to the pod that its labels name if its cgroup is in that pod's cgroup, which only
// root can choose.
func newRecord(ns string, m *containers.Container, labels []string) *record {
	s := parseSpec(m.GetSpec().GetValue())
	a := s.Annotations
	r := &record{Container: model.Container{
		ID:      qualifiedID(ns, m.GetID()),
		Runtime: model.RuntimeContainerd,
		Image:   first(a[annotationImageName], m.GetImage()),
		Cgroup:  s.cgroup(m.GetID()),
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
			r.Pod, r.Namespace, r.PodUID = first(pod.Name, r.Pod), first(pod.Namespace, r.Namespace), first(pod.UID, r.PodUID)
		} else {
			restarts := uint64(config.Metadata.Attempt)
			r.Restarts, r.ImageID = &restarts, meta.Metadata.ImageRef
			r.Name = first(config.Metadata.Name, r.Name)
			r.GPURequests = config.gpuRequests(cdiAnnotated(r.GPURequests, config.Annotations))
		}
		r.Labels = pick(labels, a, config.Annotations, config.Labels)
	case ns == "k8s.io" && s.inPod(first(l[labelPodUID], a[annotationSandboxUID])):
		r.Sandbox = first(l[labelKind], a[annotationContainerType]) == "sandbox"
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
	r.Pod = first(l[labelPodName], a[annotationSandboxName])
	r.Namespace = first(l[labelPodNamespace], a[annotationSandboxNS])
	r.PodUID = first(l[labelPodUID], a[annotationSandboxUID])
	if !r.Sandbox {
		r.Name = first(l[labelContainerName], a[annotationContainerName])
	}
}

// nerdctlName returns the name that nerdctl gave a container, empty if nerdctl did not create it.
// nerdctl's labels contain the id of the container. An image cannot contain it, unless the user
// chose the id beforehand.
func nerdctlName(ns string, m *containers.Container) string {
	l := m.GetLabels()
	if !isID(m.GetID()) || l[labelNerdctlNamespace] != ns || path.Base(l[labelNerdctlState]) != m.GetID() {
		return ""
	}
	return l[labelNerdctlName]
}

// first returns the first value that is not empty.
func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// setTask sets the state of the container from its task.
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

// happening is one event of containerd.
type happening struct {
	id, image         string
	pid               int
	started, finished time.Time
	event             model.Event // without its container
}

// parseEvent parses an event. It returns false for events that are not used.
func parseEvent(env *types.Envelope) (happening, bool) {
	at := moment(env.GetTimestamp())
	h := happening{event: model.Event{Time: at}}
	body, err := env.GetEvent().UnmarshalNew()
	if err != nil {
		return h, false
	}
	switch e := body.(type) {
	case *events.ContainerCreate:
		h.id, h.image, h.event.Type = e.GetID(), e.GetImage(), model.EventCreate
	case *events.ContainerUpdate: // reported as a second create event, which updates the fields that changed
		h.id, h.image, h.event.Type = e.GetID(), e.GetImage(), model.EventCreate
	case *events.ContainerDelete:
		h.id, h.event.Type = e.GetID(), model.EventDelete
	case *events.TaskStart:
		h.id, h.pid, h.started, h.event.Type = e.GetContainerID(), int(e.GetPid()), at, model.EventStart
	case *events.TaskExit:
		h.exit(e)
	case *events.TaskDelete: // contains the same fields, in case the exit was missed
		h.exit(e)
	case *events.TaskOOM:
		h.id, h.event.Type = e.GetContainerID(), model.EventOOM
	case *events.TaskPaused:
		h.id, h.event.Type = e.GetContainerID(), model.EventPause
	case *events.TaskResumed:
		h.id, h.event.Type = e.GetContainerID(), model.EventResume
	}
	return h, h.id != "" && h.event.Type != ""
}

// exited is the interface that TaskExit and TaskDelete share.
type exited interface {
	GetContainerID() string
	GetID() string
	GetPid() uint32
	GetExitStatus() uint32
	GetExitedAt() *timestamppb.Timestamp
}

// exit parses the end of the first process of a container. It ignores other processes, which have
// ids of their own.
func (h *happening) exit(e exited) {
	if e.GetID() != "" && e.GetID() != e.GetContainerID() {
		return
	}
	code := e.GetExitStatus()
	h.id, h.pid, h.event.Type = e.GetContainerID(), int(e.GetPid()), model.EventExit
	h.finished = moment(e.GetExitedAt())
	h.event.ExitCode = &code
}
