// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/format"
)

// maxFigures is the number of metrics that a detail view lists.
const maxFigures = 500

// figure is one series of the metrics.
type figure struct {
	Name, Labels, Value string
	PromQL              string
}

// figuresOf returns the series of an exposition in the text format that have one of the label pairs, without the buckets of
// histograms. It skips lines that it does not understand.
func figuresOf(text []byte, pairs ...pair) []figure {
	var out []figure
	for line := range bytes.Lines(text) {
		name, labels, value, ok := split(strings.TrimSuffix(string(line), "\n"))
		if !ok || strings.HasSuffix(name, "_bucket") || !slices.ContainsFunc(pairs, func(p pair) bool { return p.in(labels) }) {
			continue
		}
		if len(out) == maxFigures {
			break
		}
		// The identity of a workload has the same text in all its series.
		out = append(out, figure{format.Escape(name), format.Escape(withoutEmpty(labels)), valueOf(name, value), promQL(name, labels)})
	}
	slices.SortStableFunc(out, func(a, b figure) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// pair is a label with its value.
type pair struct{ name, value string }

// in reports whether the label pair is among labels in the text format.
func (p pair) in(labels string) bool {
	text := p.name + "=" + quote(p.value)
	for rest := labels; ; {
		i := strings.Index(rest, text)
		if i < 0 {
			return false
		}
		// Within a value of another label the quote would be escaped.
		if before := rest[:i]; before == "" || strings.HasSuffix(before, ",") {
			if after := rest[i+len(text):]; after == "" || after[0] == ',' {
				return true
			}
		}
		rest = rest[i+1:]
	}
}

// quote formats the value of a label as the text format does.
func quote(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(value) + `"`
}

// split splits a line of the text format into name, labels and value.
func split(line string) (name, labels string, value float64, ok bool) {
	if strings.HasPrefix(line, "#") {
		return "", "", 0, false
	}
	name, rest, found := strings.Cut(line, "{")
	if !found {
		return "", "", 0, false
	}
	i := strings.LastIndex(rest, "} ")
	if i < 0 {
		return "", "", 0, false
	}
	text, _, _ := strings.Cut(rest[i+2:], " ") // without the timestamp
	value, err := strconv.ParseFloat(text, 64)
	return name, rest[:i], value, err == nil
}

// withoutEmpty removes the labels without a value.
func withoutEmpty(labels string) string {
	for _, name := range []string{"workload", "namespace", "pod", "container", "container_id"} {
		labels = strings.TrimPrefix(strings.ReplaceAll(","+labels, ","+name+`=""`, ""), ",")
	}
	return labels
}

// promQL returns the query of a series: the rate of a counter.
func promQL(name, labels string) string {
	selector := name + "{" + labels + "}"
	for _, suffix := range []string{"_total", "_count", "_sum"} {
		if strings.HasSuffix(name, suffix) {
			return "rate(" + selector + "[5m])"
		}
	}
	return selector
}

// valueOf formats a value by the unit in the name of its metric.
func valueOf(name string, v float64) string {
	base := strings.TrimSuffix(name, "_total")
	switch {
	case strings.HasSuffix(base, "_bytes"):
		return format.Size(v)
	case strings.HasSuffix(base, "_seconds"), strings.HasSuffix(base, "_seconds_sum"):
		return format.Duration(v)
	case strings.HasSuffix(base, "_ratio"):
		return format.Percent(v)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
