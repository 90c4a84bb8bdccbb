// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// nobody is the index of the zero Owner.
const nobody = 0

// owners numbers the owners in the order in which their cgroups are asked for.
type owners struct {
	entities map[uint64]model.Entity
	tasks    map[int]uint64

	list     []Owner
	infos    []Info // infos[i] belongs to list[i+1]
	byCgroup map[uint64]int
	byOwner  map[Owner]int
}

func newOwners(s model.Snapshot) *owners {
	return &owners{
		entities: s.Entities,
		tasks:    s.Tasks,
		list:     []Owner{{}},
		byCgroup: make(map[uint64]int, len(s.Entities)),
		byOwner:  make(map[Owner]int, len(s.Entities)),
	}
}

func (o *owners) ofCgroup(id uint64) int {
	n, ok := o.byCgroup[id]
	if !ok {
		n = o.number(o.entities[id])
		o.byCgroup[id] = n
	}
	return n
}

func (o *owners) ofPID(pid int) int {
	id, ok := o.tasks[pid]
	if !ok {
		return nobody
	}
	return o.ofCgroup(id)
}

func (o *owners) number(e model.Entity) int {
	owner := OwnerOf(e)
	if owner == (Owner{}) {
		return nobody
	}
	n, ok := o.byOwner[owner]
	if !ok {
		n = len(o.list)
		o.byOwner[owner] = n
		o.list = append(o.list, owner)
		o.infos = append(o.infos, Info{
			Owner: n, PodUID: e.PodUID, Runtime: e.Runtime, Image: e.Image, User: e.User, Cgroup: e.Cgroup,
		})
		return n
	}
	info := &o.infos[n-1]
	info.PodUID = max(info.PodUID, e.PodUID)
	info.Runtime = max(info.Runtime, e.Runtime)
	info.Image = max(info.Image, e.Image)
	info.User = max(info.User, e.User)
	if info.Cgroup == "" || e.Cgroup == "" { // a container may be known without its cgroup
		info.Cgroup = max(info.Cgroup, e.Cgroup)
	} else {
		info.Cgroup = commonPath(info.Cgroup, e.Cgroup)
	}
	return n
}

// OwnerOf is the identity of e; that of an entity without a workload is nobody's.
func OwnerOf(e model.Entity) Owner {
	if e.Workload == "" {
		return Owner{}
	}
	// Names come from containers. Made valid here and not when they are
	// shown, two that become the same are one owner and not a duplicate.
	return Owner{
		Workload:    valid(e.Workload),
		Namespace:   valid(e.Namespace),
		Pod:         valid(e.Pod),
		Container:   valid(e.Container),
		ContainerID: valid(e.ContainerID),
	}
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// commonPath is the deepest directory that holds both paths.
func commonPath(a, b string) string {
	for !within(b, a) {
		a = a[:max(strings.LastIndexByte(a, '/'), 0)]
	}
	return a
}

// within says whether path is dir or lies below it.
func within(path, dir string) bool {
	return strings.HasPrefix(path, dir) && (len(path) == len(dir) || dir == "" || path[len(dir)] == '/')
}
