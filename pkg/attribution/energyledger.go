// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"math"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// EnergyShare is an owner's energy of a whole GPU by one method, in millijoules. The unattributed share has no method.
type EnergyShare struct {
	Owner       int
	GPU         *model.GPU
	Method      EnergyMethod
	Millijoules uint64
	Since       time.Time // see Share
}

const (
	// maxEnergyGPUs bounds the GPUs; energy of further GPUs is nobody's.
	maxEnergyGPUs = 256
	// mostPower, in watts, is more than any GPU draws: a counter that grows faster has a wrong value.
	mostPower = 10000
	// shortestIdle, in seconds, is the shortest interval whose mean power counts as idle power.
	shortestIdle = 1
	// longestWait is how long an interval waits for a list of users. After that its energy is nobody's.
	longestWait = time.Minute
)

// energyLedger divides what the energy counters of GPUs grow by, once. The shares of a GPU add up to its counter, to
// the millijoule, until the counter restarts; then to all that it counted. Energy of before the first reading is
// unattributed.
type energyLedger struct {
	gpus map[string]*gpuEnergy // by UUID
}

type gpuEnergy struct {
	counter uint64         // the last value, in millijoules
	at      time.Time      // before the refresh with this value
	read    time.Time      // see model.GPU
	low     uint64         // a value below it, which is a restart if the counter grows from there; 0: none
	listed  uint64         // rounds of uses at the last value
	active  uint64         // rounds then in which something ran, or may have
	idle    model.Optional // the lowest power, in watts, of an interval in which nothing ran
	energyAccounts
	uses  map[useKey]model.GPUUse   // at the last value
	users map[identity.OwnerID]bool // of the last interval; true: the GPU was allocated to the user
}

type useKey struct {
	instance string
	cgroup   model.CgroupID
}

// energy credits the energy since the last refresh, and returns the shares of listed GPUs; nil if the users of no GPU
// are known.
func (o *users) energy(s *model.Snapshot, l *energyLedger) (shares []EnergyShare) {
	if s.GPUUses == nil && l.gpus == nil {
		return nil
	}
	if l.gpus == nil {
		l.gpus = map[string]*gpuEnergy{}
	}
	uses := map[string][]*model.GPUUse{}
	for i := range s.GPUUses {
		u := &s.GPUUses[i]
		uses[u.GPU] = append(uses[u.GPU], u)
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		e := l.gpus[g.UUID]
		if counter := uint64(math.Round(g.Energy.Value * 1000)); counter > 0 && len(uses[g.UUID]) > 0 { // 0: not measured
			switch {
			case e != nil:
				o.settleEnergy(e, g, s, counter, uses[g.UUID])
			case len(l.gpus) < maxEnergyGPUs:
				e = &gpuEnergy{counter: counter, at: s.Counted, read: g.EnergyRead, energyAccounts: energyAccounts{unattributed: counter}}
				e.listed, e.active = roundsOf(uses[g.UUID])
				l.gpus[g.UUID] = e
				o.energyUsers(e, g, s, uses[g.UUID], partsOf(s, g))
			}
		}
		if e != nil {
			shares = e.appendTo(shares, g, o)
		}
	}
	return shares
}

func (e *gpuEnergy) appendTo(shares []EnergyShare, g *model.GPU, o *users) []EnergyShare {
	shares = append(shares, EnergyShare{GPU: g, Millijoules: e.unattributed})
	for _, a := range e.accounts {
		shares = append(shares, EnergyShare{o.a.Use(a.owner), g, a.method, a.energy, a.begin(o)})
	}
	return shares
}

// roundsOf returns the number of rounds of a GPU, and of rounds in which something ran on it, or may have.
func roundsOf(uses []*model.GPUUse) (listed, active uint64) {
	for _, u := range uses {
		listed, active = listed+u.Listed, active+u.Active
	}
	return listed, active
}

// settleEnergy ends an interval if the counter has a new value and the users were listed. Otherwise the interval goes on.
func (o *users) settleEnergy(e *gpuEnergy, g *model.GPU, s *model.Snapshot, counter uint64, uses []*model.GPUUse) {
	grown, restarted := e.next(counter, s.Counted)
	listed, active := roundsOf(uses)
	if grown == 0 || listed == e.listed && s.Counted.Sub(e.at) < longestWait {
		return
	}
	parts := partsOf(s, g)
	users := o.energyUsers(e, g, s, uses, parts)
	took := g.EnergyRead.Sub(e.read).Seconds()
	method := EnergyActivity
	switch {
	case restarted || listed == e.listed:
		users = nil // they are not known
	case active == e.active && took >= shortestIdle:
		if watts := float64(grown) / 1000 / took; !e.idle.Known || watts < e.idle.Value {
			e.idle = model.Some(watts)
		}
	}
	switch {
	case len(parts) > 0:
		method = EnergyMIG
	case len(users) == 1:
		method = EnergyExclusive
	}
	idle := model.Optional{Value: e.idle.Value * took * 1000, Known: e.idle.Known}
	e.credit(grown, divideEnergy(grown, idle, users, o.idleToNobody), users, energyAccount{method: method, since: e.at, round: o.Round()})
	e.counter, e.at, e.read, e.low, e.listed, e.active = counter, s.Counted, g.EnergyRead, 0, listed, active
}

// next returns what the counter has grown by, 0 if that is not clear yet. Drivers now and then return a wrong value: a
// lower value counts as a restart if the counter grows from there, and no value counts that a GPU cannot reach in this
// time.
func (e *gpuEnergy) next(counter uint64, now time.Time) (grown uint64, restarted bool) {
	switch {
	case counter >= e.counter:
		grown, e.low = counter-e.counter, 0
	case e.low > 0 && counter > e.low:
		grown, restarted = counter, true
	default:
		e.low = counter
	}
	if float64(grown) > now.Sub(e.at).Seconds()*mostPower*1000 {
		return 0, false
	}
	return grown, restarted
}

func (l *energyLedger) merge(m identity.Merge) {
	for _, e := range l.gpus {
		if held, used := e.users[m.From]; used {
			delete(e.users, m.From)
			e.users[m.To] = e.users[m.To] || held
		}
		e.merge(m)
	}
}

// expire makes the energy of ended owners unattributed.
func (l *energyLedger) expire(ids map[identity.OwnerID]bool) {
	for _, e := range l.gpus {
		e.expire(ids)
		for id := range ids {
			if held, used := e.users[id]; used {
				delete(e.users, id)
				e.users[identity.Unattributed] = e.users[identity.Unattributed] || held
			}
		}
	}
}
