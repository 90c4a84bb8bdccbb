// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// On kernels that give programs a per-CPU stack (6.13), no program that a uprobe runs may have one, and CheckStack
// must detect it.
func TestStackOfThread(t *testing.T) {
	k := startKernel(t)
	for _, h := range programHooks {
		if h.Name == existingHook.Name && !bpf.InGuest() {
			continue // its structures need InfiniBand
		}
		for _, name := range h.Tiers[0].Programs {
			k.needs(t, name)
			info, err := k.object.Program(name).Info()
			if err != nil {
				t.Fatal(err)
			}
			code, ok := info.JitedInsns()
			if !ok || len(code) == 0 {
				t.Fatalf("%s: the kernel does not show its compiled code", name)
			}
			if err := locate.CheckStack(k.object.Program(name)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
