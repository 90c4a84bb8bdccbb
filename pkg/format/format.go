// SPDX-License-Identifier: Apache-2.0

// Package format renders figures and names for people. The same figure has the same text in the terminal, on pages, in
// verdicts and on the command line.
package format

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Texts in place of figures and names.
const (
	None       = "-"          // an unknown or undefined value
	Unmeasured = "?"          // bytes, if no byte was counted and some are not counted
	Estimate   = "~"          // before an estimate
	NoOwner    = "(no owner)" // in place of a workload
)

// Count renders a number of things.
func Count(n float64) string { return fmt.Sprintf("%.0f", n) }

// PerSecond renders a rate without its unit.
func PerSecond(n float64) string {
	if n >= 100 {
		return fmt.Sprintf("%.0f", n)
	}
	return fmt.Sprintf("%.1f", n)
}

// Percent renders a ratio, 1 for 100%. A ratio above 0 is never rendered as 0%.
func Percent(ratio float64) string {
	if p := 100 * ratio; p < 1 && p > 0 {
		return fmt.Sprintf("%.2g%%", p)
	}
	return fmt.Sprintf("%.0f%%", 100*ratio)
}

// Size renders a number of bytes in binary units: 1.5 GiB.
func Size(n float64) string {
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

// Duration renders a number of seconds with three digits: 1.23ms.
func Duration(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	digits := time.Duration(1)
	for d/digits >= 1000 {
		digits *= 10
	}
	return d.Round(digits).String()
}

// Figure formats a figure with its unit: J, h, B/s, 1/s, s, or another one.
func Figure(v float64, unit string) string {
	switch unit {
	case "J":
		return fmt.Sprintf("%.3g kWh (%.4g J)", v/3.6e6, v)
	case "h":
		return PerSecond(v) + " h"
	case "B/s":
		return Size(v) + "/s"
	case "1/s":
		return PerSecond(v)
	case "s":
		return Duration(v)
	}
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", v, unit))
}

// Span renders a duration in whole seconds, without trailing zero units: 1h30m.
func Span(d time.Duration) string {
	s := d.Round(time.Second).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-len("0s")]
		}
	}
	return s
}

// Escape escapes unprintable characters: a name may come from a container.
func Escape(s string) string {
	var b strings.Builder
	for i, r := range s {
		_, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < utf8.RuneSelf && !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\x%02x`, r)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Owner renders the name of a workload, "" for the unattributed share.
func Owner(workload string) string {
	if workload == "" {
		return NoOwner
	}
	return Escape(workload)
}

// Line renders a text of several lines in one, as of joined errors, with ? in place of unprintable characters: a container can choose the
// characters of a path.
func Line(s string) string {
	s = strings.ReplaceAll(s, "\n", "; ")
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}
