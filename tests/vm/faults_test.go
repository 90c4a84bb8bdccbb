// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"os"
	"path/filepath"
	"testing"
)

// Messages that kernels of emulated guests printed for faults of the emulator, and for faults of their own.
func TestFaultMessages(t *testing.T) {
	const rip = "[    1.0] RIP: 0010:syscall_trace_enter+0xd8/0x1a0\n"
	for _, tt := range []struct {
		name, log string
		emulator  bool
	}{
		{"a no-operation", "[    1.0] Oops: 0000 [#1]\n" + rip + "[    1.0] Code: 8b 45 00 <0f> 1f 44 00 00 e9 7c\n", true},
		{"a breakpoint that is gone", "[    1.0] Oops: int3: 0000 [#1] PREEMPT\n" + rip + "[    1.0] Code: ff eb <56> e9 58\n", true},
		{"a breakpoint", "[    1.0] Oops: int3: 0000 [#1] PREEMPT\n" + rip + "[    1.0] Code: ff cc <56> e9 58\n", false},
		{"a null pointer", "[    1.0] Oops: Oops: 0000 [#1]\n" + rip + "[    1.0] Code: 8b 79 c0 <48> 89 7f 08\n", false},
	} {
		path := filepath.Join(t.TempDir(), "kernel.log")
		if err := os.WriteFile(path, []byte(tt.log), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := (&Result{KernelLog: path}).faulted(); got != tt.emulator {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
