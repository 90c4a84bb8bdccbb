// SPDX-License-Identifier: Apache-2.0

package safely

import (
	"errors"
	"os"
	"testing"
)

// TestInNetwork: the error of f is returned, a panic of f is an error, and f does not run without a namespace.
func TestInNetwork(t *testing.T) {
	own, err := os.Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	failed := errors.New("failed")
	for want, f := range map[error]func() error{
		nil: func() error { return nil }, failed: func() error { return failed }, ErrPanicked: func() error { panic("x") },
	} {
		if err := InNetwork("test in network", int(own.Fd()), f); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	ran := false
	if err := InNetwork("test in network", -1, func() error { ran = true; return nil }); err == nil || ran {
		t.Errorf("f ran without a namespace: %v, error %v", ran, err)
	}
}
