// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

func stateOf(err error) model.State {
	switch {
	case err == nil:
		return model.StateOK
	case errors.Is(err, ErrStuck):
		return model.StateStuck
	case panicked(err): // joined with any other error
		return model.StateFailed
	case errors.Is(err, model.ErrAbsent):
		return model.StateAbsent
	case errors.Is(err, model.ErrUnsupported):
		return model.StateUnsupported
	case errors.Is(err, model.ErrReleased):
		return model.StateReleased
	}
	return model.StateFailed
}

func panicked(err error) bool {
	_, ok := errors.AsType[*safely.PanicError](err)
	return ok
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// stateLogger logs each change of a state.
type stateLogger struct {
	log  *zap.Logger
	last map[stateKey]model.State
}

type stateKey struct{ source, device string }

// update logs the states that differ from the last update. A device that is no longer listed is dropped without a log
// line.
func (l *stateLogger) update(sources []model.SourceState, devices []model.DeviceState) {
	now := make(map[stateKey]model.State, len(sources)+len(devices))
	for _, s := range sources {
		l.one(now, stateKey{source: s.Source}, s.State, s.Reason)
	}
	for _, d := range devices {
		l.one(now, stateKey{d.Source, d.Device}, d.State, d.Reason)
	}
	l.last = now
}

func (l *stateLogger) one(now map[stateKey]model.State, key stateKey, state model.State, reason string) {
	now[key] = state
	last, known := l.last[key]
	if last == state || !known && state == model.StateOK && key.device != "" && reason == "" {
		return
	}
	fields := []zap.Field{zap.String("source", key.source), zap.String("state", string(state))}
	if key.device != "" {
		fields = append(fields, zap.String("device", key.device))
	}
	if reason != "" {
		fields = append(fields, zap.String("reason", reason))
	}
	switch state {
	case model.StateOK, model.StateAbsent, model.StateUnsupported, model.StateReleased:
		l.log.Info("state", fields...)
	default:
		l.log.Warn("state", fields...)
	}
}
