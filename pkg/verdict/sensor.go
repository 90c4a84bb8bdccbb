// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

const maxWorked = 4096

// sensorRules judge the sources, hooks and maps of the sensor.
type sensorRules struct {
	*round
	worked map[workedKey]time.Time // when a source or hook last worked
}

// workedKey is a source or a hook by name; the other one is empty.
type workedKey struct{ source, hook string }

func (r sensorRules) judge() {
	for i := range r.States {
		r.judgeSource(&r.States[i])
	}
	for i := range r.Facts.DeviceStates {
		d := &r.Facts.DeviceStates[i]
		if r.unreadable(d) {
			r.find(deviceUnreadable, Subject{Kind: OfSource, Source: d.Source, Device: d.Device}, d.Waiting, string(d.State)+": "+d.Reason)
		}
	}
	r.judgeHooks()
	r.judgeLosses()
	for _, m := range r.Facts.Maps {
		if m.Capacity > 0 && float64(m.Entries)/float64(m.Capacity) > mapNearlyFull.limit(0) {
			r.find(mapNearlyFull, Subject{Kind: OfNode, Detail: m.Name}, time.Time{},
				fmt.Sprintf("%d of %d entries", m.Entries, m.Capacity))
		}
	}
	if e := r.Facts.Events; e != nil {
		var dropped uint64
		for _, l := range e.Dropped {
			dropped += l.Count
		}
		if n := r.counted(counterKey{condition: eventsLost}, dropped, nil); float64(n) > eventsLost.limit(0) {
			r.find(eventsLost, Subject{Kind: OfSource, Source: "events"}, time.Time{}, grewIn("events", n, eventsLost.Window))
		}
	}
	for key, at := range r.worked {
		if r.At.Sub(at) > day {
			delete(r.worked, key)
		}
	}
}

// lastWorked notes whether a source or hook works, and returns when it last worked.
func (r sensorRules) lastWorked(key workedKey, works bool) (time.Time, bool) {
	last, known := r.worked[key]
	if works && (known || len(r.worked) < maxWorked) {
		last, known = r.At, true
		r.worked[key] = last
	}
	return last, known
}

func (r sensorRules) judgeSource(s *model.SourceState) {
	worked, known := r.lastWorked(workedKey{source: s.Source}, s.State == model.StateOK)
	subject := Subject{Kind: OfSource, Source: s.Source}
	switch s.State {
	case model.StateStuck:
		r.find(sourceStuck, subject, time.Time{}, string(s.State), s.Reason)
	case model.StateFailed:
		r.find(sourceLost, subject, time.Time{}, string(s.State), s.Reason)
	case model.StateAbsent, model.StateUnsupported:
		if known && r.At.Sub(worked).Seconds() < sourceLost.limit(0) {
			r.find(sourceLost, subject, time.Time{}, string(s.State), s.Reason)
		}
	}
}

// unreadable reports whether a device of a source cannot be read, and no other verdict reports this: its GPU is lost,
// or the device for which it waits is stuck.
func (r sensorRules) unreadable(d *model.DeviceState) bool {
	switch d.State {
	case model.StateFailed, model.StateStuck, model.StateQuarantined:
		return !slices.ContainsFunc(r.Facts.GPUs, func(g model.GPU) bool {
			return isOf(d, &g) && has(&g, lostProblems) != nil
		})
	case model.StateBlocked:
		return !slices.ContainsFunc(r.Facts.DeviceStates, func(other model.DeviceState) bool {
			return other.Source == d.Source && other.State == model.StateStuck
		})
	}
	return false
}

// judgeHooks makes one verdict for all hooks that the kernel rejects.
func (r sensorRules) judgeHooks() {
	var lost []string
	for i := range r.Facts.Hooks {
		h := &r.Facts.Hooks[i]
		worked, known := r.lastWorked(workedKey{hook: h.Name}, h.State == model.StateOK)
		if h.State == model.StateFailed || h.State == model.StateUnsupported && known && r.At.Sub(worked) < hooksLost.Window {
			lost = append(lost, strings.TrimSuffix(h.Name+": "+h.Reason, ": "))
		}
	}
	if n := len(lost); n > 0 {
		evidence := append([]string{fmt.Sprintf("%d of %d hooks", n, len(r.Facts.Hooks))}, lost[:min(n, maxPerOwner)]...)
		r.find(hooksLost, Subject{Kind: OfNode}, time.Time{}, evidence...)
	}
}

// judgeLosses judges what the probes could not record: losses of the node, and losses of workloads with their own share
// of a map.
func (r sensorRules) judgeLosses() {
	for _, l := range r.Facts.Losses {
		if strings.HasSuffix(l.Reason, "_share") {
			continue
		}
		n := r.counted(counterKey{condition: losing, detail: l.Reason}, l.Count, nil)
		if float64(n) > losing.limit(0) {
			r.find(losing, Subject{Kind: OfNode, Detail: l.Reason}, time.Time{}, grewIn("events", n, losing.Window))
		}
	}
	var all sums
	for i := range r.Shares.OwnerLosses {
		s := &r.Shares.OwnerLosses[i]
		all.add(s.Owner, s.Key.Reason, uint64(s.Value))
	}
	r.judgeSums(losing, all, "events")
}
