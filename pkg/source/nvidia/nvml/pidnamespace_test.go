// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// TestOtherProcessNamespace lists the processes of a GPU in another PID namespace. The fake library lists all
// processes, the real library only the processes of the namespace: an empty list would mean that the GPU is idle.
func TestOtherProcessNamespace(t *testing.T) {
	list := func() ([]model.GPUProcess, []model.Figure, error) {
		d := lists([]nvml.ProcessInfo{whole(30, 1000)}, nil, nil, nil)
		return newSampler(mocked(nil), "").list(d, "GPU-1", nil, time.Now())
	}
	if nvmltest.Unshared(t, "--pid") {
		if got, _, err := list(); got != nil || err != nil {
			t.Errorf("%v %v, want nil", got, err)
		}
		if err := wire.ProcessesListed(""); !errors.Is(err, model.ErrUnsupported) {
			t.Errorf("reason %v", err)
		}
		return
	}
	if got, _, err := list(); len(got) != 1 || err != nil || wire.ProcessesListed("") != nil {
		t.Errorf("in the namespace of the node: %v %v %v", got, err, wire.ProcessesListed(""))
	}
}
