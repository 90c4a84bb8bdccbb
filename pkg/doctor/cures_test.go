// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/kernellog"
)

// TestKernelLogCure: doctor explains what reading the kernel log, and finding the owners of faults, needs.
func TestKernelLogCure(t *testing.T) {
	for want, err := range map[string]error{
		"CAP_SYSLOG": errors.Join(os.ErrPermission, model.ErrUnsupported), "hostPID": errors.Join(nil, kernellog.ErrForeignPIDs),
	} {
		if got := sourceCure(model.SourceState{Source: "kernellog", State: model.StateUnsupported, Err: err}); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %s", err, got, want)
		}
	}
}

func TestLinkCure(t *testing.T) {
	for state, want := range map[model.State]string{
		model.StateUnsupported: "hostNetwork", model.StateStuck: "dmesg", model.StateQuarantined: "dmesg", model.StateBlocked: "", model.StateFailed: "",
	} {
		got := deviceCure(model.DeviceState{Source: "link", Device: "eth0", State: state})
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q", state, got)
		}
	}
}
