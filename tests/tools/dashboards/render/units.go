// SPDX-License-Identifier: Apache-2.0

package render

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// scales are the steps of a unit: the divisor of a value, and the name of the step.
var scales = map[string][]struct {
	by   float64
	name string
}{
	"bytes": {{1 << 40, " TiB"}, {1 << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}, {1, " B"}},
	"Bps":   {{1e12, " TB/s"}, {1e9, " GB/s"}, {1e6, " MB/s"}, {1e3, " kB/s"}, {1, " B/s"}},
	"ops":   {{1e6, "M/s"}, {1e3, "k/s"}, {1, "/s"}},
	"pps":   {{1e6, "M p/s"}, {1e3, "k p/s"}, {1, " p/s"}},
	"short": {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}, {1, ""}},
	"hertz": {{1e9, " GHz"}, {1e6, " MHz"}, {1, " Hz"}},
	"s":     {{60, " min"}, {1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}},
	"watt":  {{1e3, " kW"}, {1, " W"}},
	"none":  {{1, ""}},
}

// format writes a value in a unit of Grafana.
func format(v float64, unit string) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case math.IsInf(v, 0):
		return "∞"
	case unit == "percentunit":
		return number(v*100) + " %"
	case unit == "percent":
		return number(v) + " %"
	case unit == "celsius":
		return number(v) + " °C"
	case unit == "dateTimeAsIso":
		return time.UnixMilli(int64(v)).UTC().Format("2006-01-02 15:04:05")
	}
	if suffix, is := strings.CutPrefix(unit, "suffix:"); is {
		return format(v, "short") + suffix
	}
	steps := scales[unit]
	if steps == nil {
		steps = scales["none"]
	}
	for i, s := range steps {
		if math.Abs(v) >= s.by*0.9995 || i == len(steps)-1 || v == 0 && s.by == 1 {
			return number(v/s.by) + s.name
		}
	}
	return number(v)
}

// number formats a value with three digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a < 1e-9:
		return "0"
	case a >= 100 || a == math.Trunc(a):
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return trim(strconv.FormatFloat(v, 'f', 1, 64))
	case a >= 0.01:
		return trim(strconv.FormatFloat(v, 'f', 2, 64))
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

// ticks returns about n round values between two values; for bytes they are round in powers of two.
func ticks(low, high float64, n int, unit string) []float64 {
	if high <= low {
		return []float64{low}
	}
	base, steps := 10.0, []float64{1, 2, 5, 10}
	if unit == "bytes" && high >= 1024 {
		base, steps = 2, []float64{1, 2}
	}
	rough := (high - low) / float64(n)
	size := math.Pow(base, math.Floor(math.Log(rough)/math.Log(base)))
	for _, s := range steps {
		if s*size >= 0.8*rough {
			size *= s
			break
		}
	}
	var out []float64
	for v := math.Ceil(low/size-1e-9) * size; v <= high*(1+1e-9); v += size {
		if math.Abs(v) < size/1e6 {
			v = 0
		}
		out = append(out, v)
	}
	return out
}
