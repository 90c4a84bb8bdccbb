// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// TestNothingSupported: a GPU whose driver supports no value has not failed.
func TestNothingSupported(t *testing.T) {
	a := answers{}
	for range 2 {
		a.begin()
		a.add("nvmlDeviceGetPowerUsage", nvml.ERROR_NOT_SUPPORTED)
		if a.few() || a.none() || a.refused() != nil {
			t.Errorf("%+v", a)
		}
	}
	a.begin()
	for range 4 {
		a.add("nvmlDeviceGetClockInfo", nvml.ERROR_UNKNOWN)
	}
	a.add("nvmlDeviceGetPowerUsage", nvml.SUCCESS)
	if a.few() || a.refused() == nil {
		t.Errorf("as many values as failures: %+v", a)
	}
	if a.add("nvmlDeviceGetFanSpeed", nvml.ERROR_UNKNOWN); !a.few() || a.none() {
		t.Errorf("most values fail: %+v", a)
	}
	if a.begin(); !a.none() || a.refused() == nil {
		t.Errorf("it has answered before: %+v", a)
	}
}

// TestTimeOfTheCall: in a step with several calls, the time of the call in progress counts.
func TestTimeOfTheCall(t *testing.T) {
	d := &caller{worker: newWorker(0, 0)}
	if d.returned(); !d.began.IsZero() {
		t.Error("a call outside of a step is in progress")
	}
	d.step(func() {
		first, _ := d.inStep()
		time.Sleep(time.Millisecond)
		d.noted("a call", nvml.SUCCESS)
		if second, in := d.inStep(); !in || second.Sub(first) < time.Millisecond {
			t.Errorf("the second call began at %v, the first one at %v", second, first)
		}
	})
}
