// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// All members of a job take as long for a step as its slowest member. A member that computes longer waits less than the others, which wait
// for it. So does a member whose sends into a slow path take longer. So neither clocks nor steps have to be compared: only how long the
// members of a communicator wait in the same seconds.

const (
	// slowPart and slowLaunches are the least time and number of launches in which waits are compared; longestPart is the most time.
	slowPart, slowLaunches, longestPart = 10 * time.Second, 10, 2 * time.Minute
	// slowParts is how many comparisons in a row have to find the same.
	slowParts = 3
	// slowKept is how long the finding stays when waits are no longer known: a survey on suspicion takes a minute in ten.
	slowKept = 10 * time.Minute
	// apart is how far a member has to be from the next, as a ratio of its distance to the median.
	apart = 0.5
)

// evenOperations are the operations that all ranks call alike. A rank that sends to the others, or is the root, waits less by its role.
var evenOperations = []string{"all_gather", "all_reduce", "all_to_all", "reduce_scatter"}

// passing are gaps with which the waits of queue pairs may be known now: in a survey, if completions emptied the receive queue before. Then
// all ranks have to have the same number of queue pairs whose waits are known.
var passing = []model.Gap{model.GapLate, model.GapSurvey}

// slowness is what is kept of a communicator to compare the waits of its ranks.
type slowness struct {
	at       time.Time // when the present part began; zero: waits are unknown
	launched uint64
	sums     map[string]waitSums // by rank, at this time
	found    slowFinding         // by the last parts
	parts    int
	text     string    // what the last part says
	measured time.Time // when it ended
}

// slowFinding is what a part found; the zero value: nothing.
type slowFinding struct {
	condition *Condition
	rank      string
}

// waitSums are the waits of a rank up to now.
type waitSums struct {
	received   time.Duration // for receives, of all queue pairs
	queuePairs int           // that waited for receives
	sent       time.Duration // of all sends up to their completions
	uneven     uint64        // calls of other than evenOperations
}

// memberWait is how long a rank waited in a part, as ratios of the part: for receives, the mean of its queue pairs; for sends, the sum.
type memberWait struct {
	rank           string
	received, sent float64
}

// judgeSlow names the rank for which the others wait, or whose sends take long.
func (r *jobRules) judgeSlow(t *team) {
	s := &t.slow
	if took := r.At.Sub(s.at); s.at.IsZero() || took >= longestPart || took >= slowPart && t.most-s.launched >= slowLaunches {
		r.compare(t, took)
	}
	i, ago := slices.IndexFunc(t.ranks, func(c *rankShare) bool { return c.Rank == s.found.rank }), r.At.Sub(s.measured)
	if i < 0 || s.parts < slowParts || ago > slowKept {
		return
	}
	text := s.text
	if !s.measured.Equal(s.at) { // the last part could not be compared
		text += ", measured " + format.Span(ago) + " ago"
	}
	r.name(s.found.condition, t, t.ranks[i], text, time.Time{})
}

// compare ends a part.
func (r *jobRules) compare(t *team, took time.Duration) {
	s, sums := &t.slow, r.waitSums(t)
	members := compareWaits(s.sums, sums, took)
	if s.at, s.launched, s.sums = r.At, t.most, sums; sums == nil {
		s.at = time.Time{}
	}
	if members == nil || took >= longestPart {
		return
	}
	found, text := r.findSlow(t, members)
	if found != s.found {
		s.parts = 0
	}
	s.found, s.text, s.parts, s.measured = found, text, s.parts+1, r.At
}

// waitSums returns the waits of the ranks; nil if they do not compare: ranks are on other nodes or share a container, or some waits are
// unknown.
func (r *jobRules) waitSums(t *team) map[string]waitSums {
	elsewhere := func(c *rankShare) bool { return int(c.Ranks) != len(t.ranks) }
	if float64(len(t.ranks)) < jobMemberSlow.limit(2) || r.Facts.QueuePairWaits == nil || slices.ContainsFunc(t.ranks, elsewhere) ||
		t.ranks[0].Owner == t.ranks[1].Owner { // as in most jobs: before anything is allocated
		return nil
	}
	sums := make(map[string]waitSums, len(t.ranks))
	owners := map[int]string{}
	cgroups := map[model.CgroupID]string{}
	for _, c := range t.ranks {
		if c.Owner == 0 || owners[c.Owner] != "" || cgroups[c.Cgroup] != "" {
			return nil
		}
		owners[c.Owner], cgroups[c.Cgroup] = c.Rank, c.Rank
		sums[c.Rank] = waitSums{uneven: r.unevenCalls(c)}
	}
	known, even := map[int]bool{}, false
	for i := range r.Shares.Outstanding {
		o := &r.Shares.Outstanding[i]
		switch {
		case owners[o.Owner] == "":
			continue
		case slices.ContainsFunc(o.ReceiveGaps, func(gap model.Gap) bool { return !slices.Contains(passing, gap) }):
			return nil
		}
		known[o.Owner], even = true, even || len(o.ReceiveGaps) > 0
	}
	if len(known) < len(owners) || len(sums) < len(owners) {
		return nil
	}
	for _, w := range r.Facts.QueuePairWaits {
		if rank := cgroups[w.Cgroup]; rank != "" {
			s := sums[rank]
			s.received += w.Waited + w.Waiting
			s.queuePairs++
			sums[rank] = s
		}
	}
	for _, s := range sums {
		if s.queuePairs == 0 || even && s.queuePairs != sums[t.ranks[0].Rank].queuePairs {
			return nil
		}
	}
	for i := range r.Shares.Completions {
		if c := &r.Shares.Completions[i]; owners[c.Owner] != "" {
			s := sums[owners[c.Owner]]
			s.sent += time.Duration(c.Value.Sum)
			sums[owners[c.Owner]] = s
		}
	}
	return sums
}

// unevenCalls returns how often the process of a rank called operations that ranks do not call alike.
func (r *jobRules) unevenCalls(c *rankShare) (n uint64) {
	for _, of := range r.ofProcess[c.Process.PID] {
		for i := range of.Operations {
			if o := &of.Operations[i]; !slices.Contains(evenOperations, o.Operation) {
				n += o.Count
			}
		}
	}
	return n
}

// compareWaits returns how long each rank waited between two times; nil if ranks or queue pairs are not the same, or an uneven operation
// was called.
func compareWaits(before, now map[string]waitSums, took time.Duration) (members []memberWait) {
	if len(before) != len(now) {
		return nil
	}
	for rank, s := range now {
		b, known := before[rank]
		received, sent := s.received-b.received, s.sent-b.sent
		if !known || b.queuePairs != s.queuePairs || b.uneven != s.uneven || received < 0 || sent < 0 {
			return nil
		}
		members = append(members, memberWait{
			rank: rank, received: received.Seconds() / float64(s.queuePairs) / took.Seconds(), sent: sent.Seconds() / took.Seconds(),
		})
	}
	return members
}

// findSlow finds the rank that waits for receives clearly less than all others. If its sends clearly take longer, or if nobody waits less,
// it is the path of the rank whose sends take longer.
func (r *jobRules) findSlow(t *team, members []memberWait) (slowFinding, string) {
	slices.SortFunc(members, func(a, b memberWait) int { return cmp.Compare(a.received, b.received) })
	least, others := members[0], slices.Clone(members[1:])
	waits := others[len(others)/2].received
	differ := waits - least.received
	slow := differ >= jobMemberSlow.limit(0) && least.received <= jobMemberSlow.limit(1)*waits &&
		others[0].received-least.received >= apart*differ

	slices.SortFunc(members, func(a, b memberWait) int { return cmp.Compare(b.sent, a.sent) })
	most, rest := members[0], members[1:]
	sends := rest[len(rest)/2].sent
	differ = most.sent - sends
	path := min(differ, waits) >= pathSlow.limit(0) && most.sent >= pathSlow.limit(1)*sends && most.sent-rest[0].sent >= apart*differ

	switch {
	case path && (!slow || most.rank == least.rank):
		return slowFinding{pathSlow, most.rank}, fmt.Sprintf("sends of %s take %s in a second, of %d other ranks %s to %s, "+
			"which wait for receives %s of the time", r.nameOf(t, t.rank(most.rank)), format.Duration(most.sent), len(rest),
			format.Duration(rest[len(rest)-1].sent), format.Duration(rest[0].sent), format.Percent(waits))
	case slow:
		return slowFinding{jobMemberSlow, least.rank}, fmt.Sprintf("%s waits for receives %s of the time, %d other ranks %s to %s: "+
			"they wait for it", r.nameOf(t, t.rank(least.rank)), format.Percent(least.received), len(others),
			format.Percent(others[0].received), format.Percent(others[len(others)-1].received))
	}
	return slowFinding{}, ""
}

// rank returns the rank with this name.
func (t *team) rank(name string) *rankShare {
	return t.ranks[slices.IndexFunc(t.ranks, func(c *rankShare) bool { return c.Rank == name })]
}
