// SPDX-License-Identifier: Apache-2.0

package model

import "errors"

var (
	// ErrLibrary says that the library of a GPU driver cannot be loaded.
	ErrLibrary = errors.New("library of the GPU driver")
	// ErrLibraryInit says that the library of a GPU driver was loaded, and its initialization failed.
	ErrLibraryInit = errors.New("initialization of the library of the GPU driver")
)

// WithReason returns an error with the text of err that also matches reason (errors.Is). It serves errors that lost
// their cause (a gRPC status, the text of a hook), and texts that already explain the reason.
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
