// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"io"
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// dialect is a text format. Prometheus prefers OpenMetrics.
type dialect int

const (
	plainText   dialect = iota // version 0.0.4
	openMetrics                // versions 0.0.1 and 1.0.0
)

// text writes the text formats, equal to expfmt's byte for byte. Encoding is most of the cost of a scrape: here labels
// are prepared text, and only the value is formatted.
type text struct {
	dialect
	forms  Forms
	buffer []byte // kept for the next part
}

// place is a row of a page, the first row of a family with its header before it. Every family has a row. The end of a page
// is after its last family.
type place struct{ family, row int }

// flushSize bounds the buffer: a busy node has many megabytes of text. gzip compresses independent blocks of at most
// 32,767 bytes: a buffer with one more series is one block.
const flushSize = 24 << 10

func (t *text) write(out io.Writer, families []Family) error {
	for at, end := (place{}), (place{len(families), 0}); at != end; {
		at = t.part(families, at, end, flushSize)
		if _, err := out.Write(t.buffer); err != nil {
			return err
		}
	}
	_, err := out.Write(t.end())
	return err
}

// part puts the rows between two places into the buffer, until it is larger than limit. It returns the place after them.
func (t *text) part(families []Family, at, to place, limit int) place {
	b := t.buffer[:0]
	for at != to && len(b) < limit {
		f := &families[at.family]
		if at.row == 0 {
			b = t.header(b, f)
		}
		b = t.row(b, f, at.row, t.forms)
		if at.row++; at.row == len(f.rows) {
			at = place{at.family + 1, 0}
		}
	}
	t.buffer = b
	return at
}

// end returns the last line of a page.
func (d dialect) end() []byte {
	if d == openMetrics {
		return []byte("# EOF\n")
	}
	return nil
}

func (d dialect) header(b []byte, f *Family) []byte {
	name := *f.name
	if d == openMetrics && f.typ == counter {
		name = strings.TrimSuffix(name, "_total")
	}
	b = append(append(append(b, "# HELP "...), name...), ' ')
	b = append(appendEscaped(b, *f.help, d == openMetrics), "\n# TYPE "...)
	b = append(append(append(b, name...), ' '), d.typeName(f)...)
	return append(b, '\n')
}

func (d dialect) row(b []byte, f *Family, i int, forms Forms) []byte {
	r := &f.rows[i]
	name := *f.name
	if f.typ == histogram {
		b = d.histogram(b, name, r.labels.text, f.histograms[i], forms)
	} else {
		name = strings.TrimSuffix(name, "_total")
		b = append(d.number(appendSeries(b, *f.name, "", r.labels.text, ""), r.value), '\n')
	}
	if d == openMetrics && forms.CreatedLines && r.since != 0 && (f.typ == counter || f.typ == histogram) {
		b = appendSeries(b, name, "_created", r.labels.text, "")
		b = append(d.number(b, float64(r.since*1e6)/1e9), '\n')
	}
	return b
}

func (d dialect) typeName(f *Family) string {
	switch {
	case f.typ == histogram:
		return "histogram"
	case f.typ == gauge:
		return "gauge"
	case f.typ == counter && (d == plainText || strings.HasSuffix(*f.name, "_total")):
		return "counter"
	case d == plainText:
		return "untyped"
	}
	return "unknown"
}

// histogram appends the classic buckets. Only protobuf has native buckets.
func (d dialect) histogram(b []byte, name, labels string, h durations, forms Forms) []byte {
	s, seconds, buckets := h.in()
	sum, next := uint64(0), 0
	for i := range s.classic(forms) {
		next, sum = s.upTo(i, next, sum, buckets)
		b = append(d.count(appendSeries(b, name, "_bucket", labels, s.le[d][i]), sum), '\n')
	}
	for _, n := range buckets[next:] {
		sum += n
	}
	b = append(d.count(appendSeries(b, name, "_bucket", labels, s.le[d][len(s.bounds)]), sum), '\n')
	b = append(d.number(appendSeries(b, name, "_sum", labels, ""), seconds), '\n')
	return append(d.count(appendSeries(b, name, "_count", labels, ""), sum), '\n')
}

// appendSeries appends a name, its labels, label if not empty, and a space.
func appendSeries(b []byte, name, suffix, labels, label string) []byte {
	b = append(append(b, name...), suffix...)
	if labels != "" || label != "" {
		b = append(append(b, '{'), labels...)
		if labels != "" && label != "" {
			b = append(b, ',')
		}
		b = append(append(b, label...), '}')
	}
	return append(b, ' ')
}

// number appends a value. OpenMetrics requires a decimal point or an exponent in floats.
func (d dialect) number(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return append(b, "NaN"...)
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	case math.IsInf(v, -1):
		return append(b, "-Inf"...)
	}
	start := len(b)
	// Values that %g writes without an exponent. Negative zero becomes zero.
	if n := int64(v); float64(n) == v && -1e6 < v && v < 1e6 {
		b = strconv.AppendInt(b, n, 10)
	} else {
		b = strconv.AppendFloat(b, v, 'g', -1, 64)
	}
	if d == openMetrics && !bytes.ContainsAny(b[start:], "e.") {
		b = append(b, ".0"...)
	}
	return b
}

// count appends a number of events, in OpenMetrics an integer.
func (d dialect) count(b []byte, n uint64) []byte {
	if d == openMetrics {
		return strconv.AppendUint(b, n, 10)
	}
	return d.number(b, float64(n))
}

// appendLabels appends labels as they stand in braces.
func appendLabels(b []byte, pairs []*dto.LabelPair) []byte {
	for i, p := range pairs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(b, p.GetName()...), `="`...)
		b = append(appendEscaped(b, p.GetValue(), true), '"')
	}
	return b
}

func appendEscaped(b []byte, s string, quotes bool) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case c == '\\':
			b = append(b, `\\`...)
		case c == '\n':
			b = append(b, `\n`...)
		case c == '"' && quotes:
			b = append(b, `\"`...)
		default:
			b = append(b, c)
		}
	}
	return b
}
