// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"bufio"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"
)

// Record is a log record, parsed from the output of the debug exporter. Values have no type: Str(a) is a, Int(1) is 1,
// Slice(["a"]) is ["a"].
type Record struct {
	Resource   map[string]string
	Scope      string // name and version
	Event      string
	Body       string
	Severity   string // Info, Warn
	Time       time.Time
	Observed   time.Time
	Attributes map[string]string
}

// Int returns a numeric attribute; 0 if it is absent.
func (r Record) Int(name string) int64 {
	n, _ := strconv.ParseInt(r.Attributes[name], 10, 64)
	return n
}

// Parse parses the detailed output of the debug exporter, without a record that is cut off because the Collector was
// killed.
func Parse(in io.Reader) ([]Record, error) {
	var all []Record
	var p parser
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if p.line(lines.Text()) {
			all = append(all, p.record)
		}
	}
	return all, lines.Err()
}

type parser struct {
	resource map[string]string
	scope    string
	record   Record
	target   map[string]string // the map for the attributes of the next lines
}

// line parses a line and reports whether the record is complete.
func (p *parser) line(line string) bool {
	if attr, ok := strings.CutPrefix(line, "     -> "); ok {
		if key, value, ok := strings.Cut(attr, ": "); ok && p.target != nil {
			p.target[key] = untyped(value)
		}
		return false
	}
	name, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch {
	case strings.HasPrefix(line, "ResourceLog #"):
		p.resource, p.scope = map[string]string{}, ""
	case strings.HasPrefix(line, "InstrumentationScope "):
		p.scope, p.target = strings.TrimPrefix(line, "InstrumentationScope "), nil
	case strings.HasPrefix(line, "LogRecord #"):
		p.record = Record{Resource: maps.Clone(p.resource), Scope: p.scope, Attributes: map[string]string{}}
		p.target = nil
	}
	switch name {
	case "Resource attributes":
		p.target = p.resource
	case "Attributes":
		p.target = p.record.Attributes
	case "ObservedTimestamp":
		p.record.Observed = when(value)
	case "Timestamp":
		p.record.Time = when(value)
	case "SeverityNumber":
		p.record.Severity, _, _ = strings.Cut(value, "(")
	case "EventName":
		p.record.Event = value
	case "Body":
		p.record.Body = untyped(value)
	case "Flags":
		p.target = nil
		return p.record.Attributes != nil
	}
	return false
}

func untyped(value string) string {
	_, rest, ok := strings.Cut(value, "(")
	if !ok {
		return value
	}
	return strings.TrimSuffix(rest, ")")
}

func when(value string) time.Time {
	t, _ := time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", value)
	return t
}
