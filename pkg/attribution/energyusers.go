// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// energyUsers returns the users of a GPU in the interval that ends now: the owners of processes, the owners to whom the
// GPU is allocated, and such owners in the interval before, because the counter may be one round older than the list of
// processes. It remembers users and uses for the next interval.
func (o *users) energyUsers(
	e *gpuEnergy, g *model.GPU, s *model.Snapshot, uses []*model.GPUUse, parts energyParts,
) []energyUser {
	list := userList{at: map[identity.OwnerID]int{}}
	latest := make(map[useKey]model.GPUUse, len(uses))
	for _, now := range uses {
		k := useKey{now.Instance, now.Cgroup}
		last := e.uses[k]
		if now.Rounds < last.Rounds {
			last = model.GPUUse{}
		}
		latest[k] = *now
		if now.Rounds == last.Rounds {
			continue
		}
		busy, unknown := (now.Busy - last.Busy).Seconds(), now.Unknown > last.Unknown
		if now.Instance != "" {
			parts.add(now.Instance, busy, unknown)
		} else if len(parts) == 0 || now.Cgroup == 0 {
			u := list.user(o.Of(now.Cgroup))
			u.busy, u.unknown = u.busy+busy, u.unknown || unknown
		}
	}
	e.uses = latest
	if len(parts) == 0 {
		o.holders(&list, g, s)
	}
	for i := range parts {
		o.addPart(&list, &parts[i], s)
	}
	before := e.users
	e.users = make(map[identity.OwnerID]bool, len(list.users))
	for _, u := range list.users {
		e.users[u.owner] = u.held > 0
	}
	for id, held := range before {
		if u := list.user(id); held && u.held == 0 && len(parts) == 0 {
			u.held = 1
		}
	}
	return list.users
}

// holders adds the owners to whom a GPU is allocated, or partitions of it. Nobody holds the other partitions.
func (o *users) holders(list *userList, g *model.GPU, s *model.Snapshot) {
	free := 0
	for i := range s.GPUs {
		if isPart(&s.GPUs[i], g) {
			free++
		}
	}
	for i := range o.a.Assigned {
		a := &o.a.Assigned[i]
		switch {
		case a.Allocated == "" || a.GPU == nil:
		case a.GPU == g:
			list.user(o.a.ID(a.Owner)).held = 1
		case isPart(a.GPU, g):
			list.user(o.a.ID(a.Owner)).held++
			free--
		}
	}
	if free > 0 {
		list.user(identity.Unattributed).held += float64(free)
	}
}

// isPart reports whether a GPU is a part of another one: a MIG instance, or a partition.
func isPart(part, of *model.GPU) bool { return part.Parent == of.UUID && part.UUID != of.UUID }

type userList struct {
	users []energyUser
	at    map[identity.OwnerID]int
}

// user returns the user of an owner. The pointer is valid until the next call.
func (l *userList) user(owner identity.OwnerID) *energyUser {
	i, ok := l.at[owner]
	if !ok {
		i = len(l.users)
		l.at[owner] = i
		l.users = append(l.users, energyUser{owner: owner})
	}
	return &l.users[i]
}

// energyPart is a MIG instance with its activity in the interval.
type energyPart struct {
	gpu     *model.GPU
	slices  float64
	busy    float64
	unknown bool
}

type energyParts []energyPart

// partsOf returns the MIG instances of a GPU. Their activity is unknown.
func partsOf(s *model.Snapshot, g *model.GPU) (parts energyParts) {
	for i := range s.GPUs {
		if p := &s.GPUs[i]; isPart(p, g) && p.Instance != "" {
			parts = append(parts, energyPart{gpu: p, slices: slicesOf(p.Profile), unknown: true})
		}
	}
	return parts
}

// slicesOf returns the number of compute slices in a profile: 3g.40gb; 1c.3g.40gb for one of several compute instances.
func slicesOf(profile string) float64 {
	if i := strings.IndexAny(profile, "cg"); i > 0 {
		if n, err := strconv.ParseUint(profile[:i], 10, 8); err == nil {
			return float64(n)
		}
	}
	return 0
}

func (p energyParts) add(instance string, busy float64, unknown bool) {
	for i := range p {
		if p[i].gpu.Instance == instance {
			p[i].busy, p[i].unknown = busy*p[i].slices, unknown
		}
	}
}

// addPart adds an instance to its only user. An instance with several users belongs to nobody: the driver does not
// report the activity of its processes.
func (o *users) addPart(list *userList, p *energyPart, s *model.Snapshot) {
	owner, held, several := identity.Unattributed, false, false
	use := func(id identity.OwnerID) {
		several = several || owner != identity.Unattributed && id != owner
		owner = id
	}
	for i := range s.GPUProcesses {
		if s.GPUProcesses[i].GPU == p.gpu.UUID {
			use(o.Of(s.GPUProcesses[i].Cgroup))
		}
	}
	for i := range o.a.Assigned {
		if a := &o.a.Assigned[i]; a.GPU == p.gpu && a.Allocated != "" {
			use(o.a.ID(a.Owner))
			held = true
		}
	}
	if several {
		owner = identity.Unattributed
	}
	u := list.user(owner)
	u.busy, u.unknown = u.busy+p.busy, u.unknown || p.unknown
	if held {
		u.held += p.slices
	} else {
		list.user(identity.Unattributed).held += p.slices
	}
}
