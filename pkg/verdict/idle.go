// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/identity"
)

// useKey is a device that is allocated to a workload.
type useKey struct {
	owner        ownerKey
	device, uuid string // of an HCA, of a GPU
}

// use is when a workload last used a device that is allocated to it.
type use struct {
	last    time.Time
	created uint64 // number of created objects; a change is a use, also if the objects are gone
	round   uint64
}

// idleRules judge which devices are allocated to workloads that do not use them.
type idleRules struct {
	*round
	uses map[useKey]*use
	room room
}

func newIdleRules(r *round, uses map[useKey]*use) *idleRules {
	return &idleRules{r, uses, room{perOwner: 8 * maxPerOwner, perNamespace: 8 * maxPerNamespace, all: maxCounters / 4}}
}

func (r *idleRules) judge() {
	r.judgeIdleHCAs()
	for i := range r.Shares.GPUs {
		g := &r.Shares.GPUs[i]
		if g.Assigned == nil || !g.Listed || g.Owner == 0 {
			continue
		}
		s, o := r.owned(g.Owner)
		s.GPU, s.UUID = g.GPU.ID, g.GPU.UUID
		r.judgeUse(gpuIdle, s, o, gpuUsed(g.Engines, g.Processes), 0, g.Assigned, func() string {
			if g.Processes > 0 {
				return fmt.Sprintf("%d processes, no engine above %s", g.Processes, format.Percent(gpuIdle.limit(0)))
			}
			return "no process on the GPU"
		})
	}
	for k, u := range r.uses {
		if u.round != r.number {
			delete(r.uses, k)
		}
	}
}

// judgeUse notes whether a device is in use, and judges how long it is not. unused says what is missing for a use.
func (r *idleRules) judgeUse(
	c *Condition, s Subject, o *identity.Owner, used bool, created uint64, assigned *attribution.DeviceShare, unused func() string,
) {
	key := useKey{ownerKey{o.Workload, o.ContainerID}, s.Device, s.UUID}
	u := r.uses[key]
	if u == nil || u.round != r.number { // once per refresh: several sources may allocate the device
		if !r.room.take(o) {
			delete(r.uses, key)
			r.omitted++
			return
		}
	}
	if u == nil {
		u = &use{last: r.At, created: created}
		r.uses[key] = u
	}
	if used || u.created != created {
		u.last, u.created = r.At, created
	}
	u.round = r.number
	if idle := r.At.Sub(u.last); idle >= c.Window {
		r.find(c, s, u.last, "not used for "+format.Span(idle), unused(), "allocated by "+string(assigned.Allocated))
	}
}

// podDevice is an HCA of a pod, whose containers may use the HCA for each other.
type podDevice struct{ namespace, pod, device string }

// judgeIdleHCAs judges HCAs if objects are counted. A workload that has only device nodes of HCAs, as from a plugin
// that shares HCAs, may use any of them.
func (r *idleRules) judgeIdleHCAs() {
	counted := map[string]bool{}
	for i := range r.Shares.Registered {
		if s := &r.Shares.Registered[i]; s.Owner == 0 {
			counted[s.Device] = true
		}
	}
	type held struct {
		owner  int
		device string
	}
	holds, holdsAny, ofPod, created := map[held]bool{}, map[int]bool{}, map[podDevice]bool{}, map[held]uint64{}
	for i := range r.Shares.Objects {
		s := &r.Shares.Objects[i]
		if s.Owner == 0 || !slices.Contains(rdmaIdle.Words["type"], string(s.Type)) {
			continue
		}
		k := held{s.Owner, s.Device}
		created[k] += s.Created
		if s.Current == 0 {
			continue
		}
		holds[k], holdsAny[s.Owner] = true, true
		if o := &r.Shares.Owners[s.Owner]; o.Pod != "" {
			ofPod[podDevice{o.Namespace, o.Pod, s.Device}] = true
		}
	}
	for i := range r.Shares.Assigned {
		a := &r.Shares.Assigned[i]
		if a.HCA == nil || a.Allocated == "" || a.Owner == 0 || !counted[a.HCA.Name] {
			continue
		}
		s, o := r.owned(a.Owner)
		s.Device = a.HCA.Name
		k := held{a.Owner, s.Device}
		used := holds[k] || o.Pod != "" && ofPod[podDevice{o.Namespace, o.Pod, s.Device}] ||
			a.Allocated == attribution.EvidenceNode && holdsAny[a.Owner]
		r.judgeUse(rdmaIdle, s, o, used, created[k], a, func() string { return "no queue pair on the HCA" })
	}
}
