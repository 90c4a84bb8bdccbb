// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"testing"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// On kernels that give programs a per-CPU stack (6.13), no program that a uprobe runs may have one, and HasCPUStack
// must detect it.
func TestStackOfThread(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	types, err := hook.LoadTypes("")
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
		if locate.HasCPUStack(program) {
			t.Errorf("%s has a stack of the CPU", name)
		}
	}
}
