// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"strings"
	"time"
)

// maxEvidence is the length of a piece of evidence, in bytes: reasons and names may be long.
const maxEvidence = 240

// shorten cuts a text to maxEvidence, and makes it valid UTF-8.
func shorten(s string) string {
	if len(s) > maxEvidence {
		s = s[:maxEvidence] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// The following format figures as accelscope top does.

func rate(perSecond float64) string {
	if perSecond >= 100 {
		return fmt.Sprintf("%.0f/s", perSecond)
	}
	return fmt.Sprintf("%.1f/s", perSecond)
}

func percent(part float64) string {
	if p := 100 * part; p < 1 && p > 0 {
		return fmt.Sprintf("%.2g%%", p)
	}
	return fmt.Sprintf("%.0f%%", 100*part)
}

func size(n float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; n >= 1024 && i < len(units)-1; i++ {
		n /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%.0f %s", n, units[i])
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}

// span formats a duration in whole seconds, without units that are zero at its end: 1h30m.
func span(d time.Duration) string {
	s := d.Round(time.Second).String()
	if trimmed, ok := strings.CutSuffix(s, "m0s"); ok {
		s = trimmed + "m"
	}
	if trimmed, ok := strings.CutSuffix(s, "h0m"); ok {
		s = trimmed + "h"
	}
	return s
}

// grewIn formats the growth of a counter: "link_downed +3 in 1h".
func grewIn(name string, growth uint64, window time.Duration) string {
	return fmt.Sprintf("%s +%d in %s", name, growth, span(window))
}
