// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
)

// The verifier walks each path through a program. This takes most of the sensor's start: 0.2 s for 84,000 instructions.
func TestVerifiedInstructions(t *testing.T) {
	root(t)
	const limit = 10_000
	spec, err := gen.LoadVerbs()
	if err != nil {
		t.Fatal(err)
	}
	// Programs that also load on kernels without ib_uverbs.
	names := []string{
		gen.VerbsProgKprobeIoctl, gen.VerbsProgKretprobeIoctl, gen.VerbsProgKprobeWrite, gen.VerbsProgKretprobeWrite,
		gen.VerbsProgEnterIoctl, gen.VerbsProgExitIoctl, gen.VerbsProgEnterWrite, gen.VerbsProgExitWrite,
	}
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	for name, p := range coll.Programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		// Kernels before 5.16 do not report the number.
		if n, ok := info.VerifiedInstructions(); ok && n > limit {
			t.Errorf("%s: the verifier walks %d instructions, at most %d", name, n, limit)
		}
	}
}
