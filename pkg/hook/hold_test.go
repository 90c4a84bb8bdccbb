// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"strings"
	"testing"
)

// TestHold: while there is a holder, the kernel is read once, and again after a change of its modules.
func TestHold(t *testing.T) {
	root(t)
	read := func() *Kernel {
		t.Helper()
		k, err := ReadKernel("")
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	outer, inner := Hold(), Hold()
	first := read()
	if read() != first {
		t.Error("read twice")
	}
	inner()
	if read() != first {
		t.Error("the inner release dropped what the outer holder keeps")
	}
	kept.modules = "another"
	changed := read()
	if changed == first || read() != changed {
		t.Error("not read once after a change of the modules")
	}
	outer()
	if kept.kernels != nil || kept.functions != nil {
		t.Error("kept without a holder")
	}
	if read() == changed || kept.kernels != nil {
		t.Error("kept without a holder")
	}
}

// FuzzWithoutUsers: no list of modules makes it panic or longer.
func FuzzWithoutUsers(f *testing.F) {
	f.Add("ib_core 565248 5 rdma_cm,ib_uverbs, Live 0xffffffffc0a1b000 (OE)\nloop 40960 0 - Live 0xffffffffc0a00000\n")
	f.Fuzz(func(t *testing.T, list string) {
		if got := withoutUsers(list); strings.Count(got, "\n") > strings.Count(list, "\n")+1 {
			t.Errorf("%q", got)
		}
	})
}

// TestWithoutUsers: users of a module make no difference, the other columns do.
func TestWithoutUsers(t *testing.T) {
	const loaded = "ib_core 565248 5 rdma_cm, Live 0xffffffffc0a1b000 (OE)\n"
	for list, same := range map[string]bool{
		loaded: true,
		"ib_core 565248 6 rdma_cm,ib_uverbs, Live 0xffffffffc0a1b000 (OE)\n": true,
		"ib_core 565248 5 rdma_cm, Live 0xffffffffc0b1b000 (OE)\n":           false,
		"ib_core 565248 5 rdma_cm, Unloading 0xffffffffc0a1b000 (OE)\n":      false,
		"": false,
	} {
		if got := withoutUsers(list) == withoutUsers(loaded); got != same {
			t.Errorf("%q is the same: %t, want %t", list, got, same)
		}
	}
}
