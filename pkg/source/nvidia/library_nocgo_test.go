// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package nvidia

import (
	"errors"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestWithoutCgo(t *testing.T) {
	if _, err := New(Options{}); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
}
