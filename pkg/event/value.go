// SPDX-License-Identifier: Apache-2.0

package event

import (
	"go.opentelemetry.io/otel/attribute"
	otlpcommon "go.opentelemetry.io/proto/otlp/common/v1"
)

// keyValues returns attributes as OTLP has them, with texts of at most maxValue characters. Invalid UTF-8 would fail the whole
// batch.
func keyValues(attrs []attribute.KeyValue) []*otlpcommon.KeyValue {
	all := make([]*otlpcommon.KeyValue, len(attrs))
	for i, a := range attrs {
		all[i] = &otlpcommon.KeyValue{Key: string(a.Key), Value: valueOf(a.Value)}
	}
	return all
}

// valueOf converts the types that attributes of events have.
func valueOf(v attribute.Value) *otlpcommon.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &otlpcommon.AnyValue{Value: &otlpcommon.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &otlpcommon.AnyValue{Value: &otlpcommon.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &otlpcommon.AnyValue{Value: &otlpcommon.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	case attribute.STRINGSLICE:
		list := &otlpcommon.ArrayValue{}
		for _, s := range v.AsStringSlice() {
			list.Values = append(list.Values, textValue(first(valid(s), maxValue)))
		}
		return &otlpcommon.AnyValue{Value: &otlpcommon.AnyValue_ArrayValue{ArrayValue: list}}
	}
	return textValue(first(valid(v.AsString()), maxValue))
}

func textValue(s string) *otlpcommon.AnyValue {
	return &otlpcommon.AnyValue{Value: &otlpcommon.AnyValue_StringValue{StringValue: s}}
}

// first returns the first characters of a text.
func first(s string, characters int) string {
	n := 0
	for i := range s {
		if n == characters {
			return s[:i]
		}
		n++
	}
	return s
}
