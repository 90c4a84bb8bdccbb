// SPDX-License-Identifier: Apache-2.0

package model

import "errors"

var (
	// ErrLibrary reports that the library of a GPU driver cannot be loaded.
	ErrLibrary = errors.New("library of the GPU driver")
	// ErrLibraryInit reports that the library of a GPU driver was loaded, and that its
	// initialization failed.
	ErrLibraryInit = errors.New("initialization of the library of the GPU driver")
)

// WithReason returns an error with the text of err that also matches reason (errors.Is). It
// serves errors that lose their cause (a gRPC status, the text of a hook), and texts that
// explain the reason already.
func WithReason(err, reason error) error {
	if err == nil || reason == nil {
		return err
	}
	return reasoned{err, reason}
}

type reasoned struct {
	error
	reason error
}

func (r reasoned) Unwrap() []error { return []error{r.error, r.reason} }
