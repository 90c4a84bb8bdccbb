// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"
)

// A simProcess is a simulated process: it uses cores CPUs for its own work, and posts and polls at these rates per
// second. A trap adds to its CPU time; a process that is bound by its CPU makes fewer calls instead.
type simProcess struct {
	pid        int
	file       File
	begin, end time.Duration // start and end of the process; end 0: never ends
	load       func(at time.Duration) simLoad
	changes    []time.Duration // times at which load changes

	cpu       float64
	spent     [Groups]float64
	switching [Groups]float64 // spent on switching
	owes      [Groups]float64
	done      [Groups]float64 // calls that the process made
	seen      [Groups]float64 // hits until the last tick
	kept      [Groups]float64 // hits that wait for the end of their period
	exact     [Groups]float64
	guess     [Groups]float64 // exact calls and scaled calls
	hits      [Groups]float64
	trace     []simSample
}

type simLoad struct {
	cores        float64
	bound        bool // limited by its CPU
	spins        bool // makes as many calls while probes take CPU time, and does less else
	posts, polls float64
	trap         float64 // cost of a trap in s
}

type simSample struct{ at, cpu, spent float64 }

type sim struct {
	t         *testing.T
	b         *Budget
	limit     float64
	random    *rand.Rand
	processes []*simProcess
	pages     [Groups]int
	late      time.Duration // maximum delay of a tick
	delay     time.Duration // delay of attaching and detaching
	prepare   time.Duration // after which a group is ready to be detached
	slow      time.Duration // for which detached probes stay in place
	jump      func(at time.Duration) time.Duration

	now      time.Duration
	on       map[unitID]bool
	ending   map[unitID]time.Duration // since when a window is to end
	gone     map[unitID]time.Duration // when detached probes are no longer in place
	onTime   map[unitID]time.Duration
	ticks    int
	switches int
}

const simSwitchCost = 10 * time.Microsecond

func newSim(t *testing.T, limit float64, processes ...*simProcess) *sim {
	random := rand.New(rand.NewPCG(1, 2))
	b := New(limit, random.Float64)
	b.SetSwitchCost(simSwitchCost)
	return &sim{
		t: t, b: b, limit: limit, random: random, processes: processes,
		pages: [Groups]int{2, 1}, late: 2 * time.Millisecond, delay: time.Millisecond,
		on: map[unitID]bool{}, ending: map[unitID]time.Duration{}, gone: map[unitID]time.Duration{}, onTime: map[unitID]time.Duration{},
	}
}

func (s *sim) ready(id unitID) bool {
	if !s.b.Ending(id.file, id.group) {
		delete(s.ending, id)
		return s.prepare == 0
	}
	if _, ok := s.ending[id]; !ok {
		s.ending[id] = s.now
	}
	return s.now >= s.ending[id]+s.prepare
}

func (p *simProcess) lives(at time.Duration) bool { return at >= p.begin && (p.end == 0 || at < p.end) }

// advance lets time pass, in intervals in which nothing changes.
func (s *sim) advance(to time.Duration) {
	cuts := []time.Duration{to}
	for _, c := range s.gone {
		if c > s.now && c < to {
			cuts = append(cuts, c)
		}
	}
	for _, p := range s.processes {
		for _, c := range append([]time.Duration{p.begin, p.end}, p.changes...) {
			if c > s.now && c < to {
				cuts = append(cuts, c)
			}
		}
	}
	slices.Sort(cuts)
	for _, c := range slices.Compact(cuts) {
		dt := (c - s.now).Seconds()
		for _, p := range s.processes {
			if p.lives(s.now) {
				p.run(s, dt)
				p.trace = append(p.trace, simSample{c.Seconds(), p.cpu, p.total()})
				if p.end == c {
					s.last(p)
				}
			}
		}
		for id, on := range s.on {
			if on {
				s.onTime[id] += c - s.now
			}
		}
		s.now = c
	}
}

func (p *simProcess) total() float64 {
	return p.spent[0] + p.spent[1] + p.switching[0] + p.switching[1]
}

func (p *simProcess) run(s *sim, dt float64) {
	l := p.load(s.now)
	work := l.cores * dt
	rates := [Groups]float64{l.posts, l.polls}
	room := work
	for c := range Groups {
		paid := min(p.owes[c], room)
		p.owes[c] = 0
		p.switching[c] += paid
		p.cpu += paid
		room -= paid
	}
	if l.bound {
		work = room
		slower := 1.0
		for c, r := range rates {
			if id := (unitID{p.file, c}); s.on[id] || s.gone[id] > s.now {
				slower += r * l.trap
			}
		}
		work /= slower
	}
	if l.spins {
		for c, r := range rates {
			if id := (unitID{p.file, c}); s.on[id] || s.gone[id] > s.now {
				work = max(work-r*dt*l.trap, 0)
			}
		}
	}
	p.cpu += work
	for c, r := range rates {
		n := r * dt
		if l.bound {
			n = r * work
		}
		p.done[c] += n
		switch id := (unitID{p.file, c}); {
		case s.on[id]:
			p.hits[c] += n
			p.spent[c] += n * l.trap
			p.cpu += n * l.trap
		case s.gone[id] > s.now: // the programs no longer run
			p.switching[c] += n * l.trap
			p.cpu += n * l.trap
		}
	}
}

// fold simulates the fold of the source.
func (p *simProcess) fold(c int, how Sampling) {
	delta := p.hits[c] - p.seen[c]
	p.seen[c] = p.hits[c]
	if how.Discard {
		if !how.Keep {
			p.kept[c] = 0
		}
		return
	}
	p.kept[c] += delta
	if !how.Windowed {
		p.exact[c] += delta
	}
	p.guess[c] += p.kept[c] * how.Scale
	if how.Scale != 0 {
		p.kept[c] = 0
	}
}

// last folds the calls of a process since the last tick.
func (s *sim) last(p *simProcess) {
	for c := range Groups {
		u := s.b.units[unitID{p.file, c}]
		p.fold(c, Sampling{Windowed: !u.exact, Scale: 1 / u.ratio, Discard: u.from.IsZero() && !u.exact})
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (s *sim) run(until time.Duration) {
	epoch := time.Unix(1e9, 0)
	for s.now < until {
		at := epoch.Add(s.now)
		if s.jump != nil {
			at = at.Add(s.jump(s.now))
		}
		var loads []ProcessLoad
		files := map[File]*FileLoad{}
		for _, p := range s.processes {
			if !p.lives(s.now) {
				continue
			}
			loads = append(loads, ProcessLoad{p.pid, seconds(p.cpu), [Groups]time.Duration{seconds(p.spent[0]), seconds(p.spent[1])}})
			f := files[p.file]
			if f == nil {
				f = &FileLoad{File: p.file, Pages: s.pages}
				for c := range Groups {
					f.Ready[c] = s.ready(unitID{p.file, c})
				}
				for c := range Groups {
					f.Detaching[c] = s.gone[unitID{p.file, c}] > s.now
				}
				files[p.file] = f
			}
			f.PIDs = append(f.PIDs, p.pid)
		}
		var list []FileLoad
		for _, f := range files {
			list = append(list, *f)
		}
		wants, next := s.b.Tick(at, loads, list)
		s.ticks++
		for _, f := range list {
			for c := range Groups {
				how := s.b.Sampling(f.File, c)
				for _, p := range s.processes {
					if p.file == f.File && p.lives(s.now) {
						p.fold(c, how.Of(p.pid))
					}
				}
			}
		}
		if !next.After(at) {
			s.t.Fatalf("asked to come again at %v, and it is %v", next, at)
		}
		wait := next.Sub(at)
		changed := false
		for _, f := range list {
			for c, want := range wants[f.File] {
				changed = changed || s.on[unitID{f.File, c}] != want
			}
		}
		if changed {
			s.advance(s.now + s.delay)
			wait = max(wait-s.delay, 0)
			for _, f := range list {
				for c, want := range wants[f.File] {
					id := unitID{f.File, c}
					if s.on[id] == want {
						continue
					}
					s.on[id] = want
					s.switches++
					if !want && s.slow > 0 {
						s.gone[id] = s.now + s.slow
						s.b.Detaching(f.File, c, f.PIDs)
					}
					for _, p := range s.processes {
						if p.file == f.File && p.lives(s.now) {
							p.owes[c] += (time.Duration(s.pages[c]) * simSwitchCost).Seconds()
						}
					}
					s.b.Switched(f.File, c, want, at.Add(s.delay), f.PIDs)
				}
			}
		}
		s.advance(s.now + wait + time.Duration(s.random.Float64()*float64(s.late)))
	}
	for _, p := range s.processes {
		if p.lives(s.now) {
			s.last(p)
		}
	}
}

// worst returns the highest fraction of a process's CPU time that probes took in any minute of its life, and the CPU
// time beyond the limit in that minute.
func (p *simProcess) worst(limit float64) (ratio, excess float64) {
	at := func(when float64) (cpu, spent float64) {
		i := sort.Search(len(p.trace), func(i int) bool { return p.trace[i].at >= when })
		if i == len(p.trace) {
			i--
		}
		b := p.trace[i]
		a := simSample{at: p.begin.Seconds()}
		if i > 0 {
			a = p.trace[i-1]
		}
		part := 1.0
		if b.at > a.at {
			part = min((when-a.at)/(b.at-a.at), 1)
		}
		return a.cpu + part*(b.cpu-a.cpu), a.spent + part*(b.spent-a.spent)
	}
	end := p.trace[len(p.trace)-1].at
	excess = math.Inf(-1)
	for _, s := range append([]simSample{{at: p.begin.Seconds()}, {at: end - 60}}, p.trace...) {
		for _, from := range []float64{s.at, s.at - 60} {
			if from < p.begin.Seconds()-1e-9 || from+60 > end+1e-9 {
				continue
			}
			cpu1, spent1 := at(from)
			cpu2, spent2 := at(from + 60)
			if over := spent2 - spent1 - limit*(cpu2-cpu1); over > excess {
				excess = over
			}
			if cpu2 > cpu1 {
				ratio = max(ratio, (spent2-spent1)/(cpu2-cpu1))
			}
		}
	}
	return ratio, excess
}

// holds checks that probes exceeded the limit of no process in any minute, beyond a negligible amount.
func (s *sim) holds(allow time.Duration) {
	s.t.Helper()
	worst, over := 0.0, math.Inf(-1)
	for _, p := range s.processes {
		if len(p.trace) == 0 || p.trace[len(p.trace)-1].at-p.begin.Seconds() < 60 {
			continue
		}
		ratio, excess := p.worst(s.limit)
		worst, over = max(worst, ratio), max(over, excess)
		if excess > (50*time.Microsecond + allow).Seconds() {
			s.t.Errorf("process %d: a minute took %.3f %% of its CPU time, %v more than the limit of %.3g %%",
				p.pid, 100*ratio, seconds(excess), 100*s.limit)
		}
	}
	s.t.Logf("worst minute %.3f %% of CPU (excess %v), %.1f ticks/s, %.2f switches/s",
		100*worst, seconds(over), float64(s.ticks)/s.now.Seconds(), float64(s.switches)/s.now.Seconds())
	for id, on := range s.onTime {
		s.t.Logf("file %d %s: on %.3f %% of the time", id.file.Inode, []string{"post", "poll"}[id.group], 100*on.Seconds()/s.now.Seconds())
	}
}

func (s *sim) ratio(c int) float64 {
	return s.onTime[unitID{simFile, c}].Seconds() / s.now.Seconds()
}

var simFile = File{1, 1}

func steady(pid int, l simLoad) *simProcess {
	l.trap = 1.4e-6
	return &simProcess{pid: pid, file: simFile, load: func(time.Duration) simLoad { return l }}
}

// stays checks that all calls were counted exactly.
func (p *simProcess) stays(t *testing.T) {
	t.Helper()
	for c := range Groups {
		if missed := p.done[c] - p.exact[c]; missed > 2e-3*p.done[0]/p.cpu+p.done[c]*1e-2 {
			t.Errorf("process %d, calls %d: %.0f of %.0f are not exact", p.pid, c, missed, p.done[c])
		}
	}
}

func TestBudgetOneProcess(t *testing.T) {
	for _, test := range []struct {
		name       string
		load       simLoad
		post, poll [2]float64 // minimum and maximum of the observed fraction of the time
	}{
		{"idle", simLoad{cores: 0.001}, [2]float64{1, 1}, [2]float64{1, 1}},
		{"quiet", simLoad{cores: 0.2, posts: 400, polls: 400}, [2]float64{1, 1}, [2]float64{1, 1}},
		{"event-driven", simLoad{cores: 0.001, posts: 1000, polls: 1000}, [2]float64{0.0001, 0.02}, [2]float64{0.0001, 0.02}},
		{"busy poller", simLoad{cores: 1, bound: true, polls: 5e6}, [2]float64{1, 1}, [2]float64{0.005, 0.012}},
		{"busy poller, few posts", simLoad{cores: 1, bound: true, posts: 2000, polls: 1e6}, [2]float64{1, 1}, [2]float64{0.006, 0.02}},
		{"posts and polls", simLoad{cores: 1, bound: true, posts: 5e4, polls: 2e5}, [2]float64{0.07, 0.13}, [2]float64{0.005, 0.02}},
		{"bound by the network", simLoad{cores: 0.3, posts: 5e4, polls: 2e5}, [2]float64{0.02, 0.05}, [2]float64{0.002, 0.01}},
		{"threads", simLoad{cores: 16, bound: true, posts: 1e6, polls: 1e6}, [2]float64{0.004, 0.02}, [2]float64{0.001, 0.006}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := steady(1, test.load)
			s := newSim(t, 0.01, p)
			s.run(10 * time.Minute)
			s.holds(0)
			for c, want := range [][2]float64{test.post, test.poll} {
				if r := s.ratio(c); r < want[0]*0.999 || r > want[1] {
					t.Errorf("calls %d: watched %.4f of the time, want %v", c, r, want)
				}
				// A process that is limited by its CPU makes fewer calls in a window.
				if r := p.guess[c] / p.done[c]; p.done[c] > 0 && !test.load.bound && (r < 0.85 || r > 1.15) {
					t.Errorf("calls %d: %.3f of the calls are reported", c, r)
				}
			}
			if test.post[0] == 1 && test.poll[0] == 1 {
				p.stays(t)
				if rate := float64(s.ticks) / s.now.Seconds(); rate > 11 || p.done[Post] == 0 && rate > 4 {
					t.Errorf("%.1f ticks a second", rate)
				}
			}
		})
	}
}

func TestBudgetLateTicks(t *testing.T) {
	for _, late := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			p := steady(1, simLoad{cores: 1, bound: true, posts: 1e5, polls: 5e6})
			s := newSim(t, 0.01, p)
			s.late = late
			s.run(10 * time.Minute)
			s.holds(0)
		})
	}
}

// The reported calls of a steady load are correct on average.
func TestBudgetUnbiased(t *testing.T) {
	for _, l := range []simLoad{{cores: 0.3, posts: 5e4, polls: 2e5}, {cores: 0.001, posts: 1000, polls: 1000}} {
		const runs = 10
		var reported [Groups]float64
		for seed := range uint64(runs) {
			p := steady(1, l)
			s := newSim(t, 0.01, p)
			s.random = rand.New(rand.NewPCG(seed, 2))
			s.b.random = s.random.Float64
			s.run(10 * time.Minute)
			for c := range Groups {
				reported[c] += p.guess[c] / p.done[c] / runs
			}
		}
		for c, r := range reported {
			if r < 0.95 || r > 1.05 {
				t.Errorf("%+v: calls %d: %.3f of the calls are reported", l, c, r)
			}
		}
	}
}

// Detached probes stay in place until all CPUs have been waited for.
func TestBudgetSlowDetach(t *testing.T) {
	for _, slow := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			p := steady(1, simLoad{cores: 0.4, posts: 300, polls: 2e5})
			s := newSim(t, 0.01, p)
			s.delay, s.slow = 10*time.Millisecond, slow
			s.run(20 * time.Minute)
			s.holds(0)
			if r := p.guess[Poll] / p.done[Poll]; r < 0.7 || r > 1.3 {
				t.Errorf("%.3f of the polls are reported", r)
			}
		})
	}
}

// A window ends only when its probes can be removed at once. What they count until then is counted.
func TestBudgetPrepare(t *testing.T) {
	for _, prepare := range []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond} {
		t.Run(fmt.Sprint(prepare), func(t *testing.T) {
			p := steady(1, simLoad{cores: 0.4, posts: 300, polls: 2e5})
			s := newSim(t, 0.01, p)
			s.prepare = prepare
			s.run(20 * time.Minute)
			s.holds(0)
			if r := p.guess[Poll] / p.done[Poll]; r < 0.9 || r > 1.1 {
				t.Errorf("%.3f of the polls are reported", r)
			}
			if used := p.total() / (s.limit * p.cpu); used < 0.5 {
				t.Errorf("%.0f %% of the budget was used", 100*used)
			}
		})
	}
}

func TestBudgetRanks(t *testing.T) {
	var ranks []*simProcess
	for i := range 192 {
		l := simLoad{cores: 1, bound: true, posts: float64(100 * (i % 7)), polls: 1e5 + 2e4*float64(i)}
		if i == 100 {
			l = simLoad{cores: 1e-5} // the launcher, which is mostly idle
		}
		ranks = append(ranks, steady(i+1, l))
	}
	s := newSim(t, 0.01, ranks...)
	s.run(150 * time.Second)
	s.holds(0)
	if r := s.ratio(Post); r < 0.99 {
		t.Errorf("posting is watched %.3f of the time", r)
	}
	if r := s.ratio(Poll); r < 0.003 {
		t.Errorf("polling is watched %.5f of the time", r)
	}
}

// A process has a low load, and a high load now and then.
func TestBudgetBursts(t *testing.T) {
	p := steady(1, simLoad{})
	p.load = func(at time.Duration) simLoad {
		if at > 2*time.Minute && at < 6*time.Minute && at%(20*time.Second) < 3*time.Second {
			return simLoad{cores: 1, bound: true, posts: 1e5, polls: 2e6, trap: 1.4e-6}
		}
		return simLoad{cores: 0.3, posts: 300, polls: 300, trap: 1.4e-6}
	}
	for at := 2 * time.Minute; at < 6*time.Minute; at += 20 * time.Second {
		p.changes = append(p.changes, at, at+3*time.Second)
	}
	s := newSim(t, 0.01, p)
	var flaps int
	before := true
	for at := 10 * time.Second; at <= 20*time.Minute; at += 10 * time.Second {
		s.run(at)
		if now := s.b.units[unitID{simFile, Post}].exact; now != before {
			before = now
			flaps++
		}
	}
	// A burst that begins right after a tick and ends soon is detected too late.
	s.holds(30 * time.Millisecond)
	if !before || !s.b.units[unitID{simFile, Poll}].exact {
		t.Error("not exact again, long after the last burst")
	}
	if flaps > 8 {
		t.Errorf("changed between exact and windows %d times", flaps)
	}
	t.Logf("%d changes", flaps)
	for c := range Groups {
		t.Logf("calls %d: %.3f of them reported", c, p.guess[c]/p.done[c])
	}
}

// Bursts of a process that otherwise takes little CPU time: 0.1 s of one with probes costs a third of what the process earns in a
// minute. Only the first burst, of which nothing is known, may exceed the limit by more than a late end of a window.
func TestBudgetDearBursts(t *testing.T) {
	const runs = 20
	for _, slow := range []time.Duration{20 * time.Millisecond, 60 * time.Millisecond} {
		highest, mean, used := 0.0, 0.0, 0.0
		for seed := range uint64(runs) {
			begin := time.Duration(seed) * 190 * time.Millisecond
			p := &simProcess{pid: 1, file: simFile, load: func(at time.Duration) simLoad {
				if at >= begin && (at-begin)%(4*time.Second) < time.Second {
					return simLoad{cores: 0.17, posts: 80_000, polls: 800, trap: 1.5e-6}
				}
				return simLoad{cores: 0.008, polls: 900, trap: 1.5e-6}
			}}
			const end = 10 * time.Minute
			for at := begin; at < end; at += 4 * time.Second {
				p.changes = append(p.changes, at, at+time.Second)
			}
			s := newSim(t, 0.01, p)
			s.random = rand.New(rand.NewPCG(seed, 2))
			s.b.random = s.random.Float64
			s.prepare, s.slow = 40*time.Millisecond, slow
			s.run(end)
			used += p.total() / (s.limit * p.cpu) / runs
			p.begin = begin + 5*time.Second // after the first burst
			worst, _ := p.worst(s.limit)
			highest, mean = max(highest, worst/s.limit), mean+worst/s.limit/runs
		}
		t.Logf("detached after %v: the worst minute took %.2f of the limit, %.2f in the mean of the runs; %.2f of the budget was used",
			slow, highest, mean, used)
		if highest > 1.5 || mean > 1.1 || used < 0.5 {
			t.Error("want at most 1.5 and 1.1, and 0.5 or more used")
		}
	}
}

// Processes start and end in one file; the one that remains must be watched.
func TestBudgetJoinAndExit(t *testing.T) {
	stays := steady(1, simLoad{cores: 0.5, posts: 500, polls: 500})
	all := []*simProcess{stays}
	for i := range 200 {
		p := steady(i+2, simLoad{cores: 0.5, posts: 300, polls: 300})
		p.begin = time.Duration(i)*time.Second + 300*time.Millisecond
		p.end = p.begin + 5*time.Second
		all = append(all, p)
	}
	busy := steady(1000, simLoad{cores: 1, bound: true, polls: 1e6})
	busy.begin, busy.end = 300*time.Second, 420*time.Second
	all = append(all, busy)
	s := newSim(t, 0.01, all...)
	s.run(290 * time.Second)
	stays.stays(t)
	for _, p := range all[1:201] {
		p.stays(t)
	}
	s.run(15 * time.Minute)
	s.holds(0)
	for c := range Groups {
		if !s.b.units[unitID{simFile, c}].exact {
			t.Errorf("calls %d: not exact again after the busy one went", c)
		}
	}
	if len(s.b.processes) != 1 || len(s.b.units) != 2 {
		t.Errorf("%d processes, %d units are remembered", len(s.b.processes), len(s.b.units))
	}
}

func TestBudgetClockJumps(t *testing.T) {
	p := steady(1, simLoad{cores: 1, bound: true, posts: 1000, polls: 1e6})
	s := newSim(t, 0.01, p)
	s.jump = func(at time.Duration) time.Duration {
		switch {
		case at > 4*time.Minute:
			return -26 * time.Hour
		case at > 2*time.Minute:
			return time.Hour
		}
		return 0
	}
	s.run(8 * time.Minute)
	s.holds(0)
	if r := s.ratio(Poll); r < 0.005 {
		t.Errorf("polling is watched %.4f of the time", r)
	}
}

// A limit of zero means no limit, and a high limit keeps everything exact.
func TestBudgetWithoutLimit(t *testing.T) {
	for _, limit := range []float64{0, 10} {
		p := steady(1, simLoad{cores: 1, bound: true, posts: 1e5, polls: 5e6})
		s := newSim(t, limit, p)
		s.run(time.Minute)
		p.stays(t)
	}
}

func TestBudgetTooExpensive(t *testing.T) {
	p := steady(1, simLoad{cores: 0.001, posts: 100_000, polls: 0})
	s := newSim(t, 0.001, p)
	s.run(20 * time.Minute)
	t.Logf("%d switches, on for %v", s.switches, s.onTime[unitID{simFile, Post}])
	if n := s.switches; n < 4 || n > 50 {
		t.Errorf("%d switches in 20 minutes", n)
	}
}

// Probes stay in place while they are detached. So a window may cost several seconds of earnings; it opens again when
// that is paid, and the budget is used.
func TestBudgetDearWindows(t *testing.T) {
	for _, slow := range []time.Duration{20 * time.Millisecond, 40 * time.Millisecond, 60 * time.Millisecond} {
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			p := steady(1, simLoad{cores: 0.1, posts: 5e4})
			s := newSim(t, 0.01, p)
			s.slow = slow
			var last float64
			var changed, unchanged time.Duration
			for at := time.Second; at <= 10*time.Minute; at += time.Second {
				s.run(at)
				if p.guess[Post] != last {
					last, changed = p.guess[Post], at
				}
				unchanged = max(unchanged, at-changed)
			}
			s.holds(0)
			if unchanged > 15*time.Second {
				t.Errorf("the estimate did not change for %v", unchanged)
			}
			if used := p.total() / (s.limit * p.cpu); used < 0.5 {
				t.Errorf("%.0f %% of the budget was used", 100*used)
			}
			if r := p.guess[Post] / p.done[Post]; r < 0.9 || r > 1.1 {
				t.Errorf("%.3f of the calls are reported", r)
			}
		})
	}
}

// A process that begins to post just after a check has no earnings by which the price of a window is known.
func TestBudgetBegin(t *testing.T) {
	for _, test := range []struct {
		load      simLoad
		unchanged time.Duration
	}{
		{simLoad{cores: 0.2, posts: 2e4, trap: 1e-6}, 5 * time.Second},
		{simLoad{cores: 0.3, posts: 8e4, trap: 1e-6}, 15 * time.Second},
		{simLoad{cores: 0.1, posts: 31_000, trap: 1e-6}, 15 * time.Second},
		// Until the check it takes half a minute's earnings, of a whole core that only executes traps.
		{simLoad{cores: 1, bound: true, posts: 1e6, trap: 1e-6}, 20 * time.Second},
	} {
		t.Run(fmt.Sprintf("%.1f CPUs, %.0f per second", test.load.cores, test.load.posts), func(t *testing.T) {
			var worst time.Duration
			for delay := range 10 {
				begin := 5*time.Second + time.Duration(delay)*30*time.Millisecond
				p := &simProcess{pid: 1, file: simFile, changes: []time.Duration{begin}, load: func(at time.Duration) simLoad {
					if at < begin {
						return simLoad{}
					}
					return test.load
				}}
				s := newSim(t, 0.01, p)
				s.prepare, s.slow = 40*time.Millisecond, 20*time.Millisecond
				var last float64
				changed := begin
				for at := begin; at <= 3*time.Minute; at += time.Second / 2 {
					s.run(at)
					if p.guess[Post] != last {
						last, changed = p.guess[Post], at
					}
					worst = max(worst, at-changed)
				}
				s.holds(0)
			}
			if worst > test.unchanged {
				t.Errorf("the estimate did not change for %v, want at most %v", worst, test.unchanged)
			}
		})
	}
}

// What was counted until the probes are detached for the first time is exact. It is no estimate of what follows until the
// first window ends.
func TestBudgetLeavesExact(t *testing.T) {
	b := New(0.01, func() float64 { return 0 })
	at := time.Unix(1e9, 0)
	load := ProcessLoad{PID: 1}
	for on := true; on; at = at.Add(100 * time.Millisecond) {
		wants, _ := b.Tick(at, []ProcessLoad{load}, []FileLoad{{File: simFile, Pages: [Groups]int{1, 1}, PIDs: []int{1}}})
		on = wants[simFile][Post]
		if how := b.Sampling(simFile, Post); how.Windowed || how.Scale != 1 {
			t.Fatalf("%+v while the probes are attached", how)
		}
		b.Switched(simFile, Post, on, at, []int{1})
		load.CPU += 50 * time.Millisecond
		load.Spent[Post] += 20 * time.Millisecond
	}
	b.Tick(at, []ProcessLoad{load}, []FileLoad{{File: simFile, Pages: [Groups]int{1, 1}, PIDs: []int{1}}})
	if how := b.Sampling(simFile, Post); !how.Windowed || how.Scale != 0 {
		t.Errorf("%+v before the first window ends", how)
	}
}

// The calls of bursts, whose CPU time opens the windows. What was counted since the last window is missing. Scaled by time,
// the estimates were 40 to 140 % too high on average.
func TestBudgetEstimatesBursts(t *testing.T) {
	for name, burst := range map[string]simLoad{
		"idle between": {cores: 0.2, posts: 2e4, polls: 2e4, trap: 1e-6},
		"bound":        {cores: 1, bound: true, posts: 5e4, polls: 1e5, trap: 1e-6},
		"fast":         {cores: 0.2, posts: 1e5, trap: 1e-6},
	} {
		t.Run(name, func(t *testing.T) {
			for _, test := range []struct {
				end         time.Duration
				mean, worst float64
			}{{time.Minute, 0.5, 1}, {5 * time.Minute, 0.1, 0.25}, {10 * time.Minute, 0.1, 0.15}} {
				mean, worst := burstErrors(t, burst, test.end)
				t.Logf("%v: mean error %.3f, worst %.3f", test.end, mean, worst)
				for c := range Groups {
					if math.Abs(mean[c]) > test.mean || worst[c] > test.worst {
						t.Errorf("%v: error of calls %d: %.3f, of the worst run %.3f", test.end, c, mean[c], worst[c])
					}
				}
			}
		})
	}
}

// A process that polls all the time posts as often in windows as outside of them, though it has less CPU time of its own there.
func TestBudgetEstimatesSpinning(t *testing.T) {
	for _, cores := range []float64{1, 3} {
		p := steady(1, simLoad{cores: cores, spins: true, posts: 2e5 * cores, trap: 1e-6})
		s := newSim(t, 0.01, p)
		s.run(5 * time.Minute)
		if r := p.guess[Post] / p.done[Post]; r < 0.9 || r > 1.02 {
			t.Errorf("%v CPUs: estimated %.3f of the posts", cores, r)
		}
	}
}

// burstErrors returns the relative error of estimates of bursts, 1 s in 4 s, in ten runs.
func burstErrors(t *testing.T, burst simLoad, end time.Duration) (mean, worst [Groups]float64) {
	const runs = 10
	for seed := range uint64(runs) {
		p := &simProcess{pid: 1, file: simFile, load: func(at time.Duration) simLoad {
			if at%(4*time.Second) < time.Second {
				return burst
			}
			return simLoad{trap: burst.trap}
		}}
		for at := time.Duration(0); at < end; at += 4 * time.Second {
			p.changes = append(p.changes, at, at+time.Second)
		}
		s := newSim(t, 0.01, p)
		s.random = rand.New(rand.NewPCG(seed, 2))
		s.b.random = s.random.Float64
		s.prepare, s.slow = 40*time.Millisecond, 20*time.Millisecond
		s.run(end)
		for c := range Groups {
			if p.done[c] > 0 {
				e := p.guess[c]/p.done[c] - 1
				mean[c] += e / runs
				worst[c] = max(worst[c], math.Abs(e))
			}
		}
	}
	return mean, worst
}

// A process that is missing when a window begins, as its CPU time could not be read then, has no counts to scale at its end.
func TestBudgetUnknownAtWindow(t *testing.T) {
	u := newUnit(time.Unix(0, 0), Post)
	accounts := map[int]*account{1: {ProcessLoad: ProcessLoad{CPU: time.Second}}}
	u.beginSpans(time.Unix(10, 0), accounts)
	u.atFrom = usedBy(time.Unix(12, 0), nil)
	u.endSpans(time.Unix(13, 0), accounts)
	if got := u.uses[1]; !got.held || got.scale != 0 {
		t.Errorf("%+v", got)
	}
}
