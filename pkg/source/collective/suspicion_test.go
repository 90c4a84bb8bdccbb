// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// launches are the times of launches of a rank, in seconds.
type launches []float64

// train returns the launches of a loop: n in each step, within its last part. length returns how long the step at a time takes, and how long
// nothing is launched after it.
func train(end float64, n int, part float64, length func(at float64) (step, pause float64)) (all launches) {
	random := rand.New(rand.NewPCG(1, 2))
	for at := 0.0; at < end; {
		took, pause := length(at)
		took *= 0.97 + 0.06*random.Float64()
		for i := range n {
			all = append(all, at+took*(1-part)+took*part*float64(i)/float64(n))
		}
		at += took + pause
	}
	return all
}

// serve returns the launches of a server: n for each request. rate returns the requests per second at a time.
func serve(end float64, n int, rate func(at float64) float64) (all launches) {
	random := rand.New(rand.NewPCG(3, 4))
	for at := 0.0; at < end; at += random.ExpFloat64() / max(rate(at), 0.01) {
		for i := range n {
			all = append(all, at+float64(i)*0.001)
		}
	}
	slices.Sort(all)
	return all
}

func steady(took float64) func(float64) (float64, float64) {
	return func(float64) (float64, float64) { return took, 0 }
}

// fallsAt returns steps whose rate falls to a share.
func fallsAt(second, took, share float64) func(float64) (float64, float64) {
	return pausing(second, took, share, hour*100, 0)
}

// pausing returns steps whose rate falls to a share, with a pause at the end of each period.
func pausing(second, took, share, period, pause float64) func(float64) (float64, float64) {
	return func(at float64) (step, rest float64) {
		step = took
		if at >= second {
			step = took / share
		}
		if math.Mod(at, period)+step > period {
			rest = pause
		}
		return step, rest
	}
}

const hour = 3600.0

// until returns the number of launches up to a time, and the last one.
func (l launches) until(second float64) (n uint64, last uint64) {
	i, _ := slices.BinarySearch(l, second)
	if i > 0 {
		last = clockAt(l[i-1])
	}
	return uint64(i), last
}

func clockAt(second float64) uint64 { return uint64(1e12 + second*1e9) }

// simulate watches a communicator with a rank, and returns when it is suspected. see changes the looks; nil: the communicator is gone.
func simulate(t *testing.T, end float64, ranks []launches, see func(at float64, l *look) *look) (suspected []float64) {
	t.Helper()
	w := newWatcher(30 * time.Second)
	for at := 5.0; at < end; at += 10 {
		l := &look{cgroups: []model.CgroupID{7, 8}, launches: map[uint64]uint64{}, probed: 1}
		for i, r := range ranks {
			n, last := r.until(at)
			l.launches[uint64(i)], l.last = n, max(l.last, last)
		}
		looks := map[watchKey]*look{}
		if see != nil {
			l = see(at, l)
		}
		if l != nil {
			looks[watchKey{key: "w"}] = l
		}
		if got := w.look(clockAt(at), looks); len(got) > 0 {
			if !slices.Equal(got, []model.CgroupID{7, 8}) {
				t.Errorf("cgroups %v", got)
			}
			suspected = append(suspected, at)
		}
	}
	for i := 1; i < len(suspected); i++ {
		if pause := suspected[i] - suspected[i-1]; pause < 600 {
			t.Errorf("suspected again after %g s", pause)
		}
	}
	return suspected
}

// TestFound: falls of the rate and stands are found once, soon.
func TestFound(t *testing.T) {
	const at = 2 * hour
	for name, c := range map[string]struct {
		job   launches
		limit float64
	}{
		"falls by an eighth":           {train(3*hour, 10, 0.9, fallsAt(at, 0.5, 0.875)), 330},
		"falls to half":                {train(3*hour, 10, 0.9, fallsAt(at, 0.5, 0.5)), 120},
		"long steps, falls by a third": {train(3*hour, 40, 0.1, fallsAt(at, 20, 0.67)), 330},
		"stands":                       {train(at, 10, 0.9, steady(0.5)), 45},
		"long steps, stands":           {train(at, 40, 0.1, steady(20)), 90},
		"pauses, falls by a third":     {train(3*hour, 10, 0.9, pausing(at, 0.5, 0.67, 1300, 90)), 330},
	} {
		var found []float64
		for _, s := range simulate(t, 3*hour, []launches{c.job}, nil) {
			if s >= at {
				found = append(found, s-at)
			}
		}
		if len(found) != 1 || found[0] > c.limit {
			t.Errorf("%s: suspected after %v s, want once within %g s", name, found, c.limit)
		}
	}
}

// TestNotSuspected: healthy jobs, and jobs whose launches are not all known.
func TestNotSuspected(t *testing.T) {
	loop := train(4*hour, 10, 0.9, steady(0.5))
	never := map[string]struct {
		ranks []launches
		see   func(at float64, l *look) *look
	}{
		"steady":               {[]launches{loop}, nil},
		"long steps":           {[]launches{train(4*hour, 40, 0.1, steady(20))}, nil},
		"very long steps":      {[]launches{train(4*hour, 40, 0.1, steady(101))}, nil},
		"a little slower":      {[]launches{train(4*hour, 10, 0.9, fallsAt(2*hour, 0.5, 0.95))}, nil},
		"starts slowly":        {[]launches{train(4*hour, 10, 0.9, fallsAt(200, 0.2, 0.4))}, nil},
		"ends":                 {[]launches{loop}, func(at float64, l *look) *look { return unless(at > 2*hour, l) }},
		"a rank leaves":        {[]launches{loop[:len(loop)/2], loop}, nil},
		"a rank is removed":    {[]launches{loop, loop}, func(at float64, l *look) *look { removeAfter(l, at > 2*hour); return l }},
		"starts, then nothing": {[]launches{train(500, 10, 0.9, steady(0.5))}, nil},
		"the process launches elsewhere": {[]launches{loop[:len(loop)/2]}, func(at float64, l *look) *look {
			l.last = clockAt(at)
			return l
		}},
		"unprobed for a while": {[]launches{without(loop, 2*hour, 2.2*hour)}, func(at float64, l *look) *look {
			l.unprobed = at > 2*hour && at < 2.2*hour
			return l
		}},
		"unprobed between looks": {[]launches{without(loop, 2*hour, 2*hour+100)}, func(at float64, l *look) *look {
			if at > 2*hour {
				l.probed = clockAt(2*hour + 8)
			}
			return l
		}},
		"graphs": {[]launches{loop[:len(loop)/2]}, func(at float64, l *look) *look { l.graphs = at > 2*hour; return l }},
		"the sensor restarts while it stands": {[]launches{loop[:len(loop)/2]}, func(at float64, l *look) *look {
			return unless(at < 2*hour+20, l)
		}},
	}
	for name, c := range never {
		if got := simulate(t, 4*hour, c.ranks, c.see); len(got) > 0 {
			t.Errorf("%s: suspected at %v s", name, got)
		}
	}
}

func unless(gone bool, l *look) *look {
	if gone {
		return nil
	}
	return l
}

func removeAfter(l *look, removed bool) {
	if removed {
		delete(l.launches, 1)
	}
}

func without(l launches, from, to float64) (left launches) {
	for _, at := range l {
		if at < from || at > to {
			left = append(left, at)
		}
	}
	return left
}

// TestFewSuspicions: jobs whose launches pause or vary are suspected once, or seldom.
func TestFewSuspicions(t *testing.T) {
	for name, c := range map[string]struct {
		job  launches
		most int
	}{
		"loads data for 40 s":      {train(24*hour, 4, 0.9, pausing(25*hour, 0.5, 1, 900, 40)), 1},
		"loads data for 90 s":      {train(24*hour, 4, 0.9, pausing(25*hour, 0.5, 1, 1200, 90)), 1},
		"writes a checkpoint":      {train(24*hour, 4, 0.9, pausing(25*hour, 0.5, 1, 1800, 300)), 3},
		"a server":                 {serve(24*hour, 4, func(float64) float64 { return 2 }), 1},
		"an idle server":           {serve(24*hour, 4, func(float64) float64 { return 0.02 }), 12},
		"a server with busy times": {serve(24*hour, 4, func(s float64) float64 { return 0.02 + 5*math.Abs(math.Round(math.Sin(s/500))) }), 12},
		"a server by day":          {serve(24*hour, 4, func(s float64) float64 { return 3 + 2.8*math.Sin(s/24/hour*2*math.Pi) }), 6},
	} {
		if got := simulate(t, 24*hour, []launches{c.job}, nil); len(got) > c.most {
			t.Errorf("%s: suspected %d times, want %d: %v", name, len(got), c.most, got)
		}
	}
}

// TestWatched: 16 communicators of a cgroup and 512 of the node are watched, and forgotten with their end.
func TestWatched(t *testing.T) {
	w, looks := newWatcher(time.Minute), map[watchKey]*look{}
	for i := range 2000 {
		looks[watchKey{key: fmt.Sprint(i)}] = &look{cgroups: []model.CgroupID{model.CgroupID(i / 20)}, probed: 1}
	}
	w.look(10, looks)
	if len(w.of) != maxListed {
		t.Errorf("%d are watched", len(w.of))
	}
	of := map[model.CgroupID]int{}
	for _, c := range w.of {
		if of[c.cgroup]++; of[c.cgroup] > maxOfWorkload {
			t.Fatalf("%d of %d are watched", of[c.cgroup], c.cgroup)
		}
	}
	if w.look(20, nil); len(w.of) > 0 {
		t.Errorf("%d stay", len(w.of))
	}
}

// TestLooks: what is watched of members.
func TestLooks(t *testing.T) {
	n := newNode()
	a, b, late, ended, unknown := n.add(1, 1, 0), n.add(2, 1, 1), n.add(1, 2, 0), n.add(1, 3, 0), n.add(1, 4, 0)
	n.made[b].Tgid, n.made[late].Flags, n.made[ended].Ended, n.made[unknown].Tgid = 2, 0, n.now.monotonic, 3
	for i, number := range []uint64{a, b, late, ended, unknown} {
		n.total[number] = uint64(10 + i)
	}
	n.read(t)
	n.members.count(launchKey{Communicator: late, Operation: 1}, &launchCounts{Count: 100, Last: n.now.monotonic + 5})
	n.members.of[b].Process.LastGraph = n.members.of[b].Process.LastLaunch.Add(time.Second)
	looks := n.members.looks(map[int]uint64{1: 50, 2: 60})
	if len(looks) != 2 {
		t.Fatalf("%d looks: %+v", len(looks), looks)
	}
	l := looks[watchKey{key: n.members.of[a].Key}]
	slices.Sort(l.cgroups)
	if !slices.Equal(l.cgroups, []model.CgroupID{1, 2}) || l.launches[a] != 10 || l.launches[b] != 11 || l.last != n.now.monotonic+5 ||
		l.probed != 60 || l.unprobed || !l.graphs {
		t.Errorf("%+v", l)
	}
	if l = looks[watchKey{number: late}]; l.launches[late] != 112 || l.probed != 50 || l.graphs {
		t.Errorf("%+v", l)
	}
	if l = n.members.looks(map[int]uint64{1: 50, 2: 0})[watchKey{key: n.members.of[a].Key}]; !l.unprobed {
		t.Errorf("%+v", l)
	}
}

// TestSuspicion: a real process that stops launching is suspected, with short windows. FAKE library.
func TestSuspicion(t *testing.T) {
	b := build(t)
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	r := start(t, c, b.Rank)
	r.OK("load %s", b.NCCL)
	h.Add(r)
	suspected := make(chan []model.CgroupID, 10)
	o := options(t, &h, func(o *Options) {
		o.Suspect, o.StallAfter = func(cgroups []model.CgroupID) { suspected <- cgroups }, 3*time.Second
		o.Interval = 20 * time.Millisecond
	})
	s, err := newSource(o, o.spec())
	if err != nil {
		t.Fatal(err)
	}
	s.watcher.window = 150 * time.Millisecond
	s.prober.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	libraries.Probed(t, s, model.StateOK, all...)
	r.OK("init rank 1 11 2 1")
	stop := time.Now().Add(enoughWindows * s.watcher.window * 3)
	for time.Now().Before(stop) {
		r.OK("call all_reduce 1 3 10 7")
		time.Sleep(5 * time.Millisecond)
	}
	select {
	case cgroups := <-suspected:
		if !slices.Equal(cgroups, []model.CgroupID{c.ID}) {
			t.Errorf("cgroups %v, want %v", cgroups, c.ID)
		}
	case <-time.After(time.Minute):
		t.Fatal("never suspected")
	}
}
