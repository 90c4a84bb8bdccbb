// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"cmp"
	"slices"
	"time"
)

// signal is a reason to release the driver, as long as it is observed.
type signal struct {
	key    string // stays the same while the reason changes
	reason string
}

type observed struct {
	since  time.Time
	driver uint64 // instance of the driver at that time
	over   bool   // the signal is ignored until it ends
}

type decision struct {
	seen map[string]*observed // by key of the signal
}

// decide returns the reason to release the driver and the time left, or "". driver is the instance of the loaded
// driver, 0 if no driver is loaded. A signal is over after the longest time, or when another instance of the driver is
// loaded, even if it is still observed: tools reset their labels and files at the very end, or never.
func (d *decision) decide(now time.Time, signals []signal, driver uint64) (reason string, left time.Duration) {
	seen := make(map[string]*observed, len(signals))
	slices.SortFunc(signals, func(a, b signal) int { return cmp.Compare(a.key, b.key) })
	var first *observed
	for _, s := range signals {
		o := d.seen[s.key]
		if o == nil {
			o = &observed{since: now, driver: driver}
		}
		seen[s.key] = o
		reloaded := driver != 0 && driver != o.driver
		if o.over = o.over || reloaded || now.Sub(o.since) >= longest; o.over {
			continue
		}
		if first == nil || o.since.Before(first.since) {
			first, reason = o, s.reason
		}
	}
	d.seen = seen
	if first == nil {
		return "", 0
	}
	return reason, longest - now.Sub(first.since)
}
