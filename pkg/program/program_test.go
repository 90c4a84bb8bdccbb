// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

func TestExitStatus(t *testing.T) {
	var stderr bytes.Buffer
	if got := exitStatus(nil, &stderr); got != 0 || stderr.Len() > 0 {
		t.Errorf("no error: %d %q", got, &stderr)
	}
	if got := exitStatus(fmt.Errorf("no: %w", ErrUnknown), &stderr); got != 2 || stderr.Len() > 0 {
		t.Errorf("%d, %q", got, &stderr)
	}
	if got := exitStatus(fmt.Errorf("no: %w", ErrReported), &stderr); got != 1 || stderr.Len() > 0 {
		t.Errorf("doctor says no: %d %q, want 1 and no second message", got, &stderr)
	}
	if got := exitStatus(errors.New("x"), &stderr); got != 1 || stderr.String() != "accelscope: error: x\n" {
		t.Errorf("an error: %d %q", got, &stderr)
	}
}
