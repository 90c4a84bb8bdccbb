// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"math"
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// opcodeNames are rdma-core's words for enum ibv_wr_opcode, in the order of the
// kernel's counters.
var opcodeNames = [gen.DatapathOpcodeOPCODES]string{
	"rdma_write", "rdma_write_with_imm", "send", "send_with_imm", "rdma_read", "atomic_cmp_and_swp",
	"atomic_fetch_and_add", "local_inv", "bind_mw", "send_with_inv", "tso", "other", "recv",
}

// statusNames are those of enum ibv_wc_status, 0 to 23.
var statusNames = [statuses]string{
	"success", "local_length_error", "local_qp_operation_error", "local_eec_operation_error",
	"local_protection_error", "wr_flush_error", "mw_bind_error", "bad_response_error", "local_access_error",
	"remote_invalid_request_error", "remote_access_error", "remote_operation_error", "retry_exceeded",
	"rnr_retry_exceeded", "local_rdd_violation_error", "remote_invalid_rd_request", "remote_aborted_error",
	"invalid_eec_number", "invalid_eec_state", "fatal_error", "response_timeout_error", "general_error",
	"tag_matching_error", "tag_matching_rendezvous_incomplete",
}

var completedNames = [gen.DatapathCompletedCOMPLETED]string{"write", "read", "send", "atomic"}

// The counts of a context in one row: the figures that are kept of each.
const (
	opcodes  = int(gen.DatapathOpcodeOPCODES)
	statuses = len(gen.DatapathContextStat{}.Errors)

	countRequests = 0
	countBytes    = countRequests + opcodes
	countReceived = countBytes + opcodes // bytes of receives that completed
	countErrors   = countReceived + 1
	counts        = countErrors + statuses
)

// flatten puts the counters of a context in a row.
func flatten(s *gen.DatapathContextStat) (n [counts]uint64) {
	copy(n[countRequests:], s.Posted[:])
	copy(n[countBytes:], s.Bytes[:])
	n[countReceived] = s.ReceivedBytes
	copy(n[countErrors:], s.Errors[:])
	return n
}

// callsOf is the group of calls that a count comes from.
func callsOf(count int) int {
	if count >= countReceived {
		return budget.Poll
	}
	return budget.Post
}

// direction is where the bytes that a count is of go, empty for what is none. What
// a read or an atomic brings is received, though it is known when they are posted.
func direction(count int) model.Direction {
	switch {
	case count == countReceived:
		return model.Receive
	case count < countBytes || count > countReceived:
		return ""
	}
	switch gen.DatapathOpcode(count - countBytes) {
	case gen.DatapathOpcodeOPCODE_RDMA_READ, gen.DatapathOpcodeOPCODE_ATOMIC_CMP_AND_SWP,
		gen.DatapathOpcodeOPCODE_ATOMIC_FETCH_AND_ADD:
		return model.Receive
	case gen.DatapathOpcodeOPCODE_RDMA_WRITE, gen.DatapathOpcodeOPCODE_RDMA_WRITE_WITH_IMM,
		gen.DatapathOpcodeOPCODE_SEND, gen.DatapathOpcodeOPCODE_SEND_WITH_IMM,
		gen.DatapathOpcodeOPCODE_SEND_WITH_INV, gen.DatapathOpcodeOPCODE_TSO:
		return model.Transmit
	}
	return "" // A bind or an invalidation moves nothing; of others nobody knows where to.
}

// A figure is a cumulative count: what was seen all of, and what was seen in windows
// and scaled. Neither ever falls; a count is in one of them.
type figure struct {
	exact, sampled uint64
	part           float64 // of one more that was sampled, so that rounding loses nothing
}

func (f *figure) add(n uint64, exact bool, scale float64) {
	if exact {
		f.exact += n
		return
	}
	whole, part := math.Modf(float64(n) * scale)
	f.part += part
	if f.part >= 1 {
		whole, f.part = whole+1, f.part-1
	}
	f.sampled += uint64(whole)
}

// totals folds the cumulative counts of verbs contexts into those of cgroups on
// devices. Of each context it remembers what it was told last, and what it keeps
// back until a period of windows ends. It is not safe for use by several goroutines.
//
// A cgroup's exact figures on a device go on only while all of its contexts there
// are watched all the time. Otherwise they rest, and what comes adds to the sampled
// ones: scaled what was seen in windows, as it is what was seen all of. So the two
// together are all that was moved, at any time. What is received is known from posts
// (reads, atomics) and from polls (receives): it is exact while both are.
type totals struct {
	contexts map[gen.DatapathContextKey]*contextTotals
	pairs    map[pairID]*pairTotals
	spending
}

type pairID struct {
	cgroup uint64
	device uint32
}

// contextTotals is what is remembered of a context that lives.
type contextTotals struct {
	pair    pairID
	last    [counts]uint64
	kept    [counts]uint64
	how     [budget.Groups]budget.Sampling
	latency [gen.DatapathCompletedCOMPLETED]*latencyTotals
}

type latencyTotals struct{ last, kept gen.DatapathLatency }

// pairTotals are the figures of one cgroup on one device.
type pairTotals struct {
	figures   [counts]figure
	received  figure
	durations [gen.DatapathCompletedCOMPLETED]*durationTotals
	live      int
	windowed  [budget.Groups]int // contexts that are not watched all the time
}

type durationTotals struct {
	buckets             [model.FineBuckets]figure
	exactNS, sampledNS  float64
	exactAny, sampleAny bool
}

// newTotals makes empty ones; limit is the budget, 0 for none.
func newTotals(limit float64) *totals {
	return &totals{
		contexts: map[gen.DatapathContextKey]*contextTotals{},
		pairs:    map[pairID]*pairTotals{},
		spending: newSpending(limit),
	}
}

func (t *totals) context(key gen.DatapathContextKey, stat *gen.DatapathContextStat) *contextTotals {
	id := pairID{stat.Cgroup, stat.Device}
	c := t.contexts[key]
	if c != nil && c.pair != id { // another one at the same address, or in another cgroup
		t.drop(key)
		c = nil
	}
	if c == nil {
		c = &contextTotals{pair: id}
		for g := range budget.Groups {
			c.how[g] = budget.Sampling{Scale: 1, Ratio: 1}
		}
		t.contexts[key] = c
		t.of(id).live++
	}
	return c
}

// of is never nil: what was forgotten while it lives begins again.
func (t *totals) of(id pairID) *pairTotals {
	p := t.pairs[id]
	if p == nil {
		p = &pairTotals{}
		t.pairs[id] = p
	}
	return p
}

// add books what a context counted since it was added last; how says what that is
// worth, by group of calls.
func (t *totals) add(key gen.DatapathContextKey, stat *gen.DatapathContextStat, how [budget.Groups]budget.Sampling) {
	c := t.context(key, stat)
	p := t.of(c.pair)
	for g := range budget.Groups {
		if c.how[g].Windowed && !how[g].Windowed {
			c.flush(p, g)
		}
		p.windowed[g] += truth(how[g].Windowed) - truth(c.how[g].Windowed)
	}
	c.how = how
	for i, n := range flatten(stat) {
		delta := since(n, c.last[i])
		c.last[i] = n
		c.book(p, i, delta)
	}
	if how[budget.Poll].Windowed && how[budget.Poll].Scale != 0 {
		for d, l := range c.latency {
			if l != nil {
				p.duration(d).add(&l.kept, false, how[budget.Poll].Scale)
				l.kept = gen.DatapathLatency{}
			}
		}
	}
}

// book adds n to a count, or keeps it back.
func (c *contextTotals) book(p *pairTotals, i int, n uint64) {
	how := c.how[callsOf(i)]
	if how.Discard {
		c.kept[i] = 0
		return
	}
	n += c.kept[i]
	if how.Scale == 0 {
		c.kept[i] = n
		return
	}
	c.kept[i] = 0
	if n == 0 {
		return
	}
	p.figures[i].add(n, p.windowed[callsOf(i)] == 0, how.Scale)
	if direction(i) == model.Receive {
		p.received.add(n, p.windowed == [budget.Groups]int{}, how.Scale)
	}
}

// addLatency books the durations of a context that was added before. how is that of
// polling.
func (t *totals) addLatency(key gen.DatapathLatencyKey, l *gen.DatapathLatency, how budget.Sampling) {
	c := t.contexts[key.Context]
	if c == nil || key.Completed >= uint32(len(c.latency)) {
		return
	}
	last := c.latency[key.Completed]
	if last == nil {
		last = &latencyTotals{}
		c.latency[key.Completed] = last
	}
	last.kept.SumNs += since(l.SumNs, last.last.SumNs)
	for i, n := range l.Buckets {
		last.kept.Buckets[i] += since(n, last.last.Buckets[i])
	}
	last.last = *l
	switch {
	case how.Discard:
		last.kept = gen.DatapathLatency{}
		return
	case how.Scale == 0:
		return
	}
	p := t.of(c.pair)
	p.duration(int(key.Completed)).add(&last.kept, p.windowed[budget.Poll] == 0, how.Scale)
	last.kept = gen.DatapathLatency{}
}

func (p *pairTotals) duration(completed int) *durationTotals {
	if p.durations[completed] == nil {
		p.durations[completed] = &durationTotals{}
	}
	return p.durations[completed]
}

func (d *durationTotals) add(l *gen.DatapathLatency, exact bool, scale float64) {
	for i, n := range l.Buckets {
		if n != 0 {
			d.buckets[i].add(n, exact, scale)
			d.exactAny, d.sampleAny = d.exactAny || exact, d.sampleAny || !exact
		}
	}
	if exact {
		d.exactNS += float64(l.SumNs)
	} else {
		d.sampledNS += float64(l.SumNs) * scale
	}
}

// drop forgets a context that is gone; what it did stays. What it keeps back is
// scaled like the period before.
func (t *totals) drop(key gen.DatapathContextKey) {
	c := t.contexts[key]
	if c == nil {
		return
	}
	p := t.of(c.pair)
	for g := range budget.Groups {
		c.flush(p, g)
	}
	p.live--
	for g := range budget.Groups {
		p.windowed[g] -= truth(c.how[g].Windowed)
	}
	delete(t.contexts, key)
}

// flush books what is kept back of a group: its period does not end as it should.
func (c *contextTotals) flush(p *pairTotals, calls int) {
	c.how[calls].Scale, c.how[calls].Discard = 1/max(c.how[calls].Ratio, 1e-6), false
	for i := range c.kept {
		if callsOf(i) == calls {
			c.book(p, i, 0)
		}
	}
	for d, l := range c.latency {
		if l != nil && calls == budget.Poll {
			p.duration(d).add(&l.kept, p.windowed[budget.Poll] == 0, c.how[budget.Poll].Scale)
			l.kept = gen.DatapathLatency{}
		}
	}
}

// exited forgets the contexts of a process, which were added for the last time.
func (t *totals) exited(tgid uint32) {
	for key := range t.contexts {
		if key.Tgid == tgid {
			t.drop(key)
		}
	}
	t.gone(int(tgid))
}

// released forgets all contexts: their counters are gone.
func (t *totals) released() {
	for key := range t.contexts {
		t.drop(key)
	}
	clear(t.processes)
}

// forget drops the figures of these cgroups.
func (t *totals) forget(cgroups map[uint64]bool) {
	if len(cgroups) == 0 {
		return
	}
	for id, p := range t.pairs {
		switch {
		case !cgroups[id.cgroup]:
		case p.live == 0:
			delete(t.pairs, id)
		default:
			t.pairs[id] = &pairTotals{live: p.live, windowed: p.windowed}
		}
	}
	t.forgetSpent(cgroups)
}

// fill tells what cgroups moved, cumulative. What nothing was seen of has no row.
// Rows of devices whose name is not known are kept back.
func (t *totals) fill(snap *model.Snapshot, deviceName func(uint32) string) {
	snap.Traffic, snap.WorkRequests = []model.Traffic{}, []model.WorkRequests{}
	snap.CompletionErrors, snap.Completions = []model.CompletionErrors{}, []model.Completions{}
	snap.Sampling = []model.Sampling{}
	ids := make([]pairID, 0, len(t.pairs))
	for id := range t.pairs {
		if deviceName(id.device) != "" {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b pairID) int {
		return cmp.Or(cmp.Compare(a.cgroup, b.cgroup), cmp.Compare(a.device, b.device))
	})
	ratios := t.ratios()
	for _, id := range ids {
		p, device := t.pairs[id], deviceName(id.device)
		p.fill(snap, id.cgroup, device)
		if ratio, ok := ratios[id]; ok {
			for g, calls := range []model.Calls{budget.Post: model.PostCalls, budget.Poll: model.PollCalls} {
				snap.Sampling = append(snap.Sampling,
					model.Sampling{Cgroup: id.cgroup, Device: device, Calls: calls, Ratio: ratio[g]})
			}
		}
	}
	snap.Budgets = t.budgets()
}

// unnamed says whether anything is kept back for want of a name.
func (t *totals) unnamed(deviceName func(uint32) string) bool {
	for id := range t.pairs {
		if deviceName(id.device) == "" {
			return true
		}
	}
	return false
}

// ratios are the lowest of the contexts that live.
func (t *totals) ratios() map[pairID][budget.Groups]float64 {
	ratios := make(map[pairID][budget.Groups]float64, len(t.pairs))
	for _, c := range t.contexts {
		r, ok := ratios[c.pair]
		for g := range budget.Groups {
			if !ok || c.how[g].Ratio < r[g] {
				r[g] = c.how[g].Ratio
			}
		}
		ratios[c.pair] = r
	}
	return ratios
}

func (p *pairTotals) fill(snap *model.Snapshot, cgroup uint64, device string) {
	for _, sampled := range []bool{false, true} {
		value := func(f figure) uint64 {
			if sampled {
				return f.sampled
			}
			return f.exact
		}
		seen := func(windowed bool) model.Seen {
			return model.Seen{Sampled: sampled, Resting: !sampled && windowed}
		}
		posts, polls := seen(p.windowed[budget.Post] > 0), seen(p.windowed[budget.Poll] > 0)
		var sent uint64
		for i, f := range p.figures {
			if direction(i) == model.Transmit {
				sent += value(f)
			}
		}
		if sent > 0 {
			snap.Traffic = append(snap.Traffic, model.Traffic{
				Cgroup: cgroup, Device: device, Method: model.MethodUprobe, Direction: model.Transmit, Bytes: sent, Seen: posts,
			})
		}
		if n := value(p.received); n > 0 {
			snap.Traffic = append(snap.Traffic, model.Traffic{
				Cgroup: cgroup, Device: device, Method: model.MethodUprobe, Direction: model.Receive, Bytes: n,
				Seen: seen(p.windowed != [budget.Groups]int{}),
			})
		}
		for i, name := range opcodeNames {
			if n := value(p.figures[countRequests+i]); n > 0 {
				snap.WorkRequests = append(snap.WorkRequests, model.WorkRequests{
					Cgroup: cgroup, Device: device, Opcode: name, Count: n, Bytes: value(p.figures[countBytes+i]), Seen: posts,
				})
			}
		}
		for i, name := range statusNames {
			if n := value(p.figures[countErrors+i]); n > 0 {
				snap.CompletionErrors = append(snap.CompletionErrors,
					model.CompletionErrors{Cgroup: cgroup, Device: device, Status: name, Count: n, Seen: polls})
			}
		}
		for i, d := range p.durations {
			if d == nil || sampled && !d.sampleAny || !sampled && !d.exactAny {
				continue
			}
			h := model.FineHistogram{SumSeconds: d.exactNS / 1e9}
			if sampled {
				h.SumSeconds = d.sampledNS / 1e9
			}
			for b, f := range d.buckets {
				h.Buckets[b] = value(f)
				h.Count += value(f)
			}
			snap.Completions = append(snap.Completions,
				model.Completions{Cgroup: cgroup, Device: device, Opcode: completedNames[i], Duration: h, Seen: polls})
		}
	}
}

// since is what a counter grew by; one that fell began again.
func since(n, last uint64) uint64 {
	if n < last {
		return n
	}
	return n - last
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}
