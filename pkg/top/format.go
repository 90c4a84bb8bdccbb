// SPDX-License-Identifier: Apache-2.0

package top

// None is how a value that is unknown or undefined is printed, Unmeasured how bytes are printed of which none was counted and
// not all are, and Estimate what is put before bytes that are estimated.
const (
	None       = none
	Unmeasured = unmeasured
	Estimate   = "~"
)

// Count prints a number as the table does, as the following functions do, so that the pages show the same text.
func Count(n float64) string { return count(n) }

// PerSecond prints a rate of events.
func PerSecond(n float64) string { return perSecond(n) }

// Size prints a number of bytes.
func Size(n float64) string { return size(n) }

// Duration prints a number of seconds.
func Duration(seconds float64) string { return duration(seconds) }

// Escape returns text with its unprintable characters escaped.
func Escape(s string) string { return escape(s) }
