// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// ErrShadowStack is why a process is not probed on a kernel on which return probes kill
// processes with a shadow stack.
var ErrShadowStack = fmt.Errorf("%w: return probes on this kernel kill processes with a shadow stack", model.ErrUnsupported)

// CheckShadowStack returns ErrShadowStack if the process has a shadow stack, or may have
// one. The C library enables it in the first thread, before it starts others.
func (p *Process) CheckShadowStack() error {
	status, err := os.ReadFile(p.path("status"))
	if gone := p.checkAlive(); gone != nil {
		return gone
	}
	if err != nil {
		return p.classify(err, 0, 0)
	}
	if hasShadowStack(string(status)) {
		return fmt.Errorf("process %d: %w", p.pid, ErrShadowStack)
	}
	return nil
}

// hasShadowStack parses /proc/PID/status. Its line
//
//	x86_Thread_features:	shstk wrss
//
// lists what the thread has enabled. Kernels that can enable a shadow stack write the line
// for each thread: without it, the thread may have one.
func hasShadowStack(status string) bool {
	for line := range strings.Lines(status) {
		if features, ok := strings.CutPrefix(line, "x86_Thread_features:"); ok {
			return slices.Contains(strings.Fields(features), "shstk")
		}
	}
	return true
}
