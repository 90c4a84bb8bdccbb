// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

func TestDivideEnergy(t *testing.T) {
	unknown := model.Optional{}
	busy := func(b, h float64) energyUser { return energyUser{busy: b, held: h} }
	blind := energyUser{unknown: true}
	for name, c := range map[string]struct {
		idle  model.Optional
		users []energyUser
		want  []uint64
	}{
		"nobody":                           {model.Some(100), nil, []uint64{}},
		"only user":                        {model.Some(100), []energyUser{busy(0, 0)}, []uint64{1000}},
		"only user, activity unknown":      {unknown, []energyUser{blind}, []uint64{1000}},
		"dynamic by activity, idle by use": {model.Some(100), []energyUser{busy(3, 1), busy(1, 0), busy(0, 1)}, []uint64{725, 225, 50}},
		"idle unknown":                     {unknown, []energyUser{busy(3, 1), busy(1, 0)}, []uint64{750, 250}},
		"idle above all":                   {model.Some(5000), []energyUser{busy(3, 0), busy(1, 1)}, []uint64{0, 1000}},
		"nothing active":                   {model.Some(100), []energyUser{busy(0, 1), busy(0, 0)}, []uint64{1000, 0}},
		"allocated to nobody":              {model.Some(100), []energyUser{busy(1, 0), busy(1, 0)}, []uint64{450, 450}},
		"activity of one unknown":          {model.Some(100), []energyUser{busy(3, 1), blind}, []uint64{100, 0}},
		"all unknown":                      {unknown, []energyUser{busy(3, 1), blind}, []uint64{0, 0}},
		"rounding":                         {unknown, []energyUser{busy(1, 0), busy(1, 0), busy(1, 0)}, []uint64{333, 333, 334}},
	} {
		if got := divideEnergy(1000, c.idle, c.users, false); !slices.Equal(got, c.want) {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestDivideEnergyProperties: random users never get more than there is, nobody gets anything for nothing, and nothing
// is left if all is known and allocated.
func TestDivideEnergyProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		energy := r.Uint64N(1 << r.UintN(50))
		idle := model.Optional{Value: r.Float64()*2e6 - 1e5, Known: r.IntN(3) > 0}
		users := make([]energyUser, r.IntN(6))
		known, held, active := true, false, false
		for i := range users {
			u := &users[i]
			u.busy, u.held, u.unknown = float64(r.IntN(3))*r.Float64(), float64(r.IntN(3)), r.IntN(8) == 0
			known, held, active = known && !u.unknown, held || u.held > 0, active || u.busy > 0
		}
		var sum uint64
		for i, n := range divideEnergy(energy, idle, users, false) {
			if sum += n; n > 0 && len(users) > 1 && users[i].busy == 0 && users[i].held == 0 {
				t.Fatalf("user %d of %+v gets %d of %d", i, users, n, energy)
			}
		}
		whole := len(users) == 1 || known && held && len(users) > 0 || known && active && !idle.Known
		if sum > energy || whole && sum != energy {
			t.Fatalf("%d of %d: idle %v, %+v", sum, energy, idle, users)
		}
	}
}

// gpuTime is a GPU over time, with the truth that the ledger does not know.
type gpuTime struct {
	facts
	counters Counters
	owners   *identity.Table
	now      time.Time
}

func newGPUTime() *gpuTime {
	g := &gpuTime{now: time.Unix(1000, 0)}
	g.Entities = map[model.CgroupID]identitytest.Entity{}
	for i, name := range []string{"a", "b", "c"} {
		g.Entities[model.CgroupID(i+1)] = identitytest.Entity{Workload: "docker:" + name, ContainerID: name}
	}
	g.owners = identitytest.Table(g.Entities)
	g.GPUs = []model.GPU{{Vendor: model.NVIDIA, UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"}}}
	g.GPUUses = []model.GPUUse{{GPU: "GPU-0"}}
	g.count(1_000_000)
	return g
}

// count sets the energy counter to a number of millijoules.
func (g *gpuTime) count(mJ uint64) { g.GPUs[0].Energy = model.Some(float64(mJ) / 1000) }

func (g *gpuTime) counter() uint64 { return uint64(g.GPUs[0].Energy.Value*1000 + 0.5) }

// use adds a round with activity of a cgroup.
func (g *gpuTime) use(id model.CgroupID, busy time.Duration) { g.useOf("", id, busy) }

func (g *gpuTime) useOf(instance string, id model.CgroupID, busy time.Duration) {
	g.GPUUses = slices.Clone(g.GPUUses)
	i := slices.IndexFunc(g.GPUUses, func(u model.GPUUse) bool { return u.Cgroup == id && u.Instance == instance })
	if i < 0 {
		i = len(g.GPUUses)
		g.GPUUses = append(g.GPUUses, model.GPUUse{GPU: "GPU-0", Instance: instance, Cgroup: id})
	}
	u := &g.GPUUses[i]
	u.Rounds++
	g.GPUUses[0].Active++
	if u.Busy += busy; busy < 0 {
		u.Busy -= busy
		u.Unknown++
	}
}

// allocate makes a container with GPU 0 of each name.
func (g *gpuTime) allocate(names ...string) {
	g.Containers = []model.Container{}
	for _, name := range names {
		g.Containers = append(g.Containers, model.Container{ID: name, Runtime: "docker", Name: name, Devices: []string{"/dev/nvidia0"}})
	}
}

// energyOf returns the energy by owner and method.
func energyOf(a *Attribution) map[string]uint64 {
	found := map[string]uint64{}
	for _, s := range a.Energy {
		found[fmt.Sprint(a.Owners[s.Owner].Workload, " ", s.Method)] += s.Millijoules
	}
	return found
}

// pass lets 5 s pass, in which the GPU uses some energy, and reads it.
func (g *gpuTime) pass(mJ uint64) map[string]uint64 {
	g.count(g.counter() + mJ)
	return g.read()
}

func (g *gpuTime) read() map[string]uint64 {
	g.GPUUses = slices.Clone(g.GPUUses)
	g.GPUUses[0].Listed++
	return g.unlisted()
}

// unlisted is read without a new list of processes.
func (g *gpuTime) unlisted() map[string]uint64 {
	g.now = g.now.Add(5 * time.Second)
	g.Counted, g.GPUs[0].EnergyRead = g.now, g.now
	a := attributeNext(g.facts, g.owners, &g.counters)
	return energyOf(&a)
}

// rest sets the idle power in watts, after the first reading.
func (g *gpuTime) rest(watts float64) { g.counters.energy.gpus["GPU-0"].idle = model.Some(watts) }

// checkEnergy removes shares of before the steps and compares the rest.
func checkEnergy(t *testing.T, got, want map[string]uint64) {
	t.Helper()
	want[" "] += 1_000_000 // of before the first reading
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEnergy(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		run  func(g *gpuTime) map[string]uint64
		want map[string]uint64
	}{
		"first reading": {func(g *gpuTime) map[string]uint64 { return g.read() }, map[string]uint64{}},
		"only user": {func(g *gpuTime) map[string]uint64 {
			g.read()
			g.use(1, s)
			return g.pass(500)
		}, map[string]uint64{"docker:a exclusive": 500}},
		"allocated, not used": {func(g *gpuTime) map[string]uint64 {
			g.allocate("a")
			g.read()
			return g.pass(500)
		}, map[string]uint64{"docker:a exclusive": 500}},
		"used by one, allocated to another": {func(g *gpuTime) map[string]uint64 {
			g.allocate("b")
			g.read()
			g.rest(0.02) // 100 mJ in 5 s
			g.use(1, s)
			return g.pass(500)
		}, map[string]uint64{"docker:a activity": 400, "docker:b activity": 100}},
		"a user of the interval before": {func(g *gpuTime) map[string]uint64 {
			g.read()
			g.use(1, s)
			g.use(2, s)
			g.pass(500)
			g.use(1, s)
			g.pass(100)
			g.use(1, s)
			return g.pass(30)
		}, map[string]uint64{"docker:a activity": 350, "docker:b activity": 250, "docker:a exclusive": 30}},
		"idle to nobody: only user": {func(g *gpuTime) map[string]uint64 {
			g.counters.IdleToNobody = true
			g.allocate("a")
			g.read()
			g.rest(0.02) // 100 mJ in 5 s
			g.use(1, s)
			g.pass(500)
			return g.pass(70) // not active
		}, map[string]uint64{"docker:a exclusive": 400, " ": 170}},
		"idle to nobody: activity unknown": {func(g *gpuTime) map[string]uint64 {
			g.counters.IdleToNobody = true
			g.read()
			g.rest(0.02)
			g.use(1, -1)
			return g.pass(500)
		}, map[string]uint64{"docker:a exclusive": 400, " ": 100}},
		"idle to nobody: several users": {func(g *gpuTime) map[string]uint64 {
			g.counters.IdleToNobody = true
			g.allocate("b")
			g.read()
			g.rest(0.02)
			g.use(1, s)
			return g.pass(500)
		}, map[string]uint64{"docker:a activity": 400, " ": 100}},
		"several cgroups": {func(g *gpuTime) map[string]uint64 {
			g.read()
			g.use(1, 3*s)
			g.use(2, s)
			g.use(9, s) // of nobody
			return g.pass(500)
		}, map[string]uint64{"docker:a activity": 300, "docker:b activity": 100, " ": 100}},
		"unknown activity": {func(g *gpuTime) map[string]uint64 {
			g.read()
			g.use(1, 3*s)
			g.use(2, -1)
			return g.pass(500)
		}, map[string]uint64{" ": 500}},
		"users may be missing": {func(g *gpuTime) map[string]uint64 {
			g.allocate("a")
			g.read()
			g.rest(0.02)
			g.use(1, 3*s)
			g.use(0, -1)
			return g.pass(500)
		}, map[string]uint64{"docker:a activity": 100, " ": 400}},
		"no reading for some time": {func(g *gpuTime) map[string]uint64 {
			g.read()
			g.use(1, s)
			at := g.GPUs[0].Energy
			g.GPUs[0].Energy = model.Optional{}
			g.read()
			g.use(2, s)
			g.read()
			g.GPUs[0].Energy = at
			return g.pass(600)
		}, map[string]uint64{"docker:a activity": 300, "docker:b activity": 300}},
		"wrong low value": {func(g *gpuTime) map[string]uint64 {
			g.use(1, s)
			g.read()
			at := g.counter()
			g.count(7)
			g.read()
			g.count(at + 40)
			return g.read()
		}, map[string]uint64{"docker:a exclusive": 40}},
		"wrong high value": {func(g *gpuTime) map[string]uint64 {
			g.use(1, s)
			g.read()
			at := g.counter()
			g.count(at + 1e9)
			g.read()
			g.count(at + 40)
			return g.read()
		}, map[string]uint64{"docker:a exclusive": 40}},
		"high value that a GPU could reach": {func(g *gpuTime) map[string]uint64 {
			g.use(1, s)
			g.GPUs[0].Energy = model.Some(1_000_000)
			g.read()
			at := g.counter()
			g.use(1, s)
			g.count(at + 1000)
			g.read()
			g.use(1, s)
			g.count(at + 40)
			g.read()
			g.count(at + 80) // not a restart of 1000 kJ
			g.read()
			g.count(at + 1100)
			return g.read()
		}, map[string]uint64{"docker:a exclusive": 1100, " ": 999_000_000}},
		"restart": {func(g *gpuTime) map[string]uint64 {
			g.use(1, s)
			g.read()
			g.use(1, s)
			g.pass(100)
			g.count(30)
			g.read()
			g.count(60)
			g.read()
			g.use(1, s)
			return g.pass(40)
		}, map[string]uint64{"docker:a exclusive": 140, " ": 60}},
		"the users are listed later": {func(g *gpuTime) map[string]uint64 {
			g.read()
			g.use(1, s)
			g.use(2, s)
			g.pass(400)
			g.count(g.counter() + 60)
			g.unlisted()
			g.use(1, 3*s)
			g.use(2, s)
			g.count(g.counter() + 40)
			return g.read()
		}, map[string]uint64{"docker:a activity": 275, "docker:b activity": 225}},
		"the users are not listed again": {func(g *gpuTime) (got map[string]uint64) {
			g.read()
			g.use(1, s)
			g.pass(400)
			for range 12 {
				g.count(g.counter() + 10)
				got = g.unlisted()
			}
			return got
		}, map[string]uint64{"docker:a exclusive": 400, " ": 120}},
		"idle power": {func(g *gpuTime) map[string]uint64 {
			g.allocate("b")
			g.read()
			g.pass(200)           // 40 mW
			g.GPUUses[0].Active++ // without a process
			g.pass(50)
			g.GPUUses[0].Active++
			g.pass(50)
			g.pass(100) // 20 mW
			g.pass(300)
			g.use(9, -1)
			g.pass(10)
			g.use(9, s)
			g.pass(500)
			g.use(1, s)
			return g.pass(500) // used by cgroup 9 in the interval before
		}, map[string]uint64{"docker:a activity": 400, "docker:b exclusive": 700, "docker:b activity": 210, " ": 400}},
		"not measured": {func(g *gpuTime) map[string]uint64 {
			g.count(0)
			g.read()
			g.GPUs[0].Energy = model.Optional{}
			got := g.read()
			got[" "] += 1_000_000
			return got
		}, map[string]uint64{}},
		"another vendor": {func(g *gpuTime) map[string]uint64 {
			g.GPUUses = []model.GPUUse{{GPU: "GPU-1"}}
			g.use(1, s)
			g.GPUUses[1].GPU = "GPU-1"
			g.read()
			got := g.pass(50)
			got[" "] += 1_000_000
			return got
		}, map[string]uint64{}},
	} {
		t.Run(name, func(t *testing.T) { checkEnergy(t, c.run(newGPUTime()), c.want) })
	}
}

// TestEnergyOfPartitions: the parts of an AMD accelerator have no counters of their own, and their processes are listed by cgroup.
func TestEnergyOfPartitions(t *testing.T) {
	g := newGPUTime()
	g.GPUs[0].Vendor = model.AMD
	for _, n := range []string{"0", "1", "2", "3"} {
		g.GPUs = append(g.GPUs, model.GPU{Vendor: model.AMD, UUID: "GPU-0:" + n, Parent: "GPU-0", Profile: "CPX/NPS4", Nodes: []string{"/dev/dri/renderD" + n}})
	}
	g.Containers = []model.Container{{ID: "a", Runtime: "docker", Name: "a", Devices: []string{"/dev/dri/renderD1", "/dev/dri/renderD2"}}}
	g.read()
	g.rest(0.08) // 400 mJ in 5 s
	g.use(1, 3*time.Second)
	g.use(2, time.Second)
	checkEnergy(t, g.pass(1200), map[string]uint64{"docker:a activity": 200 + 600, "docker:b activity": 200, " ": 200})
}

// TestEnergyOfInstances: an instance with two slices and an instance with one.
func TestEnergyOfInstances(t *testing.T) {
	split := func() *gpuTime {
		g := newGPUTime()
		part := func(instance, profile string) model.GPU {
			return model.GPU{Vendor: model.NVIDIA, UUID: "MIG-" + instance, Parent: "GPU-0", Instance: instance, Profile: profile, Nodes: []string{"/dev/nvidia-caps/" + instance}}
		}
		g.GPUs = append(g.GPUs, part("1", "2g.20gb"), part("2", "1g.10gb"))
		g.Containers = []model.Container{{ID: "b", Runtime: "docker", Name: "b", Devices: []string{"/dev/nvidia-caps/2"}}}
		g.GPUProcesses = []model.GPUProcess{{GPU: "MIG-1", PID: 1, Cgroup: 1}}
		return g
	}
	g := split()
	g.Containers = append(g.Containers, model.Container{ID: "a", Runtime: "docker", Name: "a", Devices: []string{"/dev/nvidia-caps/1"}})
	g.read()
	g.rest(0.06) // 300 mJ in 5 s
	g.useOf("1", 0, 3*time.Second)
	g.useOf("2", 0, 3*time.Second)
	checkEnergy(t, g.pass(1200), map[string]uint64{"docker:a mig": 800, "docker:b mig": 400})

	g = split() // instance 1 is allocated to nobody
	g.read()
	g.rest(0.06) // 300 mJ in 5 s
	g.useOf("1", 0, 3*time.Second)
	g.useOf("2", 0, 0)
	checkEnergy(t, g.pass(1200), map[string]uint64{"docker:a mig": 900, "docker:b mig": 100, " ": 200})

	g = split() // without GPM, and with two users of instance 1
	g.GPUProcesses = append(g.GPUProcesses, model.GPUProcess{GPU: "MIG-1", PID: 2, Cgroup: 3})
	g.read()
	g.rest(0.06)
	checkEnergy(t, g.pass(1200), map[string]uint64{"docker:b mig": 100, " ": 1100})
}

func TestSlicesOf(t *testing.T) {
	for profile, want := range map[string]float64{"3g.40gb": 3, "1c.3g.40gb": 1, "1g.10gb+me": 1, "": 0, "gb": 0, "CPX/NPS4": 0, "999g": 0} {
		if got := slicesOf(profile); got != want {
			t.Errorf("%q: %v", profile, got)
		}
	}
}

// TestEnergyRoom: energy of owners and of GPUs beyond the limits is nobody's, and nothing is lost.
func TestEnergyRoom(t *testing.T) {
	const owners = maxEnergyShares + 2
	shares, users := make([]uint64, owners), make([]energyUser, owners)
	for i := range users {
		shares[i], users[i].owner = 3, identity.OwnerID(i+1)
	}
	var l energyAccounts
	l.credit(3*owners+5, shares, users, energyAccount{method: EnergyActivity})
	if len(l.accounts) != maxEnergyShares || l.unattributed != 2*3+5 {
		t.Errorf("%d accounts, %d are nobody's", len(l.accounts), l.unattributed)
	}
	l.credit(3*owners, shares, users, energyAccount{method: EnergyActivity}) // those with an account still get their part
	if len(l.accounts) != maxEnergyShares || l.accounts[maxEnergyShares-1].energy != 6 || l.unattributed != 2*(2*3)+5 {
		t.Errorf("then %d accounts, %d are nobody's", len(l.accounts), l.unattributed)
	}

	g := newGPUTime()
	for i := 1; i < maxEnergyGPUs+2; i++ {
		uuid := fmt.Sprint("GPU-", i)
		g.GPUs = append(g.GPUs, model.GPU{Vendor: model.NVIDIA, UUID: uuid, Energy: model.Some(7)})
		g.GPUUses = append(g.GPUUses, model.GPUUse{GPU: uuid})
	}
	if got := g.read(); len(g.counters.energy.gpus) != maxEnergyGPUs || got[" "] != 1_000_000+(maxEnergyGPUs-1)*7000 {
		t.Errorf("%d GPUs: %v", len(g.counters.energy.gpus), got)
	}
}

// TestEnergyAddsUp: whatever happens to users, the shares add up to the counter.
func TestEnergyAddsUp(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 3))
		g := newGPUTime()
		g.read()
		total, restarted := g.counter(), uint64(0)
		last := map[string]uint64{}
		for range 120 {
			for id := range model.CgroupID(5) {
				if r.IntN(3) == 0 {
					g.use(id, time.Duration(r.Int64N(5e9))-1e8)
				}
			}
			if r.IntN(4) == 0 {
				g.allocate([]string{"a", "b", "c"}[:r.IntN(4)]...)
			}
			switch n := r.IntN(20); {
			case n == 0:
				g.rest(float64(r.IntN(80)))
			case n == 1: // the owner ends; its energy is nobody's
				g.counters.Expire([]identity.OwnerID{identity.OwnerID(1 + r.IntN(3))})
				last = map[string]uint64{}
			case n == 2:
				g.counters.energy.merge(identity.Merge{From: 1, To: 2})
				last = map[string]uint64{}
			case n == 3 && total > 4_000_000: // the driver is loaded again
				g.count(1)
				g.read()
				restarted, total = restarted+total, 1
			}
			moved := r.Uint64N(3_500_000)
			total += moved
			got := g.pass(moved)
			var sum uint64
			for who, n := range got {
				if sum += n; n < last[who] {
					t.Fatalf("seed %d: %s fell from %d to %d", seed, who, last[who], n)
				}
			}
			if last = got; sum != restarted+total {
				t.Fatalf("seed %d: %d of %d: %v", seed, sum, restarted+total, got)
			}
		}
	}
}
