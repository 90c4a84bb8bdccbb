// SPDX-License-Identifier: Apache-2.0

package format_test

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
)

func TestFigures(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{format.Count(12.4), "12"},
		{format.PerSecond(0), "0.0"},
		{format.PerSecond(99.94), "99.9"},
		{format.PerSecond(100), "100"},
		{format.Percent(1.2e-6), "0.00012%"},
		{format.Percent(0.0021), "0.21%"},
		{format.Percent(0.12), "12%"},
		{format.Percent(0), "0%"},
		{format.Size(512), "512 B"},
		{format.Size(1.5 * (1 << 20)), "1.5 MiB"},
		{format.Size(3 * (1 << 60)), "3072.0 PiB"},
		{format.Duration(0), "0s"},
		{format.Duration(0.0012345), "1.23ms"},
		{format.Duration(61), "1m1s"},
		{format.Span(90 * time.Minute), "1h30m"},
		{format.Span(2 * time.Hour), "2h"},
		{format.Span(65 * time.Second), "1m5s"},
		{format.Span(0), "0s"},
		{format.Figure(1.8e6, "J"), "0.5 kWh (1.8e+06 J)"},
		{format.Figure(2.5, "kg") + format.Figure(3, "") + format.Figure(1.5, "h"), "2.5 kg31.5 h"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestEscape: control characters in a container's name do not reach the terminal.
func TestEscape(t *testing.T) {
	for in, want := range map[string]string{
		"ns/pod/c":        "ns/pod/c",
		"größe":           "größe",
		"a\x1b[2Jb":       `a\x1b[2Jb`,
		"a\nb\rc\td":      `a\x0ab\x0dc\x09d`,
		"\u009b2J":        `\u009b2J`,
		"x\u202ey\u200bz": `x\u202ey\u200bz`,
		"\xff\xfe":        `\xff\xfe`,
		"":                format.NoOwner,
	} {
		if got := format.Owner(in); got != want {
			t.Errorf("%q is rendered as %q, want %q", in, got, want)
		}
	}
}
