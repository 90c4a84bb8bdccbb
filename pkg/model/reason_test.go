// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"
)

func TestWithReason(t *testing.T) {
	cause := errors.New("cause")
	err := fmt.Errorf("source: %w", WithReason(fmt.Errorf("hook: %w", cause), unix.EPERM))
	if err.Error() != "source: hook: cause" {
		t.Errorf("text %q", err)
	}
	if !errors.Is(err, cause) || !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrAbsent) {
		t.Errorf("%v does not match exactly the cause and the reason", err)
	}
	if WithReason(nil, unix.EPERM) != nil {
		t.Error("a reason without an error is an error")
	}
	if got := WithReason(cause, nil); !errors.Is(got, cause) || errors.Is(got, fs.ErrPermission) {
		t.Errorf("without a reason: %v", got)
	}
}
