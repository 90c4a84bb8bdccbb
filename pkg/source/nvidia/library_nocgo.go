// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package nvidia

import (
	"context"
	"fmt"

	"github.com/accelscope/accelscope/pkg/model"
)

// Source cannot be made without cgo.
type Source struct{}

// New returns an error that wraps model.ErrUnsupported: NVML is a C library.
func New(Options) (*Source, error) {
	return nil, fmt.Errorf("built without cgo, which NVML needs (CGO_ENABLED=1): %w", model.ErrUnsupported)
}

// Name returns "nvidia".
func (s *Source) Name() string { return "nvidia" }

// Read returns an error that wraps model.ErrUnsupported.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	return model.Snapshot{}, model.ErrUnsupported
}

// Close does nothing.
func (s *Source) Close() error { return nil }
