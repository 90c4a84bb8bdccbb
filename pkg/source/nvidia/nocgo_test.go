// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package nvidia

import (
	"errors"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

func TestWithoutCgo(t *testing.T) {
	if _, err := New(Options{Options: wire.Options{Library: "x"}}); !errors.Is(err, model.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	if _, err := New(Options{Options: wire.Options{Procfs: t.TempDir()}}); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("of a node without the driver it is %v", err)
	}
}
