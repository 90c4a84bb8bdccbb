// SPDX-License-Identifier: Apache-2.0

package program

import (
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// NewLogger returns a logger that writes to w. The parser of flags has checked
// level and format. If w is the journal, a line of the console format has the
// journal's priority and no time, as the journal adds it.
func NewLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	lvl, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, err
	}
	cfg := zap.NewProductionEncoderConfig()
	cfg.EncodeTime = zapcore.ISO8601TimeEncoder
	var enc zapcore.Encoder
	switch {
	case format == "json":
		enc = zapcore.NewJSONEncoder(cfg)
	case onJournal(w):
		cfg.TimeKey, cfg.EncodeLevel = zapcore.OmitKey, journalLevel
		fallthrough
	default:
		enc = zapcore.NewConsoleEncoder(cfg)
	}
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), lvl)), nil
}
