// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// SourceState is how a source does.
type SourceState struct {
	Source string
	State  model.State // ok, absent, unsupported, failed or stuck
	Reason string      // why it is not ok
	Err    error       // the error of which Reason is the text
	// Took is how long its last answer took; Age how long ago that was, and
	// negative when there was none yet.
	Took time.Duration
	Age  time.Duration
}

// stateOf is the state that an error means.
func stateOf(err error) model.State {
	switch {
	case err == nil:
		return model.StateOK
	case errors.Is(err, errStuck):
		return model.StateStuck
	case errors.Is(err, model.ErrAbsent):
		return model.StateAbsent
	case errors.Is(err, model.ErrUnsupported):
		return model.StateUnsupported
	}
	return model.StateFailed
}

func reason(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// teller logs a state when it changes, and not each time that it is seen.
type teller struct {
	log  *zap.Logger
	told map[subject]model.State
}

// subject is a source, or a device of it.
type subject struct{ source, device string }

// tell logs the states that differ from those told before. What is not listed
// any more (a device that is gone) is forgotten without a word.
func (t *teller) tell(sources []SourceState, devices []model.DeviceState) {
	told := make(map[subject]model.State, len(sources)+len(devices))
	for _, s := range sources {
		t.one(told, subject{source: s.Source}, s.State, s.Reason)
	}
	for _, d := range devices {
		t.one(told, subject{d.Source, d.Device}, d.State, d.Reason)
	}
	t.told = told
}

func (t *teller) one(told map[subject]model.State, who subject, state model.State, reason string) {
	told[who] = state
	before, known := t.told[who]
	if before == state || !known && state == model.StateOK && who.device != "" {
		return
	}
	fields := []zap.Field{zap.String("source", who.source), zap.String("state", string(state))}
	if who.device != "" {
		fields = append(fields, zap.String("device", who.device))
	}
	if reason != "" {
		fields = append(fields, zap.String("reason", reason))
	}
	switch state {
	case model.StateOK, model.StateAbsent, model.StateUnsupported:
		t.log.Info("state", fields...)
	default:
		t.log.Warn("state", fields...)
	}
}
