// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// answers distinguishes a device that does not answer from a device that lacks a value: a broken fan, a clock that the
// driver cannot read.
type answers struct {
	before bool // the device has reported a value in this session
	given  int  // values reported in this scrape
	failed []failure
}

// failure is a value that the driver supports and could not read.
type failure struct {
	call string
	ret  nvml.Return
}

var errNoAnswer = errors.New("the driver reports no value for it any more")

func (a *answers) begin() { *a = answers{before: a.before || a.given > 0, failed: a.failed[:0]} }

func (a *answers) add(call string, ret nvml.Return) {
	switch f := (failure{call, ret}); {
	case ret == nvml.SUCCESS:
		a.given++
	case !valueOnly(ret) && !slices.Contains(a.failed, f):
		a.failed = append(a.failed, f)
	}
}

// none reports whether no call of this scrape returned a value, although a call failed or the device reported values
// before. Some devices support no value.
func (a *answers) none() bool { return a.given == 0 && (a.before || len(a.failed) > 0) }

// few reports whether the scrape has no values, or more failures than values.
func (a *answers) few() bool { return a.none() || len(a.failed) > a.given }

// refused returns the failures, or nil.
func (a *answers) refused() error {
	if len(a.failed) == 0 && a.none() {
		return errNoAnswer
	}
	var err error
	for _, f := range a.failed {
		if next := fmt.Errorf("%s: %w", f.call, f.ret); err == nil {
			err = next
		} else {
			err = fmt.Errorf("%w; %w", err, next)
		}
	}
	return err
}

// caller makes the calls for a device, and records what their results mean for the device and for the library.
type caller struct {
	*worker
	notify  func(why error) // wakes the keeper; a non-nil why makes it reopen the library
	health  health
	answers answers
}

// noted records the result of a call for a value, and reports whether it succeeded.
func (c *caller) noted(call string, ret nvml.Return) bool {
	c.answers.add(call, ret)
	return c.means(call, ret) == nil
}

// means records what the result of a call means, and returns the failure.
func (c *caller) means(call string, ret nvml.Return) error {
	c.returned()
	if ret == nvml.SUCCESS {
		return nil
	}
	err := fmt.Errorf("%s: %w", call, ret)
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		c.health.lost = true
	case nvml.ERROR_RESET_REQUIRED:
		c.health.reset = true
	case nvml.ERROR_CORRUPTED_INFOROM:
		c.health.inforom = true
	case nvml.ERROR_UNINITIALIZED, nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		c.notify(err)
	}
	return err
}

// valueOnly reports whether a failure concerns one value and not the device.
func valueOnly(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND, nvml.ERROR_NO_PERMISSION, nvml.ERROR_FUNCTION_NOT_FOUND,
		nvml.ERROR_INVALID_ARGUMENT:
		return true
	}
	return false
}
