// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// A survey is what an owner moved over a device during one survey, in bytes per second.
type survey struct {
	owner        identity.OwnerID
	begun, ended time.Time
	rates        [directions]float64
}

// A cover is how the calls of an owner on a device are counted. The owner has the largest cover of its cgroups.
type cover uint8

const (
	allCounted  cover = iota + 1
	someMissing       // calls are missing, or are in a survey
	unsurveyed        // calls are counted in surveys only, and no survey has ended yet
)

// calls identifies the calls of a cgroup on a device.
type calls struct {
	cgroup model.CgroupID
	device *device
}

// pausedCalls are the calls that are counted in surveys only, or nil if unknown.
type pausedCalls map[calls]bool

// noteSurveys records the surveys of this refresh, and returns the calls that are counted in surveys only.
func (l *deviceList) noteSurveys(s *model.Snapshot, owners *identity.Table, before pausedCalls) pausedCalls {
	for _, d := range l.order {
		d.surveys = d.surveys[:0]
		clear(d.covers)
	}
	if s.Surveys == nil {
		return nil
	}
	surveyed := make(map[calls]bool, len(s.Surveys))
	for i := range s.Surveys {
		f := &s.Surveys[i]
		d, seconds := l.devices[f.Device], f.Ended.Sub(f.Begun).Seconds()
		if d == nil || seconds <= 0 {
			continue
		}
		surveyed[calls{f.Cgroup, d}] = true
		d.surveys = append(d.surveys, survey{
			owners.Of(f.Cgroup), f.Begun, f.Ended,
			[directions]float64{float64(f.TransmitBytes) / seconds, float64(f.ReceiveBytes) / seconds},
		})
	}
	paused := make(pausedCalls, len(s.Surveys))
	for i := range s.Coverage {
		f := &s.Coverage[i]
		d := l.devices[f.Device]
		if d == nil {
			continue
		}
		c, of := someMissing, calls{f.Cgroup, d}
		switch f.Gap {
		case "":
			c = allCounted
		case model.GapSurvey:
			if paused[of] = true; !surveyed[of] {
				c = unsurveyed
			}
		}
		if d.covers == nil {
			d.covers = map[identity.OwnerID]cover{}
		}
		owner := owners.Of(f.Cgroup)
		d.covers[owner] = max(d.covers[owner], c)
	}
	for _, d := range l.order {
		d.lapsed = d.lapsed || before == nil
	}
	for of := range before {
		of.device.lapsed = of.device.lapsed || !paused[of]
	}
	return paused
}

func (d *device) surveyed(owner identity.OwnerID) bool {
	return slices.ContainsFunc(d.surveys, func(s survey) bool { return s.owner == owner })
}

// A period is one interval, or several short ones, with the bytes that exact methods left.
type period struct {
	from, to time.Time
	bytes    uint64
}

// The periods reach back for the survey that ended last: 32 periods of at least 5 s.
const (
	maxPeriods = 32
	minPeriod  = 5 * time.Second
)

// remember adds the bytes that exact methods left of an interval to the past, and compares the newest survey with them.
func (w *direction) remember(all accounts, now time.Time, left uint64) {
	d := w.device
	switch n := len(w.past); {
	case d.interval.mixed || len(d.covers) == 0: // the interval includes earlier bytes, or there are no surveys
		w.past = nil
	case n > 0 && w.past[n-1].to.Sub(w.past[n-1].from) < minPeriod:
		w.past[n-1].to, w.past[n-1].bytes = now, plus(w.past[n-1].bytes, left)
	default:
		if n == maxPeriods {
			w.past = slices.Delete(w.past, 0, 1)
		}
		w.past = append(w.past, period{d.endedAt, now, left})
	}
	w.compare(all)
}

// compare compares what owners moved in the newest survey with what the device moved in it.
func (w *direction) compare(all accounts) {
	var begun, ended time.Time
	surveyed := 0.0
	for i := range w.device.surveys {
		s := &w.device.surveys[i]
		if !all.live(w.device, s.owner, byQPCounter) {
			surveyed += s.rates[w.index]
		}
		if !s.ended.After(w.surveyed) {
			continue
		}
		if begun.IsZero() || s.begun.Before(begun) {
			begun = s.begun
		}
		if s.ended.After(ended) {
			ended = s.ended
		}
	}
	if ended.IsZero() {
		return
	}
	moved, known := w.during(begun, ended)
	w.surveyed, w.comparable, w.other = ended, known && surveyed <= maxSurplus*moved, max(moved-surveyed, 0)
}

// during returns the bytes per second that exact methods left in the periods that cover a time. known is false if the
// periods do not cover it.
func (w *direction) during(begun, ended time.Time) (perSecond float64, known bool) {
	first := slices.IndexFunc(w.past, func(p period) bool { return p.to.After(begun) })
	if first < 0 || w.past[first].from.After(begun) {
		return 0, false
	}
	var bytes uint64
	for _, p := range w.past[first:] {
		if bytes = plus(bytes, p.bytes); !p.to.Before(ended) {
			return float64(bytes) / p.to.Sub(w.past[first].from).Seconds(), true
		}
	}
	return 0, false
}
