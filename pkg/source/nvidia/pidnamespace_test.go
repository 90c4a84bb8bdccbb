// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/child"
)

// unshared runs the current test in other namespaces, with the options of unshare. It returns true there.
func unshared(t *testing.T, options ...string) bool {
	t.Helper()
	const inside = "ACCELSCOPE_UNSHARED"
	if os.Getenv(inside) == t.Name() {
		return true
	}
	args := append(options, "--fork", "--kill-child", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd := child.Command(t.Context(), "unshare", args...)
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("in other namespaces: %v\n%s", err, out)
	}
	return false
}

// TestOtherProcessNamespace lists the processes of a GPU in a process namespace of its own. The fake library lists all, the
// real one only those of the namespace: an empty list would mean that the GPU is idle.
func TestOtherProcessNamespace(t *testing.T) {
	list := func() ([]model.GPUProcess, []model.Figure, error) {
		d := lists([]nvml.ProcessInfo{whole(30, 1000)}, nil, nil, nil)
		return newSampler(mocked(nil), "").list(d, "GPU-1", nil, time.Now())
	}
	if unshared(t, "--pid") {
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
