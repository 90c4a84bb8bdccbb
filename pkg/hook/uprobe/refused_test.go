// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestRefusedParts refuses each program, map and helper in turn. Without the looks there is no Gate, with the kernel's
// reason. Without the measuring programs, the Gate does not measure.
func TestRefusedParts(t *testing.T) {
	bpf.Root(t)
	spec, err := gen.LoadMappings()
	if err != nil {
		t.Fatal(err)
	}
	try := func(spec *ebpf.CollectionSpec) (looked, measured bool, err error) {
		e, err := newEyes(bpf.Compiled(hook.Spec{}, spec))
		if err != nil {
			return false, false, err
		}
		defer e.close()
		return true, e.unmeasured == nil, e.unmeasured
	}
	looks, measures, err := try(spec.Copy())
	if !looks {
		t.Fatal(err)
	}
	used := []string{gen.MappingsProgWalkMappings, gen.MappingsProgCheckFile, gen.MappingsProgMeasure}
	for _, part := range bpf.Parts(spec) {
		changed := spec.Copy()
		of := bpf.Refuse(changed, part)
		looked, measured, err := try(changed)
		t.Logf("%-30s looks %t, measures %t: %v", part, looked, measured, err)
		needed := slices.ContainsFunc(used, func(name string) bool { return slices.Contains(of, name) })
		// The kernel removes unreachable calls before it looks at them.
		if strings.HasPrefix(part.String(), "helper") {
			continue
		}
		switch {
		case needed && (looked || err == nil):
			t.Errorf("%s is refused, and looks work: %v", part, err)
		case !needed && !looked && !slices.ContainsFunc(of, func(name string) bool { return strings.HasPrefix(name, "begin_") }):
			t.Errorf("%s is refused, which no look uses: %v", part, err)
		case looked && measured && !measures, looked && !measured && err == nil:
			t.Errorf("%s: measures %t, %v", part, measured, err)
		}
	}
}
