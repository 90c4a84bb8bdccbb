// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"testing"

	"github.com/accelscope/accelscope/pkg/hook"
)

// On kernels that give programs a stack of the CPU (6.13), none of those that a
// uprobe runs may have one, and that we would notice.
func TestStackOfThread(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	types, err := hook.LoadTypes()
	if err != nil {
		t.Fatal(err)
	}
	k, err := load(types, Options{}, userPrograms())
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	for name, program := range k.programs {
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		code, ok := info.JitedInsns()
		if !ok || len(code) == 0 {
			t.Fatalf("%s: the kernel does not show its compiled code", name)
		}
		if stackOfCPU(code) {
			t.Errorf("%s has a stack of the CPU", name)
		}
	}

	// The beginning of a program that has: poll_cq_return on 6.18 without its tail call.
	code := []byte("\x0f\x1f\x44\x00\x00\x0f\x1f\x00\x55\x48\x89\xe5\x53\x41\x55\x41\x56\x41\x57" +
		"\x49\xb9\xf8\x1c\x50\x5b\x79\x60\x00\x00\x65\x4c\x03\x0c\x25\x28\xe0\xb0\x83\x49\x89\xfe")
	if !stackOfCPU(code) || stackOfCPU(code[:30]) || stackOfCPU(nil) {
		t.Error("a stack of the CPU is not told from none")
	}
}
