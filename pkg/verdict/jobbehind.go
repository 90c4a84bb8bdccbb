// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

// judgeBehind names the ranks for which the others wait. With a known fault a rank is named after StallAfter. Without a fault it may write
// a checkpoint: it is named after 20 times as long, if nothing says that it waits, too.
func (r *jobRules) judgeBehind(t *team) {
	var named, unnamed []*rankShare
	lowest := t.most
	for _, c := range t.ranks {
		if lowest = min(lowest, c.Launched); c.Launched == t.most || len(t.waiting) == 0 || r.At.Sub(launchedAt(c)) < r.after {
			continue
		}
		if len(r.faultsOf(t, c)) > 0 {
			named = append(named, c)
		} else {
			unnamed = append(unnamed, c)
		}
	}
	if len(named) == 0 {
		limit := max(stallFactor*r.after, t.longest())
		named = slices.DeleteFunc(unnamed, func(c *rankShare) bool {
			return c.Launched != lowest || r.At.Sub(t.waiting[0].LastLaunch) < limit || r.At.Sub(launchedAt(c)) < limit ||
				r.mayWait(c) || !t.awaitsAll(c)
		})
	}
	for _, c := range named {
		text := fmt.Sprintf("%s has not launched %s for %s; %s", r.nameOf(t, c), t.next(c), format.Span(r.At.Sub(lastStep(c))),
			waiters(len(t.waiting)))
		r.name(jobMemberBehind, t, c, text, lastStep(c))
		if c.Process.Ended {
			t.job.ranks[c.Rank].gone = &departed{
				c.Process.PID, r.subjectOf(t, c), r.nameOf(t, c), t.next(c), t.most, lastStep(c), c.Ended,
			}
		}
	}
	for _, d := range t.departed() {
		if r.named[d.pid] {
			continue
		}
		r.named[d.pid] = true
		text := fmt.Sprintf("%s has not launched %s for %s; %s; its process ended %s ago, and its container is gone", d.name, d.lacks,
			format.Span(r.At.Sub(d.last)), waiters(len(t.waiting)), format.Span(r.At.Sub(d.ended)))
		r.find(jobMemberBehind, d.subject, d.last, text, "communicator "+t.key)
	}
}

// judgeStalled judges a communicator in which all ranks launched the same number, and nothing follows. That is normal while a job loads
// data, writes a checkpoint, compiles or has nothing to do. It is not while all GPUs only wait, or a rank has a fault.
func (r *jobRules) judgeStalled(t *team) {
	stood := r.At.Sub(t.last)
	if len(t.waiting) != len(t.ranks) || len(t.departed()) > 0 {
		return
	}
	if t.longest() == 0 || t.last.Sub(t.seen) < newJob || stood <= stallFactor*t.longest() {
		return
	}
	if slices.ContainsFunc(t.ranks, func(c *rankShare) bool { return r.waits[c.Process.PID] || r.named[c.Process.PID] }) {
		return // it stands because of another communicator
	}
	found := false
	for _, c := range t.ranks {
		if len(r.faultsOf(t, c)) > 0 {
			found = true
			r.name(jobStalled, t, c, fmt.Sprintf("%s and %d other ranks launched %s %s ago, and nothing followed", r.nameOf(t, c),
				len(t.ranks)-1, t.latest(c), format.Span(stood)), t.last)
		}
	}
	limit := r.after
	if !r.local(t) { // a rank on another node may write a checkpoint
		limit = stallFactor * r.after
	}
	if found || t.spins.IsZero() || r.At.Sub(t.spins) < r.after || stood < limit {
		return
	}
	for _, c := range t.ranks {
		r.named[c.Process.PID] = true
	}
	s, _ := r.owned(t.ranks[0].Owner)
	s.Detail = "communicator " + t.key
	r.find(jobStalled, s, t.last,
		fmt.Sprintf("%d ranks launched %s %s ago, and nothing followed; their GPUs only wait", len(t.ranks), t.latest(t.ranks[0]),
			format.Span(stood)),
		"longest time between launches in the last hour: "+format.Duration(t.longest().Seconds()))
}

// local reports whether all ranks of all communicators of the processes are on this node.
func (r *jobRules) local(t *team) bool {
	for _, c := range t.ranks {
		var last time.Time
		for _, other := range r.ofProcess[c.Process.PID] {
			if of := r.teams[other.Key]; of == nil || int(other.Ranks) != len(of.ranks) {
				return false
			}
			if other.LastLaunch.After(last) {
				last = other.LastLaunch
			}
		}
		if last.Before(c.Process.LastLaunch) { // a communicator that is not listed
			return false
		}
	}
	return true
}

// name adds a verdict that names a rank. A process is named once, in its largest communicator.
func (r *jobRules) name(c *Condition, t *team, of *rankShare, text string, since time.Time) {
	if r.named[of.Process.PID] {
		return
	}
	r.named[of.Process.PID] = true
	faults := r.faultsOf(t, of)
	evidence := []string{strings.Join(append([]string{text}, faults[:min(len(faults), 1)]...), "; ")}
	if len(faults) > 1 {
		evidence = append(evidence, faults[1:]...)
	}
	evidence = append(evidence, r.doing(t, of)...)
	r.find(c, r.subjectOf(t, of), since, append(evidence, "communicator "+t.key)...)
}

// subjectOf returns the workload, rank and GPU of a rank.
func (r *jobRules) subjectOf(t *team, c *rankShare) Subject {
	s, _ := r.owned(c.Owner)
	s.Detail = "rank " + c.Rank
	if g := r.gpus[t.job.ranks[c.Rank].gpu]; g != nil {
		s.GPU, s.UUID = g.ID, g.UUID
	}
	return s
}

// doing describes what the process of a rank does.
func (r *jobRules) doing(t *team, c *rankShare) []string {
	s := t.job.ranks[c.Rank]
	over := r.At.Sub(s.stood)
	if c.Process.Ended || over <= 0 {
		return nil
	}
	text := "process " + strconv.Itoa(c.Process.PID)
	if c.Process.State != "" {
		text += " in state " + c.Process.State
	}
	return []string{fmt.Sprintf("%s, %s of CPU time in %s", text, format.Span(c.Process.CPU-s.cpu), format.Span(over))}
}

// nameOf names a rank: "rank 5 (ml/llama-0/main, GPU 3)".
func (r *jobRules) nameOf(t *team, c *rankShare) string {
	where := []string{format.Owner(r.Shares.Owners[c.Owner].Workload)}
	if g := r.gpus[t.job.ranks[c.Rank].gpu]; g != nil {
		where = append(where, "GPU "+cmp.Or(g.ID, g.UUID))
	}
	return fmt.Sprintf("rank %s (%s)", c.Rank, strings.Join(where, ", "))
}

func waiters(n int) string {
	if n == 1 {
		return "1 rank waits"
	}
	return fmt.Sprintf("%d ranks wait", n)
}

// mayWait reports whether a rank may itself wait in another communicator: for a rank on this node, or on another node.
func (r *jobRules) mayWait(c *rankShare) bool {
	if r.waits[c.Process.PID] {
		return true
	}
	last := lastStep(c)
	if !c.Process.LastLaunch.After(last) {
		return false
	}
	elsewhere := true // in a communicator that is not listed
	for _, other := range r.ofProcess[c.Process.PID] {
		if !other.LastLaunch.After(last) {
			continue
		}
		t := r.teams[other.Key]
		if t == nil || int(other.Ranks) != len(t.ranks) {
			return true
		}
		elsewhere = elsewhere && other.LastLaunch.Before(c.Process.LastLaunch)
	}
	return elsewhere
}

// launchedAt returns when the process of a rank last launched something, elsewhere only while it has not left the communicator.
func launchedAt(c *rankShare) time.Time {
	if last := lastStep(c); !c.Ended.IsZero() || last.After(c.Process.LastLaunch) {
		return last
	}
	return c.Process.LastLaunch
}

// counts returns the launches by operation that have numbers; nil if they are not all known.
func counts(c *rankShare) map[string]uint64 {
	if c.Since.IsZero() {
		return nil
	}
	n := map[string]uint64{}
	for _, o := range c.Operations {
		if o.Operation != "send" && o.Operation != "recv" {
			n[o.Operation] = o.Count
		}
	}
	return n
}

// lacks returns the operations that a rank launched less often than another rank.
func lacks(c, other map[string]uint64) (names []string) {
	for name, n := range other {
		if c[name] < n {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// next names the launch that a rank lacks: "all_reduce number 118,204".
func (t *team) next(c *rankShare) string {
	what := "collective"
	if own, others := counts(c), counts(t.waiting[0]); own != nil && others != nil {
		if names := lacks(own, others); len(names) == 1 {
			what = names[0]
		}
	}
	return what + " number " + grouped(c.Launched+1)
}

// latest names the last launch of a rank. The operation is known if the rank calls only one.
func (t *team) latest(c *rankShare) string {
	what := "collective"
	if own := counts(c); len(own) == 1 {
		for name := range own {
			what = name
		}
	}
	return what + " number " + grouped(c.Launched)
}

// awaitsAll reports whether the launch that a rank lacks needs all ranks equally. The root of a broadcast or a scatter launches when it has
// something to send: the ranks of an idle inference server wait for it.
func (t *team) awaitsAll(c *rankShare) bool {
	own, others := counts(c), counts(t.waiting[0])
	if own == nil || others == nil {
		return false
	}
	return slices.ContainsFunc(lacks(own, others), func(name string) bool { return name != "broadcast" && name != "scatter" })
}

// grouped formats a number with commas: 118,204.
func grouped(n uint64) string {
	text := strconv.FormatUint(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
