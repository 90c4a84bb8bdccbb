// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// A world simulates a node on which processes move a known number of bytes.
type world struct {
	r       *rand.Rand
	surveys *rand.Rand // nil without surveys
	now     time.Time
	devices []*simDevice
	cgroups []*simCgroup
	next    uint64
	names   int // how often containers were renamed
	// moved is the true number of bytes of each owner.
	moved map[truthKey]uint64
	// answers selects the sources that answer in this refresh.
	answers struct{ probe, uprobe, qpCounter, kernel bool }
}

type truthKey struct {
	owner, device string
	direction     int
}

type simDevice struct {
	name    string
	ports   int
	counts  bool
	counter [2][directions]uint64 // by port
	kernel  uint64                // queue pairs of consumers in the kernel
	hidden  bool
	away    int // refreshes for which it stays invisible
	wasAway bool
}

// A simCgroup is one or more processes of one owner.
type simCgroup struct {
	id      uint64
	owner   string // empty for unattributed
	over    int    // refreshes since its end
	devices map[*simDevice]*simUse
}

type simUse struct {
	live, made uint64
	bytes      [directions]uint64 // payload, as the methods report it
	counted    [directions]uint64 // the part that hardware counters count
	bound      bool               // bound to hardware counters
	exact      bool               // otherwise surveys count it
	could      bool               // may move bytes in this interval
	uncounted  [directions]uint64 // payload of this interval, if it is not exact
	survey     *model.Survey
}

func (w *world) chance(percent int) bool { return w.r.IntN(100) < percent }

func (w *world) step() {
	for _, d := range w.devices {
		if d.away == 0 && w.chance(2) { // the driver was reloaded
			d.counter = [2][directions]uint64{}
		}
		if d.away = max(d.away-1, 0); d.ports == 1 && w.r.IntN(200) == 0 {
			d.away, d.wasAway = 2*maxMissedRefreshes, true
		}
		d.hidden = d.away > 0 || w.chance(5)
		if d.kernel > 0 {
			w.wire(d, "kernel:rds", w.r.IntN(directions), uint64(w.r.IntN(500))*4)
		}
		if w.chance(10) {
			d.kernel = uint64(w.r.IntN(2)) * 3
		}
	}
	if w.chance(5) {
		w.names++
	}
	if w.chance(30) && len(w.cgroups) < 12 {
		owner := fmt.Sprint("w", w.r.IntN(6))
		if w.chance(8) {
			owner = ""
		}
		w.next++
		w.cgroups = append(w.cgroups, &simCgroup{id: w.next, owner: owner, devices: map[*simDevice]*simUse{}})
	}
	for _, c := range w.cgroups {
		w.live(c)
	}
	w.cgroups = slices.DeleteFunc(w.cgroups, func(c *simCgroup) bool { return c.over > 3 })
	if w.surveys != nil {
		for _, d := range w.devices {
			w.survey(d)
		}
	}
	w.answers.probe, w.answers.kernel = w.chance(95), w.chance(97)
	w.answers.uprobe, w.answers.qpCounter = w.chance(90), w.chance(85)
}

// live lets a cgroup open devices, move bytes, close devices and end in one interval.
func (w *world) live(c *simCgroup) {
	if c.over > 0 {
		c.over++
		for _, u := range c.devices {
			u.could, u.survey = false, nil
		}
		return
	}
	for _, d := range w.devices {
		u := c.devices[d]
		if u == nil {
			if !w.chance(15) {
				continue
			}
			u = &simUse{bound: w.chance(40), exact: w.chance(85)}
			c.devices[d] = u
		}
		if u.live == 0 && w.chance(30) {
			u.live, u.made = u.live+1, u.made+1
		}
		u.could, u.uncounted = u.live > 0, [directions]uint64{}
		if u.live > 0 {
			for direction := range directions {
				payload := uint64(w.r.IntN(1000)) * 4
				headers := uint64(w.r.IntN(50)) * 4
				remote := uint64(w.r.IntN(2)*w.r.IntN(300)) * 4 // started by the peer, so that no method counts it
				w.wire(d, c.owner, direction, payload+headers+remote)
				if u.bound { // counted for some of the queue pairs
					u.counted[direction] += payload / uint64(1+w.r.IntN(3))
				}
				if u.exact {
					u.bytes[direction] += payload
				} else {
					u.uncounted[direction] = payload
				}
			}
			if w.chance(10) {
				u.exact = !u.exact
			}
			if w.chance(10) {
				u.bound = !u.bound
			}
		}
		if u.live > 0 && w.chance(15) {
			u.live = 0
		}
	}
	if w.chance(4) {
		c.over = 1
		for _, u := range c.devices {
			u.live = 0
		}
	}
}

// survey ends the surveys of exact uses, and surveys the others in every third interval. One survey in twenty is
// missed.
func (w *world) survey(d *simDevice) {
	all := w.surveys.IntN(3) == 0
	for _, c := range w.cgroups {
		u := c.devices[d]
		switch {
		case u == nil:
		case u.exact:
			u.survey = nil
		case c.over == 0 && all && w.surveys.IntN(20) > 0:
			u.survey = &model.Survey{
				Cgroup: model.CgroupID(c.id), Device: d.name, Begun: w.now.Add(-15 * time.Second), Ended: w.now,
				TransmitBytes: u.uncounted[transmit], ReceiveBytes: u.uncounted[receive],
			}
		}
	}
}

// mayBeSplit reports whether all uncounted bytes of this interval belong to known owners with a survey.
func (w *world) mayBeSplit(d *simDevice) bool {
	for _, c := range w.cgroups {
		u := c.devices[d]
		if u != nil && u.could && (c.owner == "" || u.uncounted != [directions]uint64{} && u.survey == nil) {
			return false
		}
	}
	return d.kernel == 0
}

func (w *world) wire(d *simDevice, owner string, direction int, bytes uint64) {
	if d.counts {
		d.counter[w.r.IntN(d.ports)][direction] += bytes
	}
	w.moved[truthKey{owner, d.name, direction}] += bytes
}

// snapshot returns the facts that the sources report.
func (w *world) snapshot() *node {
	n := newNode()
	n.Entities = map[model.CgroupID]entity{}
	for _, d := range w.devices {
		h := model.HCA{Name: d.name}
		for p := range d.ports {
			port := model.Port{Number: p + 1, LinkLayer: "InfiniBand"}
			if d.counts {
				port.Counters = []model.Counter{
					{Name: "unicast_rcv_packets"}, {Name: "port_xmit_data", Value: d.counter[p][transmit] / 4},
				}
				if !d.hidden || p == 0 {
					port.Counters = append(port.Counters, model.Counter{Name: "port_rcv_data", Value: d.counter[p][receive] / 4})
				}
			}
			h.Ports = append(h.Ports, port)
		}
		if !d.hidden || d.ports > 1 {
			n.HCAs = append(n.HCAs, h)
		}
		n.kernel(d.name, 2*uint64(d.ports)+d.kernel)
		if d.kernel > 0 {
			n.Domains = append(n.Domains, model.Domains{Device: d.name, Module: "rds_rdma", Count: 1, Used: 1})
		}
	}
	for _, c := range w.cgroups {
		if c.owner != "" {
			n.Entities[model.CgroupID(c.id)] = entity{Workload: "docker:" + c.owner, ContainerID: c.owner, Called: fmt.Sprint(c.owner, " ", w.names)}
		}
		for _, d := range w.devices {
			u := c.devices[d]
			if u == nil {
				continue
			}
			n.holds(c.id, d.name, u.live, u.made)
			if w.surveys != nil && w.answers.uprobe && c.over == 0 {
				gap := model.GapSurvey
				if u.exact {
					gap = ""
				}
				n.Coverage = append(n.Coverage, model.Coverage{Cgroup: model.CgroupID(c.id), Device: d.name, Gap: gap})
				if n.Surveys == nil {
					n.Surveys = []model.Survey{}
				}
				if u.survey != nil {
					n.Surveys = append(n.Surveys, *u.survey)
				}
			}
			for direction, name := range directionNames {
				f := model.Traffic{Cgroup: model.CgroupID(c.id), Device: d.name, Direction: name, Method: up, Bytes: u.bytes[direction]}
				if f.Resting = !u.exact; w.answers.uprobe {
					n.Traffic = append(n.Traffic, f)
				}
				f.Method, f.Bytes, f.Resting = qc, u.counted[direction], !u.bound
				if w.answers.qpCounter && (u.bound || f.Bytes > 0) {
					n.Traffic = append(n.Traffic, f)
				}
			}
		}
	}
	if !w.answers.probe {
		n.Objects, n.Created = nil, nil
	}
	if w.answers.uprobe {
		n.traced()
	}
	if !w.answers.kernel {
		n.Resources, n.Domains = nil, nil
	}
	return n
}

// A deviceTotal sums the exported counters of a device as Prometheus does.
type deviceTotal struct {
	last [2][directions]uint64
	sum  [directions]uint64
}

// TestLedgerProperties checks random histories, to the byte: the shares of a device add up to its total, no share
// falls, no owner gets more than it moved, and the memory of the ledger is bounded. With surveys, the ledger splits
// bytes, but only of intervals in which nobody else could have moved them.
func TestLedgerProperties(t *testing.T) {
	for _, surveys := range []bool{false, true} {
		t.Run(fmt.Sprintf("surveys=%v", surveys), func(t *testing.T) { ledgerProperties(t, surveys) })
	}
}

func ledgerProperties(t *testing.T, surveys bool) {
	split, unsplit := 0, 0
	for seed := range uint64(15) {
		w := &world{r: rand.New(rand.NewPCG(seed, 7)), moved: map[truthKey]uint64{}, devices: []*simDevice{
			{name: "hca0", ports: 1, counts: true},
			{name: "hca1", ports: 2, counts: true},
			{name: "vf0", ports: 1, counts: true},
			{name: "rxe0", ports: 1},
		}}
		if surveys {
			w.surveys = rand.New(rand.NewPCG(seed, 11))
		}
		l := testLedger{asRecorded: true}
		totals := map[string]*deviceTotal{}
		before := map[string]uint64{}
		known := 0
		history := fnv.New64a()
		for refresh := range 200 {
			w.now = w.now.Add(15 * time.Second)
			w.step()
			s := w.snapshot()
			for _, d := range w.devices {
				if !d.counts || d.hidden {
					continue
				}
				f := totals[d.name]
				if f == nil {
					f = &deviceTotal{}
					totals[d.name] = f
				}
				f.add(d.counter)
			}
			l.clock = w.now
			a := l.attribute(s)
			fmt.Fprintln(history, labeled(a))
			sums, owned, now := map[truthKey]uint64{}, map[truthKey]uint64{}, map[string]uint64{}
			for _, share := range a.Traffic {
				direction := slices.Index(directionNames[:], share.Direction)
				owner := shortName(&a, share.Owner)
				series := fmt.Sprint(owner, " ", share.Device, " ", share.Method, " ", direction)
				if _, twice := now[series]; twice {
					t.Fatalf("seed %d, refresh %d: two of %s", seed, refresh, series)
				}
				now[series] = share.Bytes
				sums[truthKey{"", share.Device, direction}] += share.Bytes
				if share.Method == model.MethodSurvey {
					by := slices.IndexFunc(w.devices, func(d *simDevice) bool { return d.name == share.Device })
					switch grown := share.Bytes > before[series]; {
					case grown && !w.mayBeSplit(w.devices[by]):
						t.Fatalf("seed %d, refresh %d: %s is split, and others could have moved the bytes", seed, refresh, share.Device)
					case grown:
						split++
					default:
						unsplit++
					}
					continue
				}
				owned[truthKey{owner, share.Device, direction}] += share.Bytes
			}
			for _, d := range w.devices {
				for direction := range directions {
					// Some bytes that were reported while the device was invisible had been moved earlier and were
					// unattributed.
					if m := l.devices[d.name]; m != nil && d.wasAway {
						for _, a := range m.directions[direction].accounts {
							sums[truthKey{"", d.name, direction}] -= a.free
						}
					}
					if f := totals[d.name]; f != nil && !d.hidden && sums[truthKey{"", d.name, direction}] != f.sum[direction] {
						t.Fatalf("seed %d, refresh %d: %s has moved %d, its shares are %d", seed, refresh, d.name,
							f.sum[direction], sums[truthKey{"", d.name, direction}])
					}
				}
			}
			for series, bytes := range before {
				if n, there := now[series]; there && n < bytes {
					t.Fatalf("seed %d, refresh %d: %s fell from %d to %d", seed, refresh, series, bytes, n)
				}
			}
			// The unattributed share is hidden while its device is; its value must be kept.
			for series, bytes := range before {
				if _, there := now[series]; !there && series[0] == ' ' {
					now[series] = bytes
				}
			}
			before = now
			for k, bytes := range owned {
				if k.owner != "" && bytes > w.moved[k] {
					t.Fatalf("seed %d, refresh %d: %v has %d, and moved %d", seed, refresh, k, bytes, w.moved[k])
				}
				if k.owner != "" && bytes > 0 {
					known++
				}
			}
			if len(l.rows) > 12*4*2*3*(maxMissedRefreshes+5) || len(l.accounts) > 6*4*2*5 {
				t.Fatalf("seed %d: %d rows, %d accounts", seed, len(l.rows), len(l.accounts))
			}
		}
		if known == 0 {
			t.Errorf("seed %d: no owner ever got anything", seed)
		}
		if got := history.Sum64(); !surveys && got != ledgerHistories[seed] {
			t.Errorf("seed %d: the shares of the history have the checksum %#x, want %#x", seed, got, ledgerHistories[seed])
		}
	}
	t.Logf("%d shares of surveys grew, %d did not", split, unsplit)
	if (split > 100 && unsplit > 100) != surveys {
		t.Errorf("%d shares of surveys grew, %d did not", split, unsplit)
	}
}

// ledgerHistories are checksums of all shares of a history, by seed. They detect any change of the ledger's arithmetic.
var ledgerHistories = [15]uint64{
	0x65afa96dd54074d7, 0x54107d5c48e4432f, 0xd0d294d2658acfbd, 0xbbb02fbb3881118e, 0x47d5809fd73988d3,
	0xc9d1c849e3a58ce8, 0xa0a3348d448aed04, 0x05cafba763a162e7, 0x02a3e3ead74cce8d, 0xe69285a7d23ab08d,
	0x2abad2126b746617, 0xd8f1085fd12fbc4b, 0x26190cdedc6daef4, 0x6756f6f27791acf5, 0xd4ec89fbab0e065b,
}

// labeled lists the shares of traffic by container id or kernel user, sorted.
func labeled(a attribution.Attribution) string {
	lines := make([]string, len(a.Traffic))
	for i, s := range a.Traffic {
		lines[i] = fmt.Sprint(shortName(&a, s.Owner), " ", s.Device, s.Method, s.Direction, s.Bytes)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (f *deviceTotal) add(now [2][directions]uint64) {
	for p := range now {
		for direction := range directions {
			value, last := now[p][direction]/4*4, f.last[p][direction]
			if value < last {
				last = 0
			}
			f.sum[direction] += value - last
		}
	}
	f.last = now
}

// TestLedgerConverges checks that each owner has exactly the bytes it moved once all posted
// bytes have been sent, if the methods count everything and no owner ends, and that the same
// history gives the same shares.
func TestLedgerConverges(t *testing.T) {
	for seed := range uint64(10) {
		first := converge(t, seed)
		if again := converge(t, seed); !slices.Equal(first, again) {
			t.Fatalf("seed %d: %v, and again %v", seed, first, again)
		}
	}
}

func converge(t *testing.T, seed uint64) []attribution.TrafficShare {
	r := rand.New(rand.NewPCG(seed, 9))
	const owners = 5
	var l testLedger
	var posted, wire [owners]uint64
	var shares []attribution.TrafficShare
	for refresh := range 60 {
		var total uint64
		n := newNode()
		for i := range posted {
			if refresh > 0 && refresh < 50 {
				posted[i] += uint64(r.IntN(1<<uint(r.IntN(20)))) * 4
			}
			if behind := posted[i] - wire[i]; refresh == 59 {
				wire[i] = posted[i]
			} else if behind > 0 {
				wire[i] += r.Uint64N(behind/4+1) * 4
			}
			total += wire[i]
		}
		n.device("d", total, 0)
		for i := range posted {
			n.holds(uint64(i), "d", 1, 1)
			if i%2 == 0 {
				n.reports(uint64(i), "d", qc, wire[i]) // hardware counts sent bytes
			}
			n.reports(uint64(i), "d", up, posted[i])
		}
		shares = l.attribute(n).Traffic
		var sum uint64
		for _, s := range shares {
			if s.Direction == model.Transmit {
				sum += s.Bytes
			}
		}
		if sum != total {
			t.Fatalf("seed %d, refresh %d: %d of %d", seed, refresh, sum, total)
		}
	}
	var got [owners]uint64
	for _, s := range shares {
		if s.Direction == model.Transmit && s.Owner > 0 {
			got[s.Owner-1] += s.Bytes
		}
	}
	if got != posted {
		t.Errorf("seed %d: %v, moved %v", seed, got, posted)
	}
	return shares
}

// BenchmarkLedger measures the cost of traffic in Attribute: 138 ports, 300 owners with two
// ports each, both methods in both directions.
func BenchmarkLedger(b *testing.B) {
	for _, traffic := range []bool{false, true} {
		b.Run(fmt.Sprintf("traffic=%v", traffic), func(b *testing.B) {
			n := newNode()
			for d := range 138 {
				n.device(fmt.Sprint("mlx5_", d), uint64(d)<<30, 0)
				p := &n.HCAs[d].Ports[0]
				for i := range 20 {
					p.Counters = append(p.Counters, model.Counter{Name: fmt.Sprint("port_other_", i)})
				}
			}
			for id := range uint64(300) {
				e := n.Entities[1]
				e.Workload, e.ContainerID = fmt.Sprintf("ns/p%d/c", id), fmt.Sprint("c", id)
				e.Pod = fmt.Sprint("p", id)
				n.Entities[model.CgroupID(id)] = e
				for i := range uint64(2) {
					d := fmt.Sprint("mlx5_", (id+i*69)%138)
					n.holds(id, d, 1, 1)
					for _, m := range []model.Method{up, qc} {
						for _, direction := range directionNames {
							n.Traffic = append(n.Traffic, model.Traffic{Cgroup: model.CgroupID(id), Device: d, Method: m, Direction: direction})
						}
					}
				}
			}
			var l testLedger
			b.ReportAllocs()
			for b.Loop() {
				if !traffic {
					attribution.Attribute(&n.Snapshot, &l.owners, &l.counters, func(*attribution.Attribution) {})
					continue
				}
				for i := range n.HCAs {
					n.HCAs[i].Ports[0].Counters[0].Value += 1000
				}
				for i := range n.Traffic {
					n.Traffic[i].Bytes += 500
				}
				l.attribute(n)
			}
		})
	}
}
