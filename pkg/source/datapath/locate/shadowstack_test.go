// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// The ends of /proc/PID/status of three kernels: without CONFIG_X86_USER_SHADOW_STACK (recorded on 6.18), with it
// (recorded on Debian's 6.12), and with a shadow stack, which no machine of ours has (as in the kernel's
// Documentation/arch/x86/shstk.rst).
func TestCheckShadowStack(t *testing.T) {
	const counts = "voluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t0\n"
	for status, want := range map[string]bool{
		counts: true,
		counts + "x86_Thread_features:\t\nx86_Thread_features_locked:\t\n":                       false,
		counts + "x86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss \n":            false,
		counts + "x86_Thread_features:\tshstk \nx86_Thread_features_locked:\tshstk wrss \n":      true,
		counts + "x86_Thread_features:\tshstk wrss \nx86_Thread_features_locked:\tshstk wrss \n": true,
		"Name:\tx86_Thread_features:\n" + counts + "x86_Thread_features:\tshstk \n":              true,
		"": true,
	} {
		// The process is this one; its status is recorded.
		procfs := t.TempDir()
		p, err := OpenProcess(procfs, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		if err := p.CheckShadowStack(); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without a status: %v", err)
		}
		dir := filepath.Join(procfs, strconv.Itoa(os.Getpid()))
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o600)); err != nil {
			t.Fatal(err)
		}
		err = p.CheckShadowStack()
		if errors.Is(err, ErrShadowStack) != want || want != errors.Is(err, model.ErrUnsupported) || !want && err != nil {
			t.Errorf("%q: %v, want a shadow stack: %v", status, err, want)
		}
	}
}
