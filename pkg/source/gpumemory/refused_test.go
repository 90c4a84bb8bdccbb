// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"cmp"
	"testing"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// TestRefusedParts: all functions have the same programs.
func TestRefusedParts(t *testing.T) {
	libraries.RefusedParts(t, (&Options{}).spec(), func(spec hook.Spec) error {
		k, err := newKernel(spec)
		if err != nil {
			return err
		}
		defer k.close()
		var refused error
		err = k.object.Load(spec, func() { refused = k.load(0) })
		return hook.Unsupported(cmp.Or(err, refused))
	})
}
