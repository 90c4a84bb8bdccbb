// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// simJob is a node with a job of eight ranks in a container, each with a GPU, refreshed every ten seconds. Ranks launch when the test says.
type simJob struct {
	*node
	t     *testing.T
	judge *Judge
	at    time.Time
	world *simCommunicator
	all   []*simCommunicator
	// processes are by rank in the world.
	processes []*simProcess
	kills     float64
	found     []string // each verdict about a job once, as "NAME SUBJECT: EVIDENCE"
	now       []string // the verdicts about jobs at the last refresh
	after     time.Duration
	broke     time.Time // when the job broke
}

type simProcess struct {
	model.LaunchingProcess
	sm, memory float64
}

type simCommunicator struct {
	key     string
	nranks  uint32
	made    time.Time
	members []*simMember
}

type simMember struct {
	process    int
	operations map[string]uint64
	times      []time.Time // of numbered launches
	last       time.Time
	late       float64
	ended      time.Time
	gone       bool // with its container
	uncounted  bool // its numbers do not compare
}

func newSimJob(t *testing.T) *simJob {
	s := &simJob{node: newNode(), t: t, judge: &Judge{}, at: start}
	s.facts.GPUs, s.facts.GPUProcesses = nil, []model.GPUProcess{}
	var ranks []int
	for i := range 8 {
		s.facts.GPUs = append(s.facts.GPUs, model.GPU{Vendor: model.NVIDIA, ID: strconv.Itoa(i), UUID: fmt.Sprint("GPU-", i)})
		p := &simProcess{sm: 0.7, memory: 0.3}
		p.PID, p.State, p.StateSince = 1000+i, "S", s.at
		s.processes, ranks = append(s.processes, p), append(ranks, i)
	}
	s.world = s.communicator("w", 8, ranks...)
	return s
}

func (s *simJob) communicator(key string, nranks uint32, processes ...int) *simCommunicator {
	c := &simCommunicator{key: key, nranks: nranks, made: s.at}
	for _, p := range processes {
		c.members = append(c.members, &simMember{process: p, operations: map[string]uint64{}})
	}
	s.all = append(s.all, c)
	return c
}

// launch lets members launch an operation, or all members without a list.
func (s *simJob) launch(c *simCommunicator, operation string, members ...int) {
	for i, m := range c.members {
		p := s.processes[m.process]
		if len(members) > 0 && !slices.Contains(members, i) || !m.ended.IsZero() || p.Ended {
			continue
		}
		if m.operations[operation]++; operation != "send" && operation != "recv" {
			m.times = append(m.times, s.at)
		}
		m.last, p.LastLaunch = s.at, s.at
	}
}

// train lets the job launch five times in a second.
func (s *simJob) train(d time.Duration) {
	for range int(d / (200 * time.Millisecond)) {
		s.launch(s.world, "all_reduce")
		s.pass(200 * time.Millisecond)
	}
}

// pass lets time pass. Each process uses half a CPU, unless it is stopped, sleeps deeply or has ended.
func (s *simJob) pass(d time.Duration) {
	for end := s.at.Add(d); s.at.Before(end); {
		step := min(end.Sub(s.at), 200*time.Millisecond)
		s.at = s.at.Add(step)
		for _, p := range s.processes {
			if p.State == "S" {
				p.CPU += step / 2
			}
		}
		if s.at.Sub(start)%(10*time.Second) == 0 {
			s.refresh()
		}
	}
}

func (s *simJob) refresh() {
	s.facts.GPUProcesses = s.facts.GPUProcesses[:0]
	for i, p := range s.processes {
		s.facts.GPUs[i].Engines = []model.Figure{{Name: "sm", Value: p.sm}, {Name: "memory", Value: p.memory}}
		if !p.Ended {
			s.facts.GPUProcesses = append(s.facts.GPUProcesses, model.GPUProcess{GPU: fmt.Sprint("GPU-", i), PID: p.PID})
		}
	}
	s.shares.Usages = []attribution.UsageShare{{Owner: 1, Usage: &model.Usage{Memory: model.MemoryUsage{OOMKills: model.Some(s.kills)}}}}
	s.shares.Communicators = []attribution.CommunicatorShare{}
	for _, c := range s.all {
		for i, m := range c.members {
			if m.gone {
				continue
			}
			s.shares.Communicators = append(s.shares.Communicators, attribution.CommunicatorShare{Owner: 1, Communicator: s.fact(c, i, m)})
		}
	}
	s.now = nil
	for _, v := range s.node.judge(s.judge, s.at).Verdicts {
		if !strings.HasPrefix(v.Name, "Job") {
			continue
		}
		what := v.Name + " " + v.Subject.String()
		s.now = append(s.now, what+": "+strings.Join(v.Evidence.Texts(), " | "))
		if !slices.ContainsFunc(s.found, func(f string) bool { return strings.HasPrefix(f, what+":") }) {
			s.found = append(s.found, what+": "+strings.Join(v.Evidence.Texts(), " | "))
			s.after = s.at.Sub(s.broke)
		}
	}
}

// fact is what the source would list of a member.
func (s *simJob) fact(c *simCommunicator, rank int, m *simMember) model.Communicator {
	f := model.Communicator{
		Key: c.key, Rank: strconv.Itoa(rank), Ranks: c.nranks, Since: c.made, LastLaunch: m.last, Ended: m.ended,
		Process: s.processes[m.process].LaunchingProcess,
	}
	if f.Process.Ended && f.Ended.IsZero() {
		f.Ended = f.Process.StateSince
	}
	for _, name := range slices.Sorted(maps.Keys(m.operations)) {
		o := model.CommunicatorOperation{Operation: name}
		o.Count = m.operations[name]
		f.Operations = append(f.Operations, o)
	}
	if m.uncounted {
		return f
	}
	f.Numbered, f.Launched, f.Late = true, uint64(len(m.times)), model.Some(m.late)
	var kept [16]int // by zeros at the end of the number
	for n := len(m.times); n > 0 && n > len(m.times)-1<<18; n-- {
		if zeros := bits.TrailingZeros(uint(n)); zeros < len(kept) && kept[zeros] < 4 {
			kept[zeros]++
			f.Kept = append(f.Kept, model.KeptLaunch{Number: uint64(n), Time: m.times[n-1]})
		}
	}
	slices.Reverse(f.Kept)
	return f
}

// set puts a process in a state.
func (s *simJob) set(process int, state string) {
	p := s.processes[process]
	p.State, p.StateSince, p.Ended = state, s.at, state == ""
}

// spin lets GPUs wait in a kernel, or do nothing.
func (s *simJob) spin(spins bool, processes ...int) {
	for _, i := range processes {
		if p := s.processes[i]; spins {
			p.sm, p.memory = 1, 0
		} else {
			p.sm, p.memory = 0, 0
		}
	}
}

// wait lets all ranks but one launch, whereupon they wait for it.
func (s *simJob) wait(rank int, operation string) { s.waitIn(s.world, rank, operation) }

func (s *simJob) waitIn(c *simCommunicator, rank int, operation string) {
	var others []int
	for i := range c.members {
		if i != rank {
			others = append(others, i)
		}
	}
	s.broke = s.at
	s.launch(c, operation, others...)
	s.spin(true, others...)
	s.spin(false, rank)
}

var everyone = []int{0, 1, 2, 3, 4, 5, 6, 7}
