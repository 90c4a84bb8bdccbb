// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Used annotations of pods. The kubelet overwrites the first two.
const (
	sourceAnnotation      = "kubernetes.io/config.source" // api, file, http
	hashAnnotation        = "kubernetes.io/config.hash"
	networksAnnotation    = "k8s.v1.cni.cncf.io/network-status"
	networksAnnotationOld = "k8s.v1.cni.cncf.io/networks-status"
)

// Limits of a label's length, and of the networks of a pod.
const (
	maxLabel    = 1024
	maxNetworks = 64
)

// podJSON holds the used fields of a pod (core/v1 Pod).
type podJSON struct {
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		UID         string            `json:"uid"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
		Owners      []ownerJSON       `json:"ownerReferences"`
	} `json:"metadata"`
	Status struct {
		Phase      string          `json:"phase"`
		Containers []containerJSON `json:"containerStatuses"`
		Init       []containerJSON `json:"initContainerStatuses"`
		Ephemeral  []containerJSON `json:"ephemeralContainerStatuses"`
	} `json:"status"`
}

// ownerJSON is an OwnerReference (meta/v1), which the author of a pod can also write.
type ownerJSON struct {
	APIVersion string `json:"apiVersion"` // GROUP/VERSION
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Controller bool   `json:"controller"` // at most one owner has it
}

// containerJSON is a ContainerStatus.
type containerJSON struct {
	Name      string    `json:"name"`
	ID        string    `json:"containerID"` // containerd://ID
	Image     string    `json:"image"`
	ImageID   string    `json:"imageID"`
	Restarts  int64     `json:"restartCount"`
	State     stateJSON `json:"state"`
	LastState stateJSON `json:"lastState"`
	// Kubelets with the feature ResourceHealthStatus set Resources.
	Resources []resourceJSON `json:"allocatedResourcesStatus"`
}

// stateJSON is a ContainerState: one field is set, or no field while waiting.
type stateJSON struct {
	Running *struct {
		Started stamp `json:"startedAt"`
	} `json:"running"`
	Terminated *terminatedJSON `json:"terminated"`
}

type terminatedJSON struct {
	ExitCode int64  `json:"exitCode"`
	Started  stamp  `json:"startedAt"`
	Finished stamp  `json:"finishedAt"`
	ID       string `json:"containerID"`
}

// stamp is a time, or zero if it is invalid. Runtimes report 1970 for never.
type stamp struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (s *stamp) UnmarshalJSON(b []byte) error {
	if s.Time.UnmarshalJSON(b) != nil || s.Unix() <= 0 {
		s.Time = time.Time{}
	}
	return nil
}

func (c *client) pods(ctx context.Context, labels []string) (*facts, error) {
	return c.get(ctx, "/pods", func(body io.Reader) (*facts, error) { return decodePods(body, labels) })
}

// decodePods parses a core/v1 PodList. An invalid pod is left out and reported in the error.
func decodePods(body io.Reader, labels []string) (*facts, error) {
	f := &facts{Snapshot: model.Snapshot{Pods: []model.Pod{}, Containers: []model.Container{}}}
	ended, live := map[podName]struct{}{}, map[podName]struct{}{}
	s := newStream(body)
	listed := false
	err := s.object(func(field string) error {
		if field != "items" {
			return s.skip()
		}
		listed = true
		return s.array(func() error {
			var p podJSON
			if ok, err := s.take(&p); !ok {
				return err
			}
			if m := &p.Metadata; m.UID == "" || m.Namespace == "" || m.Name == "" {
				s.invalid(errors.New("a pod without UID, namespace or name"))
				return nil
			}
			name := podName{p.Metadata.Namespace, p.Metadata.Name}
			if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
				ended[name] = struct{}{}
			} else {
				live[name] = struct{}{}
			}
			pod := p.pod(labels)
			f.Pods = append(f.Pods, pod)
			p.addUnhealthy(f)
			f.Containers = p.appendContainers(f.Containers, &pod)
			if len(f.Pods) > maxFacts || len(f.Containers) > maxFacts || len(f.unhealthy) > maxFacts {
				return errTooMany
			}
			return nil
		})
	})
	for name := range live { // a new pod may have the name of an ended pod
		delete(ended, name)
	}
	f.finished = ended
	return s.result(f, listed, err)
}

func (p *podJSON) pod(labels []string) model.Pod {
	m := &p.Metadata
	pod := model.Pod{UID: m.UID, Namespace: m.Namespace, Name: m.Name}
	// Ignore the hash of a pod from the API: its author could claim the containers of another pod with it.
	if source := m.Annotations[sourceAnnotation]; source == "file" || source == "http" {
		pod.StaticUID = m.Annotations[hashAnnotation]
	}
	for _, l := range labels {
		value, ok := m.Labels[l]
		if !ok {
			value, ok = m.Annotations[l]
		}
		if !ok {
			continue
		}
		if pod.Labels == nil {
			pod.Labels = make(map[string]string, len(labels))
		}
		// A copy, so that the whole annotation is not kept in memory.
		pod.Labels[l] = strings.Clone(strings.ToValidUTF8(value[:min(len(value), maxLabel)], ""))
	}
	pod.Job = model.JobOf(p.controller(), m.Labels, m.Annotations)
	pod.Networks = parseNetworks(cmp.Or(m.Annotations[networksAnnotation], m.Annotations[networksAnnotationOld]))
	return pod
}

func (p *podJSON) controller() (c model.PodController) {
	for _, o := range p.Metadata.Owners {
		if group, _, ok := strings.Cut(o.APIVersion, "/"); ok && o.Controller {
			c = model.PodController{Group: group, Kind: o.Kind, Name: o.Name}
		}
	}
	return c
}

// networkJSON is an entry of the network-status annotation, as specified by the Network Plumbing Working Group.
type networkJSON struct {
	Name      string `json:"name"`
	Interface string `json:"interface"`
	Device    struct {
		Type string `json:"type"` // pci; vdpa and memif are not supported
		PCI  struct {
			Address string `json:"pci-address"`
			RDMA    string `json:"rdma-device"`
		} `json:"pci"`
	} `json:"device-info"`
}

// parseNetworks returns the networks with a PCI device. The CNI or the pod's author writes the annotation: invalid
// entries are left out.
func parseNetworks(status string) []model.PodNetwork {
	if status == "" {
		return nil
	}
	var entries []networkJSON
	_ = json.Unmarshal([]byte(status), &entries) // after an error the parsed entries are used
	var out []model.PodNetwork
	for i := range entries {
		e := &entries[i]
		pci := &e.Device.PCI
		fields := []string{e.Name, e.Interface, pci.Address, pci.RDMA}
		tooLong := slices.ContainsFunc(fields, func(f string) bool { return len(f) > maxLabel })
		if e.Device.Type != "pci" || pci.Address == "" && pci.RDMA == "" || tooLong || len(out) == maxNetworks {
			continue
		}
		out = append(out, model.PodNetwork{
			Name: e.Name, Interface: e.Interface,
			PCIAddress: strings.ToLower(pci.Address), RDMADevice: pci.RDMA,
		})
	}
	return out
}

// appendContainers adds the created containers of the pod. Their PodUID is the UID in their cgroup paths.
func (p *podJSON) appendContainers(to []model.Container, pod *model.Pod) []model.Container {
	for _, list := range [][]containerJSON{p.Status.Init, p.Status.Containers, p.Status.Ephemeral} {
		for i := range list {
			runtime, id, ok := strings.Cut(list[i].ID, "://")
			if !ok || id == "" {
				continue
			}
			c := list[i].container()
			c.ID, c.Runtime = id, runtime
			c.Namespace, c.Pod, c.PodUID = pod.Namespace, pod.Name, cmp.Or(pod.StaticUID, pod.UID)
			c.Labels = pod.Labels
			to = append(to, c)
		}
	}
	return to
}

func (j *containerJSON) container() model.Container {
	c := model.Container{Name: j.Name, Image: j.Image, ImageID: j.ImageID, Status: model.ContainerCreated}
	if j.Restarts >= 0 {
		restarts := uint64(j.Restarts)
		c.Restarts = &restarts
	}
	ended := j.State.Terminated
	if ended == nil && j.State.Running == nil {
		// The container waits for a restart: the id belongs to the ended container.
		if last := j.LastState.Terminated; last != nil && (last.ID == "" || last.ID == j.ID) {
			ended = last
		}
	}
	switch {
	case j.State.Running != nil:
		c.Status, c.Started = model.ContainerRunning, j.State.Running.Started.Time
	case ended != nil:
		c.Status, c.Started, c.Finished = model.ContainerExited, ended.Started.Time, ended.Finished.Time
		if ended.ExitCode >= math.MinInt32 && ended.ExitCode <= math.MaxInt32 {
			code := uint32(ended.ExitCode)
			c.ExitCode = &code
		}
	}
	return c
}
