// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

const (
	// stoppedFor is how long a process is stopped before it counts: a debugger stops it for a moment.
	stoppedFor = 10 * time.Second
	// deepSleep is how many times StallAfter a process sleeps without interruption (state D), using no CPU time: two minutes by default,
	// as the kernel's own limit for hung tasks. A write to slow storage takes less.
	deepSleep = 4
	// cause is how long before a rank's last launch a fault of its GPU may be its cause: with an older fault it launched for long.
	cause = 5 * time.Minute
)

// faultsOf returns the known faults of a rank that stands, the likely cause first.
func (r *jobRules) faultsOf(t *team, c *rankShare) (faults []string) {
	s := t.job.ranks[c.Rank]
	ago := func(what string, at time.Time) { faults = append(faults, what+" "+format.Span(r.At.Sub(at))+" ago") }
	if at, what := r.deviceFault(s.gpu, c); what != "" {
		ago(what+" on its GPU", at)
	}
	if at, what := r.hcaFault(t, c); what != "" {
		ago(what, at)
	}
	if !s.oom.IsZero() && r.mayCause(s.oom, c) {
		ago("OOM kill in its container", s.oom)
	}
	held := r.At.Sub(c.Process.StateSince)
	switch {
	case c.Process.Ended:
		ago("its process ended", c.Ended)
	case !c.Ended.IsZero():
		ago("it called destroy, abort or finalize", c.Ended)
	case c.Process.State == "Z":
		ago("its process became a zombie", c.Process.StateSince)
	case (c.Process.State == "T" || c.Process.State == "t") && held >= stoppedFor:
		faults = append(faults, "its process is stopped")
	case c.Process.State == "D" && held >= deepSleep*r.after && c.Process.CPU == s.cpu:
		faults = append(faults, "its process is in state D for "+format.Span(held))
	}
	if name := t.otherOperation(c); name != "" {
		faults = append(faults, "it launched more "+name+" than the others: another operation")
	}
	return faults
}

// deviceFault returns the last critical fault of a GPU that may be why a rank stands.
func (r *jobRules) deviceFault(uuid string, c *rankShare) (at time.Time, what string) {
	if uuid == "" {
		return time.Time{}, ""
	}
	if g := r.gpus[uuid]; g != nil {
		for _, x := range g.XIDs {
			code := strconv.FormatUint(x.Code, 10)
			if slices.Contains(criticalXIDs, code) && x.Last.After(at) && r.mayCause(x.Last, c) {
				at, what = x.Last, "XID "+code
			}
		}
	}
	if what != "" {
		return at, what
	}
	return r.criticalOf(c, func(s Subject) bool { return s.Kind == OfGPU && s.UUID == uuid })
}

// hcaFault returns a critical fault of an HCA that only this rank uses: by processes it is unknown who uses which HCA.
func (r *jobRules) hcaFault(t *team, c *rankShare) (at time.Time, what string) {
	for _, other := range t.ranks {
		if other != c && other.Owner == c.Owner {
			return time.Time{}, ""
		}
	}
	used := map[string]bool{}
	for i := range r.Shares.Objects {
		if o := &r.Shares.Objects[i]; o.Owner == c.Owner && o.Current > 0 {
			used[o.Device] = true
		}
	}
	at, what = r.criticalOf(c, func(s Subject) bool { return (s.Kind == OfPort || s.Kind == OfHCA) && used[s.Device] })
	return at, what
}

// criticalOf returns a critical condition of a device that may be why a rank stands, with the name of the device.
func (r *jobRules) criticalOf(c *rankShare, of func(Subject) bool) (at time.Time, what string) {
	for i := range r.found {
		f := &r.found[i]
		if f.condition.Severity != Critical || !of(f.subject) {
			continue
		}
		began := f.since
		if first, known := r.since[f.foundKey]; began.IsZero() && known {
			began = first.at
		} else if began.IsZero() {
			began = r.At
		}
		if r.mayCause(began, c) {
			what = f.condition.Name
			if f.subject.Kind != OfGPU {
				what = fmt.Sprintf("%s on %s", what, f.subject)
			}
			return began, what
		}
	}
	return time.Time{}, ""
}

func (r *jobRules) mayCause(at time.Time, c *rankShare) bool {
	return at.After(lastStep(c).Add(-cause))
}

// otherOperation returns an operation that a rank launched more often than most ranks that wait; empty: no such operation is known.
func (t *team) otherOperation(c *rankShare) string {
	own := counts(c)
	if own == nil {
		return ""
	}
	var groups []map[string]uint64
	var sizes []int
	for _, other := range t.waiting {
		n := counts(other)
		if n == nil {
			return ""
		}
		i := slices.IndexFunc(groups, func(g map[string]uint64) bool { return maps.Equal(g, n) })
		if i < 0 {
			i, groups, sizes = len(groups), append(groups, n), append(sizes, 0)
		}
		sizes[i]++
	}
	if len(sizes) == 0 {
		return ""
	}
	largest := slices.Max(sizes)
	if i := slices.Index(sizes, largest); !slices.Contains(sizes[i+1:], largest) {
		if names := lacks(groups[i], own); len(names) > 0 {
			return names[0]
		}
	}
	return ""
}
