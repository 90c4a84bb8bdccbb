// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Source cannot be created without cgo.
type Source struct{}

// New returns an error: without cgo NVML, a C library, cannot be used. It wraps
// model.ErrUnsupported, or model.ErrAbsent if there is no NVIDIA driver.
func New(o Options) (*Source, error) {
	if _, err := os.Stat(filepath.Join(o.Procfs, "driver/nvidia/version")); err != nil && o.Library == "" {
		return nil, fmt.Errorf("no NVIDIA driver is loaded: %w", model.ErrAbsent)
	}
	return nil, fmt.Errorf("built without cgo, which NVML needs (CGO_ENABLED=1): %w", model.ErrUnsupported)
}

// Name returns "nvidia".
func (s *Source) Name() string { return "nvidia" }

// Read returns an error that wraps model.ErrUnsupported.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	return model.Snapshot{}, model.ErrUnsupported
}

// Release does nothing.
func (s *Source) Release(string, time.Duration) Status { return s.Status() }

// Hold does nothing.
func (s *Source) Hold(string, time.Duration) Status { return s.Status() }

// EndHold does nothing.
func (s *Source) EndHold(string) {}

// Resume does nothing.
func (s *Source) Resume() Status { return s.Status() }

// Status returns that the library is not open.
func (s *Source) Status() Status {
	return Status{State: model.StateUnsupported, Reason: model.ErrUnsupported.Error()}
}

// Close returns nil.
func (s *Source) Close() error { return nil }
