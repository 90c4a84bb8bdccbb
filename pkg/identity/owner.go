// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// Owner holds the identity labels of a workload. The cgroups of one workload (the steps of a job, child cgroups) have
// the same Owner. Everything unattributed has the zero Owner. All strings are valid UTF-8.
type Owner struct {
	Workload    string `json:"workload"` // the readable key, never empty for an owner
	Namespace   string `json:"namespace"`
	Pod         string `json:"pod"`
	Container   string `json:"container"`
	ContainerID string `json:"container_id"`
}

// OwnerID is the number of an owner in a Table. It stays the same as long as the owner exists, also when the container,
// pod or unit gets a new name.
type OwnerID int32

// Unattributed is the number of the zero Owner.
const Unattributed OwnerID = 0

// jobKinds are the kinds of jobs by runtime. HTCondor is not here: its workload is a slot, which runs one job after
// another.
var jobKinds = map[string]string{"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF", "flux": "Flux", "oar": "OAR"}

// Info holds the data that accelscope_workload_info shows in addition to the labels of an
// owner.
type Info struct {
	PodUID  string
	Runtime string
	Image   string
	User    string
	Labels  map[string]string // labels of the owner's containers and pod
	Job     model.Job
	// Cgroup is the deepest path that contains all cgroups of the owner.
	Cgroup model.CgroupPath
}

// WorkloadOf returns the label workload of a container: ns/pod/container, docker:NAME.
func WorkloadOf(c *model.Container) string { return ofContainer(c, name{}).Workload }

// name holds the labels and the info of a cgroup or a container.
type name struct {
	Owner
	PodUID, Runtime, Image, User string
	Path                         model.CgroupPath
	Claimed                      bool // see model.Cgroup
}

func ofCgroup(c *model.Cgroup) name {
	return name{
		Owner:  Owner{Workload: valid(c.Workload), ContainerID: valid(c.ContainerID)},
		PodUID: c.PodUID, Runtime: c.Runtime, User: c.User, Path: c.Path, Claimed: c.Claimed,
	}
}

// ofContainer returns the name of a container. The labels come only from the container, so that all its cgroups have
// the same labels; n provides the other fields.
func ofContainer(c *model.Container, n name) name {
	id := valid(c.ID)
	n.Owner = Owner{ContainerID: id}
	n.Image = c.Image
	if n.Runtime == "" {
		n.Runtime = c.Runtime
	}
	if n.Path == "" {
		n.Path = model.CgroupPath(c.Cgroup)
	}
	if n.PodUID == "" {
		n.PodUID = c.PodUID
	}
	switch {
	case c.Pod == "" && c.Name == "":
		n.Workload = valid(c.Runtime + ":" + c.ID[:min(shortID, len(c.ID))])
	case c.Pod == "":
		n.Workload = valid(c.Runtime + ":" + c.Name)
	case c.Sandbox:
		n.Owner = podOwner(c.Namespace, c.Pod)
		n.ContainerID = id
	default:
		n.Namespace, n.Pod, n.Container = valid(c.Namespace), valid(c.Pod), valid(c.Name)
		n.Workload = n.Namespace + "/" + n.Pod + "/" + n.Container
	}
	return n
}

// shortID is how much of the container id the label workload shows if the container has no name.
const shortID = 12

const fullID = 64

// podOwner returns the labels of a pod.
func podOwner(namespace, pod string) Owner {
	namespace, pod = valid(namespace), valid(pod)
	return Owner{Workload: namespace + "/" + pod, Namespace: namespace, Pod: pod}
}

// pod returns the name of the pod of n, or n itself without a pod.
func (n *name) pod() name {
	p := name{PodUID: n.PodUID, Runtime: n.Runtime}
	switch {
	case n.Pod != "":
		p.Owner = podOwner(n.Namespace, n.Pod)
	case n.PodUID != "":
		p.Owner = Owner{Workload: "pod:" + valid(n.PodUID)}
	default:
		return *n
	}
	return p
}

// isJob reports whether only a scheduler names the cgroup.
func (n *name) isJob() bool {
	return jobKinds[n.Runtime] != "" && n.ContainerID == "" && n.PodUID == "" && !n.Claimed
}

// add merges the data of another cgroup or container of the owner. The result does not depend on the order.
func (i *Info) add(n *name) {
	i.PodUID = max(i.PodUID, n.PodUID)
	i.Runtime = max(i.Runtime, n.Runtime)
	i.Image = max(i.Image, n.Image)
	i.User = max(i.User, n.User)
	if i.Cgroup == "" || n.Path == "" { // some containers are known without a cgroup
		i.Cgroup = max(i.Cgroup, n.Path)
	} else {
		i.Cgroup = CommonPath(i.Cgroup, n.Path)
	}
}

// valid makes a name valid UTF-8. Names come from containers. Two names that become equal belong to one owner.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// CommonPath returns the deepest directory that contains both paths.
func CommonPath(a, b model.CgroupPath) model.CgroupPath {
	for !Within(b, a) {
		a = a[:max(strings.LastIndexByte(string(a), '/'), 0)]
	}
	return a
}

// Within reports whether path is dir or lies below it.
func Within(path, dir model.CgroupPath) bool {
	return strings.HasPrefix(string(path), string(dir)) && (len(path) == len(dir) || dir == "" || path[len(dir)] == '/')
}
