// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// cpuTime is a node with 10 CPUs over time.
type cpuTime struct {
	facts
	counters Counters
	owners   *identity.Table
	now      time.Time
	zones    map[string]*model.EnergyZone
	seconds  float64 // of all CPUs
	used     map[model.CgroupID]*model.Usage
}

const zoneLimit = 100_000_000

func newCPUTime(zones ...string) *cpuTime {
	c := &cpuTime{now: time.Unix(1000, 0), zones: map[string]*model.EnergyZone{}, used: map[model.CgroupID]*model.Usage{}}
	c.Entities = map[model.CgroupID]identitytest.Entity{}
	for i, name := range []string{"a", "b", "c"} {
		c.Entities[model.CgroupID(i+1)] = identitytest.Entity{Workload: "docker:" + name, ContainerID: name}
		c.used[model.CgroupID(i+1)] = &model.Usage{Cgroup: model.CgroupID(i + 1), CPU: model.CPUUsage{Total: model.Some(5000)}}
	}
	c.used[9] = &model.Usage{Cgroup: 9, CPU: model.CPUUsage{Total: model.Some(5000)}} // of nobody
	c.owners = identitytest.Table(c.Entities)
	for _, path := range zones {
		c.zones[path] = &model.EnergyZone{Path: path, Domain: model.EnergyDomain(path[:len(path)-1]), Microjoules: 1000, Limit: zoneLimit}
	}
	return c
}

// use adds CPU time to a cgroup.
func (c *cpuTime) use(id model.CgroupID, seconds float64) { c.used[id].CPU.Total.Value += seconds }

// grow adds energy to a zone.
func (c *cpuTime) grow(zone string, µJ uint64) {
	z := c.zones[zone]
	if z.Microjoules += µJ; z.Microjoules > z.Limit {
		z.Microjoules -= z.Limit
	}
}

// read lets 10 s pass and reads everything.
func (c *cpuTime) read() map[string]uint64 {
	c.Usages = []model.Usage{}
	for id := range model.CgroupID(10) {
		if u := c.used[id]; u != nil {
			c.Usages = append(c.Usages, *u)
		}
	}
	n := c.node()
	n.EnergyRead = c.now
	for _, path := range []string{"package0", "package1", "dram0", "core0"} {
		if z := c.zones[path]; z != nil {
			n.Energy = append(n.Energy, *z)
		}
	}
	return c.attribute()
}

// node lets 10 s pass and reads the CPUs only.
func (c *cpuTime) node() *model.Node {
	c.now = c.now.Add(10 * time.Second)
	c.seconds += 100
	c.Counted = c.now
	c.Node = &model.Node{CPUs: []model.CPU{{Seconds: [model.CPUModes]float64{c.seconds / 4, 0, 0, c.seconds / 4, 0, 0, 0, c.seconds / 2, c.seconds, c.seconds}}, {ID: "0"}}}
	return c.Node
}

func (c *cpuTime) attribute() map[string]uint64 {
	a := attributeNext(c.facts, c.owners, &c.counters)
	found := map[string]uint64{}
	for _, s := range a.CPUEnergy {
		found[fmt.Sprint(s.Domain, a.Owners[s.Owner].Workload, " ", s.Method)] += s.Microjoules
	}
	return found
}

// TestCPUUsersAtOnce: in no time, nobody used a CPU.
func TestCPUUsersAtOnce(t *testing.T) {
	for _, seconds := range []float64{5, 4} {
		if got := new(users).cpuUsers(&cpuReading{seconds: 5}, &cpuReading{seconds: seconds}, &model.Snapshot{}); len(got) > 0 {
			t.Errorf("after %v s: %+v", seconds, got)
		}
	}
}

func TestCPUEnergy(t *testing.T) {
	two := func(run func(c *cpuTime) map[string]uint64) map[string]uint64 {
		return run(newCPUTime("package0", "dram0"))
	}
	for name, c := range map[string]struct {
		run  func(c *cpuTime) map[string]uint64
		want map[string]uint64
	}{
		"first reading": {func(c *cpuTime) map[string]uint64 { return c.read() }, map[string]uint64{"package ": 0, "dram ": 0}},
		"by CPU time, idle CPUs to nobody": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 30)
			c.use(2, 10)
			c.use(9, 20)
			c.grow("package0", 2000)
			c.grow("dram0", 100)
			return c.read()
		}, map[string]uint64{
			"packagedocker:a cpu_time": 600, "packagedocker:b cpu_time": 200, "package ": 1200,
			"dramdocker:a cpu_time": 30, "dramdocker:b cpu_time": 10, "dram ": 60,
		}},
		"more CPU time than the node counted": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 150)
			c.use(2, 50)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:a cpu_time": 1500, "packagedocker:b cpu_time": 500, "package ": 0, "dram ": 0}},
		"a wrap": {func(c *cpuTime) map[string]uint64 {
			c.zones["package0"].Microjoules = zoneLimit - 500
			c.read()
			c.use(1, 50)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:a cpu_time": 1000, "package ": 1000, "dram ": 0}},
		"a counter that starts again is not a wrap": {func(c *cpuTime) map[string]uint64 {
			c.zones["package0"].Limit, c.zones["package0"].Microjoules = 1e12, 1e11
			c.read()
			c.use(1, 50)
			c.zones["package0"].Microjoules = 700
			c.read()
			c.use(1, 50)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:a cpu_time": 1000, "package ": 1000, "dram ": 0}},
		"more than a package can use": {func(c *cpuTime) map[string]uint64 {
			c.zones["package0"].Limit = 1e15
			c.read()
			c.use(1, 50)
			c.grow("package0", 1e13)
			return c.read()
		}, map[string]uint64{"package ": 0, "dram ": 0}},
		"above its limit": {func(c *cpuTime) map[string]uint64 {
			c.zones["package0"].Microjoules, c.zones["package0"].Limit = 7000, 500
			c.read()
			c.use(1, 50)
			c.zones["package0"].Microjoules = 300
			return c.read()
		}, map[string]uint64{"package ": 0, "dram ": 0}},
		"a domain goes and comes": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 50)
			c.grow("dram0", 100)
			c.read()
			dram := c.zones["dram0"]
			delete(c.zones, "dram0")
			c.use(1, 50)
			if got := c.read(); got["dram "] != 0 || len(got) != 1 {
				t.Errorf("without dram: %v", got)
			}
			c.zones["dram0"] = dram
			c.grow("dram0", 400) // nobody knows when
			c.use(1, 50)
			c.read()
			c.grow("dram0", 40)
			return c.read()
		}, map[string]uint64{"package ": 0, "dramdocker:a cpu_time": 50, "dram ": 90}},
		"an interval without a reading": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 50)
			c.node() // the driver does not answer
			c.attribute()
			c.use(2, 100)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:a cpu_time": 500, "packagedocker:b cpu_time": 1000, "package ": 500, "dram ": 0}},
		"the reading of before": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 50)
			zones, at := c.Node.Energy, c.Node.EnergyRead
			n := c.node()
			n.Energy, n.EnergyRead = zones, at
			c.attribute()
			c.use(2, 100)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:a cpu_time": 500, "packagedocker:b cpu_time": 1000, "package ": 500, "dram ": 0}},
		"no usage for some time": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 50)
			c.node().EnergyRead = c.now
			c.Usages = nil
			c.attribute()
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:a cpu_time": 500, "package ": 1500, "dram ": 0}},
		"a cgroup that could not be read": {func(c *cpuTime) map[string]uint64 {
			c.read()
			b := c.used[2]
			delete(c.used, 2)
			c.grow("package0", 2000)
			c.read()
			c.used[2] = b
			c.use(2, 50) // in both intervals
			c.grow("package0", 2000)
			c.read()
			c.use(2, 50)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:b cpu_time": 1000, "package ": 5000, "dram ": 0}},
		"a cgroup of this interval": {func(c *cpuTime) map[string]uint64 {
			clear(c.used)
			c.read()
			c.used[1] = &model.Usage{Cgroup: 1, CPU: model.CPUUsage{Total: model.Some(20)}}
			c.used[2] = &model.Usage{Cgroup: 2, Since: c.now, CPU: model.CPUUsage{Total: model.Some(20)}}
			c.used[3] = &model.Usage{Cgroup: 3, Since: c.now.Add(-1), CPU: model.CPUUsage{Total: model.Some(20)}}
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:b cpu_time": 400, "package ": 1600, "dram ": 0}},
		"a cgroup whose CPU time falls or is unknown": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, -50)
			c.used[2].CPU.Total = model.Optional{}
			c.use(3, 10)
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"packagedocker:c cpu_time": 200, "package ": 1800, "dram ": 0}},
		"CPUs went": {func(c *cpuTime) map[string]uint64 {
			c.read()
			c.use(1, 50)
			c.seconds = -50
			c.grow("package0", 2000)
			return c.read()
		}, map[string]uint64{"package ": 2000, "dram ": 0}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, two(c.run)); d != "" {
				t.Error(d)
			}
		})
	}
}

// TestCPUEnergyOfPackages: where a cgroup's CPU time was spent is unknown, so all packages are one. Zones within a package do not count.
func TestCPUEnergyOfPackages(t *testing.T) {
	c := newCPUTime("package0", "package1", "core0")
	c.zones["core0"].Domain = ""
	c.read()
	c.use(1, 25)
	c.grow("package0", 2000)
	c.grow("package1", 400)
	c.grow("core0", 1500)
	got := c.read()
	if d := cmp.Diff(map[string]uint64{"packagedocker:a cpu_time_node": 600, "package ": 1800}, got); d != "" {
		t.Error(d)
	}
	delete(c.zones, "package1") // the other package is still there
	c.use(1, 25)
	c.grow("package0", 2000)
	if d := cmp.Diff(map[string]uint64{"packagedocker:a cpu_time_node": 1100, "package ": 3300}, c.read()); d != "" {
		t.Error(d)
	}
}

// TestCPUEnergyAbsent: without zones, or without usage, there are no shares.
func TestCPUEnergyAbsent(t *testing.T) {
	c := newCPUTime()
	c.read()
	if got := c.read(); len(got) != 0 {
		t.Errorf("without zones: %v", got)
	}
	c = newCPUTime("package0")
	for range 2 {
		c.read()
		c.counters = Counters{}
		c.Usages = nil
		if got := c.attribute(); len(got) != 0 {
			t.Errorf("without usage: %v", got)
		}
	}
	c.Node = nil
	if got := c.attribute(); len(got) != 0 {
		t.Errorf("without a node: %v", got)
	}
}

// TestCPUEnergyAddsUp: whatever happens, the shares of a domain add up to what its zones grew by, and no share falls.
func TestCPUEnergyAddsUp(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 4))
		c := newCPUTime("package0", "package1", "dram0")
		c.read()
		grown := map[string]uint64{}
		last := map[string]uint64{}
		for range 100 {
			before := c.used[model.CgroupID(1+r.IntN(3))]
			for id := range model.CgroupID(10) {
				if c.used[id] != nil && r.IntN(3) > 0 {
					c.use(id, r.Float64()*25)
				}
			}
			for _, zone := range []string{"package0", "package1", "dram0"} {
				n := r.Uint64N(zoneLimit)
				c.grow(zone, n)
				grown[string(c.zones[zone].Domain)] += n
			}
			switch r.IntN(20) {
			case 0:
				c.counters.Expire([]identity.OwnerID{identity.OwnerID(1 + r.IntN(3))})
				last = map[string]uint64{}
			case 1:
				c.counters.Credit(&model.Snapshot{}, c.owners, []identity.Merge{{From: 1, To: 2}})
				last = map[string]uint64{}
			case 2:
				before.CPU.Total.Value = 0
			}
			got, sums := c.read(), map[string]uint64{"package": 0, "dram": 0}
			for who, n := range got {
				if n < last[who] {
					t.Fatalf("seed %d: %s fell from %d to %d", seed, who, last[who], n)
				}
				for domain := range sums {
					if len(who) > len(domain) && who[:len(domain)] == domain {
						sums[domain] += n
					}
				}
			}
			if last = got; !maps.Equal(sums, grown) {
				t.Fatalf("seed %d: %v of %v: %v", seed, sums, grown, got)
			}
		}
	}
}
