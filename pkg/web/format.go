// SPDX-License-Identifier: Apache-2.0

package web

import (
	"fmt"
	"math"
	"net/url"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

// UTC formats a time with its zone.
func UTC(t time.Time) string {
	if t.IsZero() {
		return format.None
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// Clock formats the time of a day with its zone.
func Clock(t time.Time) string { return t.UTC().Format("15:04 UTC") }

// Age formats the time since an event in its two largest units.
func Age(d time.Duration) string {
	switch {
	case d < 0:
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%.0f min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// Optional renders a value that may not be known.
func Optional[T any](v *T, render func(T) string) string {
	if v == nil {
		return format.None
	}
	return render(*v)
}

// Number renders a number of things.
func Number(n uint64) string { return format.Count(float64(n)) }

// Width returns the width of a bar, 0 to 100; a part that is not 0 is visible.
func Width(part, whole float64) int {
	if !(part > 0) || !(whole > 0) {
		return 0
	}
	return int(math.Min(100, math.Max(1, math.Round(100*part/whole))))
}

// Verdict is one line of the verdicts.
type Verdict struct {
	Severity, Name, Subject, Link, Summary string
	Evidence                               []string
	Since                                  time.Time
	For, Runbook                           string
}

// WorkloadLink returns the page of a workload on its node.
func WorkloadLink(workload, id string) string {
	q := url.Values{"name": {workload}}
	if id != "" {
		q.Set("id", id)
	}
	return "/workload?" + q.Encode()
}

// DeviceLink returns the page of a device on its node.
func DeviceLink(device string) string { return "/device?" + url.Values{"name": {device}}.Encode() }
