// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

// lateness is how late a rank launched in each of the last minutes.
type lateness struct {
	// at is when the current minute began, with the sums of that moment.
	at       time.Time
	late     float64
	launched uint64
	parts    [lateParts]latePart
	n        int // number of minutes so far
}

// latePart is one minute: the lateness as a ratio of the time between launches, and in seconds for each launch.
type latePart struct{ ratio, each float64 }

func (p latePart) exceeds() bool {
	return p.ratio >= jobMemberLate.limit(0) && p.each > jobMemberLate.limit(1)
}

// note takes the sums of a refresh. A minute without launches, or between refreshes that are far apart, begins anew.
func (l *lateness) note(at time.Time, c *rankShare) {
	took, launches := at.Sub(l.at), c.Launched-l.launched
	switch {
	case !c.Late.Known || !c.Numbered:
		*l = lateness{}
		return
	case !l.at.IsZero() && took < time.Minute:
		return
	case l.at.IsZero() || took > 2*time.Minute || c.Launched <= l.launched || c.Late.Value < l.late:
		l.n = 0
	default:
		late := c.Late.Value - l.late
		l.parts[l.n%lateParts] = latePart{late / took.Seconds(), late / float64(launches)}
		l.n++
	}
	l.at, l.late, l.launched = at, c.Late.Value, c.Launched
}

// minutes returns in how many of the last minutes the rank was late, and the means.
func (l *lateness) minutes() (n int, mean latePart) {
	for _, p := range l.parts {
		if p.exceeds() {
			n++
		}
		mean.ratio += p.ratio / lateParts
		mean.each += p.each / lateParts
	}
	return n, mean
}

// judgeLate names a rank that is late in most of the last minutes, if no other rank is.
func (r *jobRules) judgeLate(t *team) {
	var late *rankShare
	for _, c := range t.ranks {
		l := &t.job.ranks[c.Rank].late
		switch n, _ := l.minutes(); {
		case l.n < lateParts || n > 1 && n < lateParts-1:
			return
		case n >= lateParts-1 && late != nil:
			return
		case n >= lateParts-1:
			late = c
		}
	}
	if late == nil {
		return
	}
	_, mean := t.job.ranks[late.Rank].late.minutes()
	text := fmt.Sprintf("%s launches %s after the first rank, %s of the time between launches", r.nameOf(t, late),
		format.Duration(mean.each), format.Percent(mean.ratio))
	r.name(jobMemberLate, t, late, text, time.Time{})
}
