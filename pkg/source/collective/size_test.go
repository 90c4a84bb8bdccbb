// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"testing"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
)

// TestMapMemory limits the memory of the maps, as docs/collectives.md has it.
func TestMapMemory(t *testing.T) {
	bpf.Root(t)
	k, err := newKernel((&Options{}).spec())
	if err != nil {
		bpf.Skip(t, err)
	}
	defer k.close()
	sum := uint64(0)
	for _, name := range []string{
		communicatorsMap, pendingMap, handlesMap, launchesMap, ranksMap, firstsMap, gen.CollectiveMapCollectiveProcesses,
	} {
		info, err := k.object.Coll.Maps[name].Info()
		if err != nil {
			t.Fatal(err)
		}
		bytes, known := info.Memlock()
		if !known {
			t.Skip("the kernel does not report the memory of maps")
		}
		t.Logf("%s: %d entries, %d bytes", name, info.MaxEntries, bytes)
		sum += bytes
	}
	if t.Logf("%d bytes", sum); sum > 7<<20 {
		t.Errorf("%d bytes", sum)
	}
}

// TestFunctions: the programs know each function and operation by a number that they have room for.
func TestFunctions(t *testing.T) {
	var p gen.CollectiveCollectiveProcess
	if len(functions) > len(p.Calls) || len(operations) > maxOperations {
		t.Errorf("%d functions, %d operations", len(functions), len(operations))
	}
	seen := map[string]bool{}
	for _, f := range functions {
		if seen[f.name] {
			t.Errorf("%s twice", f.name)
		}
		seen[f.name] = true
	}
}
