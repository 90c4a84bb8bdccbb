// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// ring is a job of eight containers. A step takes as long as its slowest member computes, and then moves data for a while: members wait
// for receives for the rest of the step.
type ring struct {
	compute [8]time.Duration
	move    time.Duration
	extra   time.Duration // by which the path from a member is slower
	from    int
	jitter  float64 // of all durations of a refresh
	random  *rand.Rand

	members  int    // of the job on this node
	ranks    uint32 // of the communicator
	gap      int    // the member whose waits are unknown; -1: none
	survey   bool
	over     bool // no waits are known between surveys
	missed   int  // the member with a queue pair less than the others; -1: none
	uneven   int  // the member that calls an uneven operation; -1: none
	together bool
	replaced bool // queue pairs, at each refresh

	at       time.Time
	launched uint64
	received [8]time.Duration
	sent     [8]time.Duration
	calls    uint64
}

func newRing() *ring {
	r := &ring{move: 20 * time.Millisecond, members: 8, ranks: 8, gap: -1, missed: -1, uneven: -1, at: start, random: rand.New(rand.NewPCG(1, 2)), jitter: 0.02}
	for i := range r.compute {
		r.compute[i] = 200 * time.Millisecond
	}
	return r
}

func (r *ring) noise(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + r.jitter*(2*r.random.Float64()-1)))
}

// run lets the job run between two refreshes.
func (r *ring) run(d time.Duration) {
	slowest := time.Duration(0)
	for _, c := range r.compute[:r.members] {
		slowest = max(slowest, c)
	}
	step := slowest + r.move + r.extra
	steps := uint64(d / step)
	for i, c := range r.compute[:r.members] {
		waits := step - c
		if i == r.from {
			waits -= r.extra / 2
		}
		r.received[i] += time.Duration(steps) * r.noise(waits)
		r.sent[i] += time.Duration(steps) * r.noise(r.move)
		if i == r.from {
			r.sent[i] += time.Duration(steps) * r.extra
		}
	}
	r.at, r.launched, r.calls = r.at.Add(d), r.launched+steps, r.calls+1
}

func (r *ring) input() Input {
	facts := model.Snapshot{QueuePairWaits: []model.QueuePairWait{}}
	shares := attribution.Attribution{Owners: []identity.Owner{{}}}
	for i := range r.members {
		owner, cgroup := i+1, model.CgroupID(100+i)
		if r.together {
			owner, cgroup = 1, 100
		}
		shares.Owners = append(shares.Owners, identity.Owner{Workload: fmt.Sprintf("ml/llama-%d/main", i)})
		c := model.Communicator{
			Cgroup: cgroup, Key: "k", Rank: strconv.Itoa(i), Ranks: r.ranks, LastLaunch: r.at, Numbered: true, Launched: r.launched,
			Process: model.LaunchingProcess{PID: 1000 + i, LastLaunch: r.at},
		}
		c.Operations = []model.CommunicatorOperation{{Operation: "all_reduce", Launches: model.Launches{Count: r.launched}}}
		if i == r.uneven {
			c.Operations = append(c.Operations, model.CommunicatorOperation{Operation: "broadcast", Launches: model.Launches{Count: r.calls}})
		}
		shares.Communicators = append(shares.Communicators, attribution.CommunicatorShare{Owner: owner, Communicator: c})
		o := attribution.OutstandingShare{Owner: owner, Device: "mlx5_0"}
		if i == r.gap {
			o.ReceiveGaps = []model.Gap{model.GapPreposted}
		}
		if r.survey {
			o.ReceiveGaps = []model.Gap{model.GapSurvey}
		}
		shares.Outstanding = append(shares.Outstanding, o)
		n := 2
		if r.over {
			n = 0
		}
		if i == r.missed {
			n--
		}
		if r.replaced {
			n += int(r.calls)
		}
		for qpn := range n {
			facts.QueuePairWaits = append(facts.QueuePairWaits, model.QueuePairWait{Cgroup: cgroup, QPN: uint32(qpn), Waited: r.received[i]})
		}
		shares.Completions = append(shares.Completions, attribution.Share[model.CompletionKey, model.FineHistogram]{
			Owner: owner, Value: model.FineHistogram{Sum: uint64(r.sent[i])},
		})
	}
	return Input{At: r.at, Facts: &facts, Shares: &shares}
}

// judge refreshes every ten seconds for ten minutes, and returns each verdict about the job with the time at which it first came.
func (r *ring) judge(j *Judge, d time.Duration) (found []string) {
	seen := map[string]bool{}
	for begun := r.at; r.at.Sub(begun) < d; {
		r.run(10 * time.Second)
		for _, v := range j.Update(r.input()).Verdicts {
			if what := v.Name + " " + v.Subject.String(); v.Severity != OK && !seen[what] {
				seen[what] = true
				found = append(found, fmt.Sprintf("%v %s: %s", r.at.Sub(begun), what, strings.Join(v.Evidence.Texts(), " | ")))
			}
		}
	}
	return found
}

// TestSlowRarely: after the first minute, three parts of ten launches have to agree, however long they take.
func TestSlowRarely(t *testing.T) {
	r, j := newRing(), &Judge{}
	for i := range r.compute {
		r.compute[i] = 5 * time.Second
	}
	r.compute[0] = 6 * time.Second
	r.run(10 * time.Second)
	j.Update(r.input())
	if found := r.judge(j, 10*time.Minute); len(found) != 1 || !strings.HasPrefix(found[0], "6m0s JobMemberSlow ml/llama-0/main (rank 0): ") {
		t.Errorf("%q", found)
	}
}

func TestSlow(t *testing.T) {
	for name, c := range map[string]struct {
		slow func(*ring)
		want string
	}{
		"+10 %": {
			func(r *ring) { r.compute[5] += r.compute[5] / 10 },
			"JobMemberSlow ml/llama-5/main (rank 5): rank 5 (ml/llama-5/main) waits for receives 8% of the time, 7 other ranks 16% to 17%: " +
				"they wait for it | communicator k",
		},
		"+20 %": {
			func(r *ring) { r.compute[0] += r.compute[0] / 5 },
			"JobMemberSlow ml/llama-0/main (rank 0): rank 0 (ml/llama-0/main) waits for receives 8% of the time, 7 other ranks 22% to 23%: " +
				"they wait for it | communicator k",
		},
		"+50 %": {
			func(r *ring) { r.compute[7] += r.compute[7] / 2 },
			"JobMemberSlow ml/llama-7/main (rank 7): rank 7 (ml/llama-7/main) waits for receives 6% of the time, 7 other ranks 37% to 38%: " +
				"they wait for it | communicator k",
		},
		"in a survey": {
			func(r *ring) { r.survey = true; r.compute[0] += r.compute[0] / 5 },
			"JobMemberSlow ml/llama-0/main (rank 0): rank 0 (ml/llama-0/main) waits for receives 8% of the time, 7 other ranks 22% to 23%: " +
				"they wait for it | communicator k",
		},
		"the path from a member": {
			func(r *ring) { r.extra, r.from = 40*time.Millisecond, 3 },
			"RDMAPathSlow ml/llama-3/main (rank 3): sends of rank 3 (ml/llama-3/main) take 227ms in a second, of 7 other ranks 74.8ms to " +
				"76.6ms, which wait for receives 23% of the time | communicator k",
		},
	} {
		r, j := newRing(), &Judge{}
		if found := r.judge(j, 10*time.Minute); len(found) > 0 {
			t.Errorf("%s: %q before anything is slow", name, found)
		}
		c.slow(r)
		found := r.judge(j, 10*time.Minute)
		if len(found) != 1 || found[0] != "30s "+c.want {
			t.Errorf("%s: %q, want after 30s %s", name, found, c.want)
		}
	}
}

// TestSlowKept: when a survey has ended, waits are unknown, and what it found stays for ten minutes.
func TestSlowKept(t *testing.T) {
	r, j := newRing(), &Judge{}
	r.survey = true
	r.compute[4] += 40 * time.Millisecond
	if found := r.judge(j, 2*time.Minute); len(found) != 1 {
		t.Fatalf("%q", found)
	}
	last := func() (text string) {
		for _, v := range j.Update(r.input()).Verdicts {
			if v.Name == "JobMemberSlow" {
				text = v.Evidence.Texts()[0]
			}
		}
		return text
	}
	r.over = true
	for range 59 {
		r.run(10 * time.Second)
		if text := last(); !strings.HasPrefix(text, "rank 4 (") || !strings.HasSuffix(text, " ago") {
			t.Fatalf("%v after the survey: %q", r.at, text)
		}
	}
	if text := last(); !strings.HasSuffix(text, ": they wait for it, measured 9m50s ago") {
		t.Errorf("%q", text)
	}
	r.run(20 * time.Second)
	if text := last(); text != "" {
		t.Errorf("after ten minutes: %q", text)
	}
	// A root's operation: waits are known, and do not compare.
	r.over = false
	if found := r.judge(j, time.Minute); len(found) != 1 {
		t.Fatalf("in the next survey: %q", found)
	}
	r.uneven = 2
	r.run(10 * time.Second)
	last()
	r.run(10 * time.Second)
	if text := last(); !strings.HasSuffix(text, ": they wait for it, measured 20s ago") {
		t.Errorf("during uneven operations: %q", text)
	}
	// The next parts that compare find that nobody is slow.
	r.uneven, r.compute[4] = -1, r.compute[0]
	for range 2 {
		r.run(10 * time.Second)
		last()
	}
	if found := r.judge(j, 5*time.Minute); len(found) != 0 {
		t.Errorf("%q", found)
	}
}

// TestNotSlow has jobs in which nobody is slow, and jobs that do not show who is.
func TestNotSlow(t *testing.T) {
	slow := func(r *ring) { r.compute[2] += 40 * time.Millisecond }
	for name, change := range map[string]func(r *ring){
		"nothing":            func(*ring) {},
		"noise":              func(r *ring) { r.jitter = 0.3 },
		"slow by 4 %":        func(r *ring) { r.compute[2] += 8 * time.Millisecond },
		"one is fast":        func(r *ring) { r.compute[2] /= 2 },
		"two are slow":       func(r *ring) { slow(r); r.compute[3] = r.compute[2] },
		"all move much":      func(r *ring) { slow(r); r.move = 200 * time.Millisecond },
		"long steps":         func(r *ring) { slow(r); r.move = 20 * time.Second },
		"ranks elsewhere":    func(r *ring) { slow(r); r.ranks = 16 },
		"waits unknown":      func(r *ring) { slow(r); r.gap = 6 },
		"of the slow":        func(r *ring) { slow(r); r.gap = 2 },
		"uneven operations":  func(r *ring) { slow(r); r.uneven = 2 },
		"one container":      func(r *ring) { slow(r); r.together = true },
		"new queue pairs":    func(r *ring) { slow(r); r.replaced = true },
		"missed in a survey": func(r *ring) { slow(r); r.survey, r.missed = true, 2 },
		"two ranks":          func(r *ring) { r.compute[1] += 40 * time.Millisecond; r.members, r.ranks = 2, 2 },
	} {
		r := newRing()
		change(r)
		if found := r.judge(&Judge{}, time.Hour); len(found) > 0 {
			t.Errorf("%s: %q", name, found)
		}
	}
	// Each member is slow for a while, as if the data were of unequal size.
	r, j := newRing(), &Judge{}
	for n := range 60 {
		r.compute[n%8] += 40 * time.Millisecond
		if found := r.judge(j, 20*time.Second); len(found) > 0 {
			t.Errorf("in turn: %q", found)
		}
		r.compute[n%8] -= 40 * time.Millisecond
	}
}
