// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/collective"
)

const (
	ringRanks   = 8
	ringCompute = 500 * time.Millisecond
	// ringsVar is how often the faults of the ring are repeated.
	ringsVar = "ACCELSCOPE_RINGS"
)

// job is a ring of ranks in containers of their own, on both devices in turn.
type job struct {
	ranks []*container
	qpns  []string // of each rank to the rank before
}

// newJob starts the ranks and connects them.
func newJob(t *testing.T, argv ...string) *job {
	t.Helper()
	var j job
	var ends [][]string // of each rank: GID, queue pair to the next, to the rank before, address, key
	for rank := range ringRanks {
		c := enter(t, fmt.Sprint("rank ", rank), append([]string{"ring", "-d", fmt.Sprint("rxe", rank%2), "-r", strconv.Itoa(rank), "-n", strconv.Itoa(ringRanks)}, argv...)...)
		j.ranks = append(j.ranks, c)
		ends = append(ends, strings.Fields(strings.TrimPrefix(c.line(t, "ends "), "ends ")))
		j.qpns = append(j.qpns, ends[rank][2])
	}
	for rank, c := range j.ranks {
		fmt.Fprintln(c.stdin, strings.Join(ends[(rank+1)%ringRanks], " "))
		fmt.Fprintln(c.stdin, strings.Join(ends[(rank+ringRanks-1)%ringRanks], " "))
	}
	for _, c := range j.ranks {
		c.line(t, "connected")
	}
	return &j
}

// compute sets how long a step of a rank computes.
func (j *job) compute(rank int, d time.Duration) { fmt.Fprintln(j.ranks[rank].stdin, d.Microseconds()) }

// begin lets all ranks compute equally long.
func (j *job) begin() {
	for rank := range j.ranks {
		j.compute(rank, ringCompute)
	}
}

// last returns what a rank printed last: its steps, and for how many seconds it has waited for receives.
func (j *job) last(t *testing.T, rank int) (steps int, waited float64) {
	t.Helper()
	line := j.ranks[rank].line(t, "steps ")
	for len(j.ranks[rank].lines) > 0 {
		line = j.ranks[rank].line(t, "steps ")
	}
	if _, err := fmt.Sscanf(line, "steps %d waited %f", &steps, &waited); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return steps, waited
}

// slowLink makes packets for the queue pair of rank 3 pass a link of its own from rxe0 to rxe1, whose rate is set with the function
// that it returns; 0 is no limit.
func (j *job) slowLink(t *testing.T) func(bitsPerSecond int) {
	t.Helper()
	sh(t, "sh", "-c", fmt.Sprintf(`set -e
		modprobe -a sch_prio cls_u32
		tc qdisc replace dev v0 root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
		for band in 1 2; do tc qdisc add dev v0 parent 1:$band handle 1$band: netem limit 100000; done
		tc filter add dev v0 parent 1: protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff match u32 %s 0x00ffffff at 32 flowid 1:2`,
		j.qpns[3]))
	return func(rate int) {
		t.Helper()
		sh(t, "tc", "qdisc", "change", "dev", "v0", "parent", "1:2", "handle", "12:", "netem", "limit", "100000", "rate",
			strconv.Itoa(cmp.Or(rate, 100_000_000_000)))
	}
}

// jobVerdicts returns the verdicts about jobs of the last refresh: "NAME EVIDENCE".
func (s *sensor) jobVerdicts(t *testing.T) (all []string) {
	t.Helper()
	s.fresh()
	verdicts, err := s.allVerdicts()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range verdicts {
		if strings.HasPrefix(v.Name, "Job") || v.Name == "RDMAPathSlow" {
			all = append(all, v.Name+" "+strings.Join(v.Evidence, " | "))
		}
	}
	return all
}

// ringFault is something slow, at a rank. Its name begins with the name of the verdict.
type ringFault struct {
	name       string
	rank       int
	begin, end func()
}

// names reports whether the only verdict within three minutes of a fault is right, and waits for its end.
func (s *sensor) names(t *testing.T, j *job, f ringFault) bool {
	t.Helper()
	f.begin()
	begun := time.Now()
	var got []string
	for len(got) == 0 && time.Since(begun) < 3*time.Minute {
		got = s.jobVerdicts(t)
		time.Sleep(3 * time.Second)
	}
	condition, _, _ := strings.Cut(f.name, " ")
	right := len(got) == 1 && strings.HasPrefix(got[0], condition+" ") && strings.Contains(got[0], fmt.Sprintf("rank %d (", f.rank))
	if t.Logf("%s of rank %d, after %.0f s: %q", f.name, f.rank, time.Since(begun).Seconds(), got); !right {
		t.Logf("that is WRONG: %s", s.receiveShares(j))
	}
	f.end()
	eventually(t, 2*time.Minute, func() error {
		if all := s.jobVerdicts(t); len(all) > 0 {
			return fmt.Errorf("nothing is slow: %q", all)
		}
		return nil
	})
	return right
}

// ringJob starts a sensor, and a job whose launches it counts, which begins when ranks compute. end ends both.
func (n node) ringJob(t *testing.T, args ...string) (s *sensor, j *job, end func()) {
	t.Helper()
	gpu := loadDRM(t, "vgem", "card*")
	s, keeper := n.watched(t, append([]string{"--collector.collective", "--gpu.process-interval=1s"}, args...)...)
	argv := []string{"-l", filepath.Join(os.Getenv(collective.BuiltVar), "libnccl.so.2"), "-D", gpu, "-b", "8192"}
	// The first process of a library is late.
	first := enter(t, "first of the library", append([]string{"ring", "-d", "rxe0"}, argv...)...)
	first.line(t, "ends ")
	s.hookedWithin(2*time.Minute, "ncclAllReduce", "ok")
	j = newJob(t, argv...)
	return s, j, func() {
		kill(append(j.ranks, first)...)
		keeper.rest(t)
		s.stop()
	}
}

// ringSurvey: a slow rank is named if waits are measured in surveys only, and stays named between them.
func (n node) ringSurvey(t *testing.T) {
	defer overLink(t)()
	s, j, end := n.ringJob(t, "--rdma.datapath=survey", "--rdma.datapath-budget=0.0001", "--rdma.survey-length=1m", "--rdma.survey-interval=3m")
	const slow = 6
	j.begin()
	j.compute(slow, ringCompute*12/10)
	begun, logged := time.Now(), time.Now()
	for named := ""; !strings.Contains(named, ", measured "); time.Sleep(3 * time.Second) {
		all := s.jobVerdicts(t)
		if len(all) > 1 || len(all) == 1 && !strings.HasPrefix(all[0], fmt.Sprintf("JobMemberSlow rank %d (", slow)) || time.Since(begun) > 12*time.Minute {
			t.Fatalf("after %v: %q", time.Since(begun), all)
		}
		if named = strings.Join(all, ""); time.Since(logged) > 30*time.Second {
			logged = time.Now()
			m := s.scrape()
			t.Logf("after %.0f s: %q; coverage %v, %v surveys", time.Since(begun).Seconds(), named,
				m.by("container_rdma_receive_coverage", "reason", "container_id", j.ranks[0].id), m.sum("accelscope_datapath_surveys_total"))
		}
	}
	end()
}

// ring: a rank that computes longer, and a path that is slow, are named within three minutes, and nobody before.
func (n node) ring(t *testing.T) {
	defer overLink(t)()
	s, j, end := n.ringJob(t, "--rdma.datapath=always")
	limit := j.slowLink(t)
	limit(0)
	j.begin()
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(4 * time.Second) {
		if all := s.jobVerdicts(t); len(all) > 0 {
			t.Fatalf("nothing is slow: %q", all)
		}
	}
	steps, _ := j.last(t, 0)
	t.Logf("%d steps; waits for receives: %s", steps, s.receiveShares(j))

	rounds, _ := strconv.Atoi(os.Getenv(ringsVar))
	right, all := 0, 0
	for round := range max(1, rounds) {
		faults := []ringFault{{"RDMAPathSlow", 2, func() { limit(2_000_000) }, func() { limit(0) }}}
		for i, percent := range []int{10, 20, 50} {
			rank := (5 + i + round) % ringRanks
			faults = append(faults, ringFault{
				fmt.Sprintf("JobMemberSlow +%d %%", percent), rank,
				func() { j.compute(rank, ringCompute*time.Duration(100+percent)/100) },
				func() { j.compute(rank, ringCompute) },
			})
		}
		for _, f := range faults {
			if all++; s.names(t, j, f) {
				right++
			}
		}
	}
	if t.Logf("%d of %d faults are named right", right, all); right*20 < all*19 {
		t.Errorf("%d of %d faults are named right", right, all)
	}
	for rank, c := range j.ranks {
		eventually(t, 20*time.Second, func() error {
			_, want := j.last(t, rank)
			if got, _, reasons := s.fresh().receiving(c); math.Abs(got/want-1) > 0.05 || reasons != "complete" {
				return fmt.Errorf("rank %d waited %v s, %v s by its own clock: %s", rank, got, want, reasons)
			}
			return nil
		})
	}
	end()
}

// receiveShares lists the waits and sends of the ranks in the next ten seconds, as shares of the time.
func (s *sensor) receiveShares(j *job) string {
	sums := func() (waited, sent []float64) {
		m := s.fresh()
		for _, c := range j.ranks {
			w, _, _ := m.receiving(c)
			waited = append(waited, w)
			total := 0.0
			for _, x := range m.all("container_rdma_completion_duration_seconds", "container_id", c.id) {
				total += x.GetHistogram().GetSampleSum()
			}
			sent = append(sent, total)
		}
		return waited, sent
	}
	begun := time.Now()
	waited, sent := sums()
	time.Sleep(10 * time.Second)
	nowWaited, nowSent := sums()
	took := time.Since(begun).Seconds()
	var out []string
	for i := range waited {
		out = append(out, fmt.Sprintf("%d: %.3f, %.3f", i, (nowWaited[i]-waited[i])/took, (nowSent[i]-sent[i])/took))
	}
	return strings.Join(out, "; ")
}
