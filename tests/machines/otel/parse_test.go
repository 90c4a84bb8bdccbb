// SPDX-License-Identifier: Apache-2.0

package otel

import (
	"strings"
	"testing"
	"time"
)

// Output of a Collector of v0.120.0. The second record is cut off because the Collector was killed.
const printed = `Logs	{"resource logs": 1, "log records": 2}
ResourceLog #0
Resource SchemaURL: https://opentelemetry.io/schemas/1.43.0
Resource attributes:
     -> host.ip: Slice(["10.0.0.1"])
     -> service.instance.id: Str(s-1)
ScopeLogs #0
ScopeLogs SchemaURL: 
InstrumentationScope github.com/accelscope/accelscope/pkg/event 1.2.3
LogRecord #0
ObservedTimestamp: 2026-11-21 13:05:50.123456789 +0000 UTC
Timestamp: 2026-11-21 13:05:50 +0000 UTC
SeverityText: WARN
SeverityNumber: Warn(13)
EventName: container.exit
Body: Str(container a: b exited with code 1)
Attributes:
     -> accelscope.event.sequence: Int(7)
     -> container.id: Str(a(b))
Trace ID: 
Span ID: 
Flags: 0
LogRecord #1
ObservedTimestamp: 2026-11-21 13:05:50.123456789 +0000 UTC
EventName: container.delete
Attributes:
     -> accelscope.event.sequence: In`

func TestParse(t *testing.T) {
	all, err := Parse(strings.NewReader(printed))
	if err != nil || len(all) != 1 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	r := all[0]
	if r.Event != "container.exit" || r.Body != "container a: b exited with code 1" || r.Severity != "Warn" ||
		r.Attributes["container.id"] != "a(b)" || r.Int("accelscope.event.sequence") != 7 ||
		r.Resource["service.instance.id"] != "s-1" || r.Resource["host.ip"] != `["10.0.0.1"]` ||
		!strings.HasSuffix(r.Scope, "pkg/event 1.2.3") ||
		!r.Observed.Equal(time.Date(2026, 11, 21, 13, 5, 50, 123456789, time.UTC)) || r.Time.Nanosecond() != 0 {
		t.Errorf("%+v", r)
	}
}

func record(event string, attrs ...string) Record {
	r := Record{Event: event, Attributes: map[string]string{}, Resource: map[string]string{"service.instance.id": "s"}}
	for i := 0; i < len(attrs); i += 2 {
		r.Attributes[attrs[i]] = attrs[i+1]
	}
	return r
}

// TestReplay shows which records a receiver of docs/rest.md accepts and rejects.
func TestReplay(t *testing.T) {
	const seq, id, count, lost = "accelscope.event.sequence", "container.id", "accelscope.snapshot.count", "accelscope.snapshot.lost"
	v := Replay([]Record{
		record("container.snapshot.begin", seq, "1", count, "1"),
		record("container.snapshot", seq, "2", id, "a"),
		record("container.snapshot.end", seq, "3", count, "1"),
		record("container.create", seq, "4", id, "b"),
		record("container.exit", seq, "5", id, "b", "accelscope.event.resent", "true"),
		record("container.exit", seq, "5", id, "b"),
		record("container.snapshot.begin", seq, "8", count, "2", lost, "2"), // which is incomplete
		record("container.snapshot", seq, "9", id, "b"),
		record("container.snapshot.end", seq, "11", count, "2"),
	})
	if len(v.Wrong) > 0 || len(v.Containers) != 2 || len(v.Exits["b"]) != 1 || v.Duplicates != 1 ||
		v.Missing != 3 || v.Lost != 2 || v.Snapshots != 1 {
		t.Errorf("%+v", v)
	}
	v.apply(record("container.exit", seq, "4", id, "b"))
	v.apply(record("container.delete", seq, "12", id, "b"))
	if len(v.Wrong) != 1 || len(v.Containers) != 1 {
		t.Errorf("%v, %d containers", v.Wrong, len(v.Containers))
	}
}
