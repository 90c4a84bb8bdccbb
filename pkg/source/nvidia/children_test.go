// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bytes"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// TestOutputLog: of what a child prints, the first lines are logged; a long line is several.
func TestOutputLog(t *testing.T) {
	var logged bytes.Buffer
	o := outputLog{log: zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(&logged), zap.WarnLevel))}
	_, _ = o.Write([]byte("panic: x\n\ngorou"))
	_, _ = o.Write([]byte("tine 1\n" + strings.Repeat("y", maxLine+1) + "\n"))
	want := ""
	for _, line := range []string{"panic: x", "goroutine 1", strings.Repeat("y", maxLine), "y"} {
		want += `{"line":"` + line + `"}` + "\n"
	}
	if got := logged.String(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for range 2 {
		_, _ = o.Write([]byte(strings.Repeat("z\n", maxLines)))
	}
	if n := strings.Count(logged.String(), "\n"); n != maxLines {
		t.Errorf("%d lines, want %d", n, maxLines)
	}
}
