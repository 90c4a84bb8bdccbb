// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestLoops: each loop ends with a jump. Linux 5.10 rejects a program with a loop whose last instruction precedes the first instruction,
// and falls through into it (check_cfg in kernel/bpf/verifier.c). The compiler decides this anew with each change of a program.
func TestLoops(t *testing.T) {
	objects, err := filepath.Glob("../../gen/*.o")
	if err != nil || len(objects) == 0 {
		t.Fatal(objects, err)
	}
	for _, object := range objects {
		if strings.HasPrefix(filepath.Base(object), "datapath_") {
			continue // needs Linux 5.17
		}
		spec, err := ebpf.LoadCollectionSpec(object)
		if err != nil {
			t.Fatal(err)
		}
		for name, program := range spec.Programs {
			if at := fallsBack(t, program.Instructions); at >= 0 {
				t.Errorf("%s: %s: a loop ends at instruction %d without a jump", object, name, at)
			}
		}
	}
	loop := func(last asm.Instruction) asm.Instructions {
		return asm.Instructions{
			asm.JEq.Imm(asm.R1, 0, "header"), asm.Return(),
			asm.Mov.Imm(asm.R2, 0).WithSymbol("body"), last,
			asm.JNE.Imm(asm.R2, 9, "body").WithSymbol("header"), asm.Return(),
		}
	}
	if at := fallsBack(t, loop(asm.Add.Imm(asm.R2, 1))); at != 3 {
		t.Errorf("an instruction before the header: %d, want 3", at)
	}
	if at := fallsBack(t, loop(asm.Ja.Label("header"))); at >= 0 {
		t.Errorf("a jump to the header: %d", at)
	}
}

// fallsBack returns the index of an instruction without a jump that continues a loop with the next instruction, or -1. Like
// check_cfg, it walks depth first, the next instruction before the target of a jump or call.
func fallsBack(t *testing.T, all asm.Instructions) int {
	t.Helper()
	symbols, offsets, raw := map[string]int{}, map[asm.RawInstructionOffset]int{}, make([]asm.RawInstructionOffset, len(all))
	for i := all.Iterate(); i.Next(); {
		offsets[i.Offset], raw[i.Index] = i.Index, i.Offset
		if name := i.Ins.Symbol(); name != "" {
			symbols[name] = i.Index
		}
	}
	const discovered, explored = 1, 2
	state := make([]int, len(all))
	found := -1
	var walk func(i int)
	walk = func(i int) {
		state[i] = discovered
		op, class := all[i].OpCode, all[i].OpCode.Class()
		exit, always := class.IsJump() && op.JumpOp() == asm.Exit, class.IsJump() && op.JumpOp() == asm.Ja
		jump := class.IsJump() && !exit && op.JumpOp() != asm.Call
		follow := func(next int) {
			if state[next] == 0 {
				walk(next)
			} else if state[next] == discovered && !jump {
				found = i
			}
		}
		if !exit && !always {
			follow(i + 1)
		}
		switch target, named := symbols[all[i].Reference()]; {
		case jump && !named:
			target, known := offsets[raw[i]+1+asm.RawInstructionOffset(all[i].Offset)]
			if !known {
				t.Fatalf("instruction %d jumps to %d", i, all[i].Offset)
			}
			follow(target)
		case jump, all[i].IsFunctionReference():
			follow(target)
		}
		state[i] = explored
	}
	walk(0)
	return found
}
