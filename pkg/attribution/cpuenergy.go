// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// The methods of energy of CPUs: by CPU time in the only package, or by CPU time on the node, because in which of several
// packages a cgroup's tasks ran is unknown.
const (
	EnergyCPUTime     EnergyMethod = "cpu_time"
	EnergyCPUTimeNode EnergyMethod = "cpu_time_node"
)

// CPUEnergyShare is an owner's energy of a domain, in microjoules. The unattributed share has no method.
type CPUEnergyShare struct {
	Owner       int
	Domain      model.EnergyDomain
	Method      EnergyMethod
	Microjoules uint64
	Since       time.Time // see Share
}

// mostZonePower, in watts, is more than any CPU package or its memory draws. A counter that grows faster, or that falls
// and would have grown faster up to its limit, has started again or has a wrong value.
const mostZonePower = 2000

// cpuLedger divides what the zones of a domain grow by, once. The shares of a domain add up to its growth, to the
// microjoule, since the first reading. A cgroup gets its part of the time of all CPUs: the energy of idle CPUs is
// nobody's, because their power is unknown.
type cpuLedger struct {
	last     cpuReading
	packages int // the most that were read at a time
	domains  map[model.EnergyDomain]*energyAccounts
}

// cpuReading has zones and CPU times of one refresh.
type cpuReading struct {
	at, read time.Time // before the refresh; see model.Node
	zones    map[string]model.EnergyZone
	seconds  float64 // of all CPUs, in all modes
	used     map[model.CgroupID]float64
}

// cpuEnergy credits the energy since the last refresh, and returns the shares of domains with zones. An interval without
// zones, or without CPU times, goes on.
func (o *users) cpuEnergy(s *model.Snapshot, l *cpuLedger) (shares []CPUEnergyShare) {
	if s.Node == nil || len(s.Node.Energy) == 0 {
		return nil
	}
	if n := s.Node; s.Usages != nil && len(n.CPUs) > 0 && n.CPUs[0].ID == "" && n.EnergyRead.After(l.last.read) {
		o.settleCPU(l, s)
	}
	for _, domain := range []model.EnergyDomain{model.EnergyOfPackage, model.EnergyOfDRAM} {
		e := l.domains[domain]
		if e == nil || !slices.ContainsFunc(s.Node.Energy, func(z model.EnergyZone) bool { return z.Domain == domain }) {
			continue
		}
		shares = append(shares, CPUEnergyShare{Domain: domain, Microjoules: e.unattributed})
		for _, a := range e.accounts {
			shares = append(shares, CPUEnergyShare{o.a.Use(a.owner), domain, a.method, a.energy, a.begin(o)})
		}
	}
	return shares
}

// settleCPU ends an interval with a new reading.
func (o *users) settleCPU(l *cpuLedger, s *model.Snapshot) {
	if l.domains == nil {
		l.domains = map[model.EnergyDomain]*energyAccounts{}
	}
	before := l.last
	l.last = newCPUReading(s)
	grown, packages := map[model.EnergyDomain]uint64{}, 0
	for path, z := range l.last.zones {
		if l.domains[z.Domain] == nil {
			l.domains[z.Domain] = &energyAccounts{}
		}
		if z.Domain == model.EnergyOfPackage {
			packages++
		}
		if last, known := before.zones[path]; known {
			grown[z.Domain] += grownBy(last, z, l.last.read.Sub(before.read))
		}
	}
	fresh := energyAccount{method: EnergyCPUTime, since: before.at, round: o.Round()}
	if l.packages = max(l.packages, packages); l.packages > 1 {
		fresh.method = EnergyCPUTimeNode
	}
	list := o.cpuUsers(&before, &l.last, s)
	for domain, n := range grown {
		shares := make([]uint64, len(list))
		give(shares, n, list, func(u *energyUser) float64 { return u.busy })
		l.domains[domain].credit(n, shares, list, fresh)
	}
}

func newCPUReading(s *model.Snapshot) cpuReading {
	r := cpuReading{at: s.Counted, read: s.Node.EnergyRead, zones: map[string]model.EnergyZone{}, used: map[model.CgroupID]float64{}}
	for _, z := range s.Node.Energy {
		if z.Domain != "" {
			r.zones[z.Path] = z
		}
	}
	const guest = model.CPUModes - 2 // user and nice have the times of guests
	for _, mode := range s.Node.CPUs[0].Seconds[:guest] {
		r.seconds += mode
	}
	for i := range s.Usages {
		if t := s.Usages[i].CPU.Total; t.Known {
			r.used[s.Usages[i].Cgroup] = t.Value
		}
	}
	return r
}

// grownBy returns the microjoules by which a zone grew, and 0 if that is not clear. Of a value above the limit the growth
// overflows, which no zone can reach.
func grownBy(before, now model.EnergyZone, took time.Duration) uint64 {
	grown := now.Microjoules - before.Microjoules
	if now.Microjoules < before.Microjoules {
		grown = now.Limit - before.Microjoules + now.Microjoules
	}
	if float64(grown) > took.Seconds()*mostZonePower*1e6 {
		return 0
	}
	return grown
}

// cpuUsers returns the owners with CPU time in an interval, and the remaining time of all CPUs. The CPU time of a cgroup
// that was not in the reading before is known if the cgroup did not exist then.
func (o *users) cpuUsers(before, now *cpuReading, s *model.Snapshot) []energyUser {
	list := userList{at: map[identity.OwnerID]int{}}
	left := now.seconds - before.seconds
	if left <= 0 {
		return nil
	}
	for i := range s.Usages {
		u := &s.Usages[i]
		last, known := before.used[u.Cgroup]
		if !known && (u.Since.IsZero() || u.Since.Before(before.at)) {
			continue
		}
		if busy := now.used[u.Cgroup] - last; busy > 0 {
			list.user(o.Of(u.Cgroup)).busy += busy
			left -= busy
		}
	}
	list.user(identity.Unattributed).busy += max(0, left)
	return list.users
}

func (l *cpuLedger) merge(m identity.Merge) {
	for _, e := range l.domains {
		e.merge(m)
	}
}

func (l *cpuLedger) expire(ids map[identity.OwnerID]bool) {
	for _, e := range l.domains {
		e.expire(ids)
	}
}
