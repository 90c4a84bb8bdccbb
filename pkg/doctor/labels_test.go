// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/unload"
)

// TestNodeLabels: doctor reports why the labels of the node cannot be watched.
func TestNodeLabels(t *testing.T) {
	var r Report
	r.AddNodeLabels(t.Context(), nil)
	r.AddNodeLabels(t.Context(), &unload.Node{Name: "gpu01", Server: "https://127.0.0.1:1", TokenFile: "/nowhere", CAFile: "/nowhere"})
	if len(r.Checks) != 2 || r.Checks[0].State != model.StateUnsupported || !strings.Contains(r.Checks[0].Reason, "outside a pod") ||
		r.Checks[1].State != model.StateFailed || !strings.Contains(r.Checks[1].Cure, "gpu-release") {
		t.Errorf("%+v", r.Checks)
	}
}
