// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	maxJobs = 512 // communicators
	// newJob is how long a communicator is watched before it is judged.
	newJob = time.Minute
	// gapParts is the number of parts of the hour in which gaps between launches are kept.
	gapParts = 12
	// spinning and resting are the limits of a GPU on which only a collective waits: it is busy, and its memory is not.
	spinning, resting = 0.95, 0.05
)

// rankShare is a rank of a communicator.
type rankShare = attribution.CommunicatorShare

// job is what is kept of a communicator. Times are compared by the monotonic clock.
type job struct {
	seen   time.Time // first
	last   time.Time // the last launch of a rank
	gaps   [gapParts]time.Duration
	part   int64
	spins  time.Time // since when the GPUs of all ranks only wait; zero: they do not
	ranks  map[string]*rankState
	slow   slowness
	number uint64 // of the last refresh that had it
}

// rankState is what is kept of a rank.
type rankState struct {
	last  time.Time     // its last launch
	stood time.Time     // the first refresh since then
	cpu   time.Duration // the CPU time at that refresh
	gpu   string        // UUID; the GPU of an ended process stays known
	kills float64       // OOM kills of its container
	oom   time.Time     // when kills last grew
	late  lateness
	gone  *departed
}

// departed is a rank that was named and whose process has ended. The others may wait for it when its container is gone, too.
type departed struct {
	pid         int
	subject     Subject
	name, lacks string    // what the rank is called, and the launch for which the others wait
	most        uint64    // its number
	last, ended time.Time // when the rank last launched, and when its process ended
}

// team is a communicator in one refresh: its ranks on this node.
type team struct {
	*job
	key     string
	ranks   []*rankShare
	most    uint64       // the highest number of a launch
	waiting []*rankShare // ranks that launched it, and wait since then
}

// jobRules judge the ranks of communicators on this node.
type jobRules struct {
	*round
	jobs  map[string]*job
	since map[foundKey]first // of the Judge
	after time.Duration      // Judge.StallAfter

	gpus      map[string]*model.GPU // by UUID
	ofProcess map[int][]*rankShare  // ranks of a process in all communicators
	teams     map[string]*team      // judged
	waits     map[int]bool          // processes that wait
	named     map[int]bool          // processes with a verdict
}

func newJobRules(r *round, j *Judge) *jobRules {
	rules := &jobRules{
		round: r, jobs: j.jobs, since: j.since, after: cmp.Or(j.StallAfter, defaultStallAfter), gpus: map[string]*model.GPU{},
		ofProcess: map[int][]*rankShare{}, teams: map[string]*team{}, waits: map[int]bool{}, named: map[int]bool{},
	}
	for i := range r.Facts.GPUs {
		rules.gpus[r.Facts.GPUs[i].UUID] = &r.Facts.GPUs[i]
	}
	return rules
}

func (r *jobRules) judge() {
	teams := r.follow()
	for _, t := range teams {
		r.findWaiting(t)
	}
	for _, judge := range []func(*team){r.judgeBehind, r.judgeStalled, r.judgeLate, r.judgeSlow} {
		for _, t := range teams {
			judge(t)
		}
	}
	maps.DeleteFunc(r.jobs, func(_ string, j *job) bool { return j.number != r.number })
}

// follow notes what is new in all communicators, and returns the communicators to judge, the largest first.
func (r *jobRules) follow() (judged []*team) {
	all := map[string]*team{}
	var order []*team
	for i := range r.Shares.Communicators {
		c := &r.Shares.Communicators[i]
		if all[c.Key] == nil {
			all[c.Key] = &team{key: c.Key}
			order = append(order, all[c.Key])
		}
		all[c.Key].ranks = append(all[c.Key].ranks, c)
		r.ofProcess[c.Process.PID] = append(r.ofProcess[c.Process.PID], c)
	}
	uses := r.gpusOfProcesses()
	for _, t := range order {
		t.job = r.jobs[t.key]
		if t.job == nil && len(r.jobs) < maxJobs {
			t.job = &job{seen: r.At, ranks: map[string]*rankState{}}
			r.jobs[t.key] = t.job
		}
		if t.job == nil {
			r.omitted++
			continue
		}
		t.number = r.number
		r.noteRanks(t, uses)
		if r.judges(t) {
			r.teams[t.key] = t
			judged = append(judged, t)
		}
	}
	slices.SortStableFunc(judged, func(a, b *team) int { return cmp.Compare(len(b.ranks), len(a.ranks)) })
	return judged
}

// judges reports whether the numbers of all ranks compare, and no rank has launched a graph since its last launch: a graph may have
// collectives that are not counted. A rank may have launched nothing yet since it joined.
func (r *jobRules) judges(t *team) bool {
	for _, c := range t.ranks {
		if !c.Numbered || c.Process.LastGraph.After(lastStep(c)) {
			return false
		}
		t.most = max(t.most, c.Launched)
	}
	return len(t.job.ranks) > 1 && t.most > 0 && r.At.Sub(t.seen) >= newJob
}

// gpusOfProcesses returns the GPU of each process: the GPU on which it has the most memory.
func (r *jobRules) gpusOfProcesses() map[int]*model.GPUProcess {
	most := map[int]*model.GPUProcess{}
	for i := range r.Facts.GPUProcesses {
		p := &r.Facts.GPUProcesses[i]
		if most[p.PID] == nil || p.Memory.Value > most[p.PID].Memory.Value {
			most[p.PID] = p
		}
	}
	return most
}

// noteRanks notes launches, GPUs and OOM kills.
func (r *jobRules) noteRanks(t *team, uses map[int]*model.GPUProcess) {
	t.turn(r.At)
	spins := true
	for _, c := range t.ranks {
		s := t.job.ranks[c.Rank]
		if s == nil {
			s = &rankState{kills: -1, stood: r.At, cpu: c.Process.CPU}
			t.job.ranks[c.Rank] = s
		}
		s.gone = nil
		if !s.last.Equal(c.LastLaunch) {
			if !s.last.IsZero() {
				t.gaps[t.part%gapParts] = max(t.gaps[t.part%gapParts], longestGap(c, s.last))
			}
			s.last, s.stood, s.cpu = c.LastLaunch, r.At, c.Process.CPU
		}
		if c.LastLaunch.After(t.last) {
			t.last = c.LastLaunch
		}
		if p := uses[c.Process.PID]; p != nil {
			s.gpu = p.GPU
		}
		s.noteKills(r, c)
		s.late.note(r.At, c)
		spins = spins && r.spins(s.gpu)
	}
	if !spins {
		t.spins = time.Time{}
	} else if t.spins.IsZero() {
		t.spins = r.At
	}
	if len(t.job.ranks) > len(t.ranks) {
		maps.DeleteFunc(t.job.ranks, func(rank string, s *rankState) bool {
			return s.gone == nil && !slices.ContainsFunc(t.ranks, func(c *rankShare) bool { return c.Rank == rank })
		})
	}
}

// noteKills notes OOM kills in the container of a rank.
func (s *rankState) noteKills(r *jobRules, c *rankShare) {
	for i := range r.Shares.Usages {
		u := &r.Shares.Usages[i]
		if u.Owner != c.Owner || !u.Memory.OOMKills.Known {
			continue
		}
		if n := u.Memory.OOMKills.Value; n != s.kills {
			if s.kills >= 0 && n > s.kills {
				s.oom = r.At
			}
			s.kills = n
		}
	}
}

// spins reports whether a GPU does nothing but wait in a kernel. Unknown: it does not.
func (r *jobRules) spins(uuid string) bool {
	g := r.gpus[uuid]
	if g == nil {
		return false
	}
	busy, rests := false, false
	for _, e := range g.Engines {
		busy = busy || e.Name == "sm" && e.Value >= spinning
		rests = rests || e.Name == "memory" && e.Value <= resting
	}
	return busy && rests
}

// turn moves to the part of the hour of a moment.
func (j *job) turn(at time.Time) {
	now := int64(at.Sub(j.seen) / (hour / gapParts))
	if now-j.part >= gapParts {
		j.gaps, j.part = [gapParts]time.Duration{}, now
	}
	for j.part < now {
		j.part++
		j.gaps[j.part%gapParts] = 0
	}
}

// longestGap returns the longest time between launches of a rank after a launch. The times of few launches are kept, so it may be too long.
func longestGap(c *rankShare, after time.Time) (longest time.Duration) {
	before := after
	for _, k := range c.Kept {
		if k.Time.After(before) {
			longest, before = max(longest, k.Time.Sub(before)), k.Time
		}
	}
	return max(longest, c.LastLaunch.Sub(before))
}

// longest returns the longest time between two launches within the last hour; 0: unknown.
func (j *job) longest() time.Duration { return slices.Max(j.gaps[:]) }

// findWaiting finds the ranks that launched the last number, and do nothing else since then: they launched nothing elsewhere for long, and
// made no other communicator, which may replace this one.
func (r *jobRules) findWaiting(t *team) {
	for _, c := range t.ranks {
		if c.Launched == t.most && c.Ended.IsZero() && !c.Process.Ended && r.stands(c) {
			t.waiting = append(t.waiting, c)
		}
	}
	if len(t.waiting) == len(t.ranks) && len(t.departed()) == 0 {
		return
	}
	for _, c := range t.waiting {
		r.waits[c.Process.PID] = true
	}
}

// departed returns the ranks that are gone and for which all others wait.
func (t *team) departed() (all []*departed) {
	if len(t.waiting) < len(t.ranks) {
		return nil
	}
	for _, rank := range slices.Sorted(maps.Keys(t.job.ranks)) {
		listed := slices.ContainsFunc(t.ranks, func(c *rankShare) bool { return c.Rank == rank })
		if d := t.job.ranks[rank].gone; d != nil && d.most == t.most && !listed {
			all = append(all, d)
		}
	}
	return all
}

// lastStep returns when a rank last launched; if it has launched nothing, when it joined the communicator.
func lastStep(c *rankShare) time.Time {
	if c.LastLaunch.IsZero() {
		return c.Since
	}
	return c.LastLaunch
}

// stands reports whether a process has launched nothing for long, and left this communicator for no other.
func (r *jobRules) stands(c *rankShare) bool {
	if r.At.Sub(c.Process.LastLaunch) < r.after || c.Process.LastLaunch.Sub(c.LastLaunch) > r.after {
		return false
	}
	return !slices.ContainsFunc(r.ofProcess[c.Process.PID], func(other *rankShare) bool { return other.Since.After(c.LastLaunch) })
}
