// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"slices"

	"go.uber.org/zap/zapcore"

	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// forwarder is a zapcore.Core that sends entries to the sensor.
type forwarder struct {
	zapcore.LevelEnabler
	send   func(wire.Message) error
	fields []zapcore.Field
}

// With returns a core with more fields.
func (f *forwarder) With(fields []zapcore.Field) zapcore.Core {
	return &forwarder{f.LevelEnabler, f.send, append(slices.Clip(f.fields), fields...)}
}

// Check adds the core to an entry that is to be logged.
func (f *forwarder) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if f.Enabled(e.Level) {
		return checked.AddCore(e, f)
	}
	return checked
}

// Write sends an entry.
func (f *forwarder) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	for _, field := range append(slices.Clip(f.fields), fields...) {
		field.AddTo(values)
	}
	return f.send(wire.Message{Log: &wire.LogEntry{Level: e.Level, Text: e.Message, Fields: values.Fields}})
}

// Sync implements zapcore.Core.
func (f *forwarder) Sync() error { return nil }
