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

// Where containerd's CRI plugin and its other clients keep what they know.
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

	// Containerd 1.6 to 2.x name them so.
	extensionContainer = "io.cri-containerd.container.metadata"
	extensionSandbox   = "io.cri-containerd.sandbox.metadata"
)

// record is a container as containerd knows it, and the sandbox that it is in.
type record struct {
	model.Container
	sandbox string
}

// tellID is the id of a container for others. Ids that clients choose are told
// with their namespace, since another one may have the same.
func tellID(ns, id string) string {
	if isID(id) || ns == "default" {
		return id
	}
	return ns + "/" + id
}

// tellName is a name that is told with its namespace, unless that is one of the
// usual ones.
func tellName(ns, name string) string {
	if ns == "default" || ns == "k8s.io" {
		return name
	}
	return ns + "/" + name
}

// nameOf is the name of a container that is in no pod: the one it was given,
// else its id. Of an id that nobody chose its first digits say as much.
func nameOf(ns, given, id string) string {
	switch {
	case given != "":
		return tellName(ns, given)
	case isID(id):
		return ""
	}
	return tellName(ns, id)
}

// newRecord reads what containerd keeps of a container. Its clients copy the
// labels of the image to the container, so the labels do not tell whose it is:
// that is read from the record of the CRI plugin, an extension, which no image
// brings. Without a record a container of the namespace k8s.io is in the pod
// that its labels name if its cgroup is that pod's, where only root puts it.
func newRecord(ns string, m *containers.Container, labels []string) *record {
	s := parseSpec(m.GetSpec().GetValue())
	a := s.Annotations
	r := &record{Container: model.Container{
		ID:      tellID(ns, m.GetID()),
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

// setPod takes the names of the pod from labels and annotations that are not
// an image's.
func (r *record) setPod(l, a map[string]string) {
	r.sandbox = a[annotationSandboxID]
	r.Pod = first(l[labelPodName], a[annotationSandboxName])
	r.Namespace = first(l[labelPodNamespace], a[annotationSandboxNS])
	r.PodUID = first(l[labelPodUID], a[annotationSandboxUID])
	if !r.Sandbox {
		r.Name = first(l[labelContainerName], a[annotationContainerName])
	}
}

// nerdctlName is the name that nerdctl gave a container; empty of one that is
// not nerdctl's. Its own labels have the container's id in them, which an image
// cannot know, unless somebody chose that id beforehand.
func nerdctlName(ns string, m *containers.Container) string {
	l := m.GetLabels()
	if !isID(m.GetID()) || l[labelNerdctlNamespace] != ns || path.Base(l[labelNerdctlState]) != m.GetID() {
		return ""
	}
	return l[labelNerdctlName]
}

// first is the first value that is not empty.
func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// setTask adds what the container's task does.
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

// parseEvent reads an event; false for those that do not concern us.
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
	case *events.ContainerUpdate: // to what is known already, creation adds what changed
		h.id, h.image, h.event.Type = e.GetID(), e.GetImage(), model.EventCreate
	case *events.ContainerDelete:
		h.id, h.event.Type = e.GetID(), model.EventDelete
	case *events.TaskStart:
		h.id, h.pid, h.started, h.event.Type = e.GetContainerID(), int(e.GetPid()), at, model.EventStart
	case *events.TaskExit:
		h.exit(e)
	case *events.TaskDelete: // says the same, should the exit have been missed
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

// exited is what TaskExit and TaskDelete have in common.
type exited interface {
	GetContainerID() string
	GetID() string
	GetPid() uint32
	GetExitStatus() uint32
	GetExitedAt() *timestamppb.Timestamp
}

// exit is the end of the first process of a container; that of another one,
// whose id is not the container's, concerns nobody.
func (h *happening) exit(e exited) {
	if e.GetID() != "" && e.GetID() != e.GetContainerID() {
		return
	}
	code := e.GetExitStatus()
	h.id, h.pid, h.event.Type = e.GetContainerID(), int(e.GetPid()), model.EventExit
	h.finished = moment(e.GetExitedAt())
	h.event.ExitCode = &code
}
