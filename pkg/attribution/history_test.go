// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// A history simulates a node at random: cgroups of several owners count verbs, are named and renamed, end and are
// forgotten; answers are late, partial or lost.
type history struct {
	r          *rand.Rand
	next       model.CgroupID
	owners     []*historyOwner
	cgroups    []*historyCgroup
	noRestarts bool
}

// historyOwner is a workload of a kind. name counts its renames; 0 is before the first name.
type historyOwner struct {
	kind ownerKind
	id   int
	name int
}

type ownerKind int

const (
	inPod    ownerKind = iota // a container that the kubelet names late and then renames
	ofJob                     // steps of a job, whose number is found late
	pod                       // a pod that is first known by its UID
	claimed                   // the container ID of an inPod owner, claimed by a user
	byPath                    // first known by its cgroup path, later by the name of an inPod owner
	movable                   // its cgroups are renamed one after the other
	late                      // without a name at first
	nameless                  // never gets a name
	ownerKinds
)

type historyCgroup struct {
	id        model.CgroupID
	owner     *historyOwner
	moved     int // renames of this cgroup only
	age       int
	counters  map[model.VerbKey]uint64 // the values that the source reports
	delivered map[model.VerbKey]uint64 // the values of its last answer
	died      int                      // refreshes since its end, 0 while alive
	forgotten bool
	lingers   int // refreshes in which its rows are listed after it was forgotten
	missing   int // consecutive answers without its rows
}

// answer is the answer of all sources in a refresh.
type answer struct {
	facts     model.Snapshot // Cgroups, Containers, Pods, Verbs and VerbErrors
	forget    []model.CgroupID
	delivered []delivery
	partial   bool
}

type delivery struct {
	cgroup model.CgroupID
	key    model.VerbKey
	amount uint64
}

func newHistory(seed uint64) *history {
	h := &history{r: rand.New(rand.NewPCG(seed, 3))}
	for i := range int(ownerKinds) + 3 {
		h.owners = append(h.owners, &historyOwner{kind: ownerKind(i % int(ownerKinds)), id: i})
	}
	return h
}

func (h *history) chance(percent int) bool { return h.r.IntN(100) < percent }

func (h *history) step() answer {
	var a answer
	if h.chance(35) && len(h.cgroups) < 12 {
		h.next++
		h.cgroups = append(h.cgroups, &historyCgroup{
			id: h.next, owner: h.owners[h.r.IntN(len(h.owners))],
			counters: map[model.VerbKey]uint64{}, delivered: map[model.VerbKey]uint64{},
		})
	}
	for _, o := range h.owners {
		if h.chance(4) {
			o.name++
		}
	}
	for _, c := range h.cgroups {
		h.live(c, &a)
	}
	if h.chance(90) { // else the source does not answer, or its answer is lost
		h.deliver(&a)
	}
	if h.chance(92) { // else the resolver does not answer
		h.names(&a.facts)
	}
	h.cgroups = slices.DeleteFunc(h.cgroups, func(c *historyCgroup) bool { return c.forgotten && c.lingers < -1 })
	return a
}

// live lets a cgroup count, end and be forgotten, again if it is listed again.
func (h *history) live(c *historyCgroup, a *answer) {
	c.age++
	switch {
	case c.forgotten:
		if c.lingers--; c.lingers == -1 {
			a.forget = append(a.forget, c.id)
		}
	case c.died > 0:
		if c.died++; c.died > 4 {
			c.forgotten, c.lingers = true, h.r.IntN(3)
			if h.chance(10) { // the source has not noticed the end yet
				c.lingers = 40
			}
			a.forget = append(a.forget, c.id)
		}
	case h.chance(7):
		c.died = 1
	default:
		if c.owner.kind == movable && h.chance(3) {
			c.moved++
		}
		for range h.r.IntN(4) {
			k := model.VerbKey{Device: fmt.Sprint("mlx5_", h.r.IntN(2)), Verb: []string{"reg_mr", "create_qp", "dereg_mr"}[h.r.IntN(3)]}
			if h.chance(1) && !h.noRestarts { // a smaller counter replaces the kernel's counter
				c.counters[k] = uint64(h.r.IntN(int(c.delivered[k]) + 1))
			}
			c.counters[k] += uint64(h.r.IntN(1000))
		}
	}
}

// deliver lists the rows of all cgroups in random order; some may be missing.
func (h *history) deliver(a *answer) {
	a.partial = h.chance(8)
	a.facts.Verbs = []model.Series[model.VerbKey, model.Histogram]{}
	a.facts.VerbErrors = []model.Series[model.VerbErrorKey, model.Count]{}
	for _, c := range h.cgroups {
		if c.forgotten && c.lingers < 0 {
			continue
		}
		if c.missing++; c.forgotten && c.missing < maxMissedAnswers && h.chance(50) {
			a.partial = true
			continue
		}
		c.missing = 0
		for _, k := range slices.SortedFunc(maps.Keys(c.counters), compareVerbs) {
			if a.partial && !c.forgotten && h.chance(40) {
				continue
			}
			n := c.counters[k]
			amount := n - c.delivered[k]
			if n < c.delivered[k] {
				amount = n
			}
			c.delivered[k] = n
			a.delivered = append(a.delivered, delivery{c.id, k, amount})
			parts := []uint64{n}
			if h.chance(20) && n > 0 { // two device numbers of one name
				first := h.r.Uint64N(n)
				parts = []uint64{first, n - first}
			}
			for _, n := range parts {
				a.facts.Verbs = append(a.facts.Verbs, verbs(c.id, k.Device, k.Verb, histogramOf(n)))
				a.facts.VerbErrors = append(a.facts.VerbErrors, verbErrors(c.id, k.Device, k.Verb, "ENOMEM", 2*n))
			}
		}
	}
	shuffle(h.r, a.facts.Verbs)
	shuffle(h.r, a.facts.VerbErrors)
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

func compareVerbs(a, b model.VerbKey) int {
	return slices.Compare([]string{a.Device, a.Verb}, []string{b.Device, b.Verb})
}

func histogramOf(n uint64) model.Histogram {
	h := model.Histogram{Count: n, Sum: 1000 * n}
	h.Buckets[3] = n
	return h
}

// names lists the cgroups, and the named containers and pods.
func (h *history) names(s *model.Snapshot) {
	s.Cgroups, s.Containers, s.Pods = []model.Cgroup{}, []model.Container{}, []model.Pod{}
	for _, c := range h.cgroups {
		if fact, known := c.fact(); known && (!c.forgotten || c.lingers >= 0) {
			s.Cgroups = append(s.Cgroups, fact)
		}
	}
	for _, o := range h.owners {
		if o.name == 0 {
			continue
		}
		switch o.kind {
		case inPod:
			s.Containers = append(s.Containers, model.Container{
				ID: o.containerID(), Namespace: "ns", Pod: fmt.Sprint("p", o.id), Name: fmt.Sprint("main", o.name), PodUID: fmt.Sprint("u", o.id),
			})
		case pod:
			s.Pods = append(s.Pods, model.Pod{UID: fmt.Sprint("u", o.id), Namespace: "ns", Name: fmt.Sprint("p", o.id)})
		case byPath: // the runtime knows the path of the owner inPod with the same number
			first := h.owners[0]
			s.Containers = append(s.Containers, model.Container{
				ID: first.containerID(), Cgroup: o.path(), Namespace: "ns", Pod: fmt.Sprint("p", first.id),
				Name: fmt.Sprint("main", first.name), PodUID: fmt.Sprint("u", first.id),
			})
		}
	}
}

func (o *historyOwner) containerID() string { return fmt.Sprint("container", o.id) }
func (o *historyOwner) path() string        { return fmt.Sprint("/owner", o.id) }

// fact returns the facts in the path of a cgroup.
func (c *historyCgroup) fact() (model.Cgroup, bool) {
	o := c.owner
	f := model.Cgroup{ID: c.id, Path: model.CgroupPath(o.path())}
	switch o.kind {
	case inPod:
		f.Workload, f.ContainerID, f.PodUID = "pod:u/"+o.containerID(), o.containerID(), fmt.Sprint("u", o.id)
	case claimed:
		f.Workload, f.ContainerID, f.Claimed = "podman:"+o.containerID(), o.containerID(), true
	case ofJob:
		f.Workload, f.Step, f.Runtime = fmt.Sprint("slurm:", o.id), fmt.Sprint(c.id), "slurm"
		if o.name == 0 {
			f.Workload = fmt.Sprint("slurm:sSLUID", o.id)
		}
	case pod:
		f.Workload, f.PodUID = fmt.Sprint("pod:u", o.id), fmt.Sprint("u", o.id)
	case byPath:
		f.Workload = "cgroup:" + o.path()
	case movable:
		f.Workload, f.Path = fmt.Sprint("unit:", o.id, "-", c.moved), model.CgroupPath(fmt.Sprint(o.path(), "-", c.moved))
	case late:
		f.Workload = fmt.Sprint("unit:late", o.id)
		return f, c.age > 5
	default:
		return f, false
	}
	return f, true
}
