// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// maxProgram is the maximum size of a device program in bytes, enough for 1600 devices.
const maxProgram = 64 << 10

// programNodes returns the GPU device nodes that the device program of a cgroup of version 2 allows by name. It returns
// false if they are unknown: the cgroup has no program or several, the program is not Slurm's, or, with an error, its
// instructions cannot be read. The kernel lists instructions with CAP_SYS_ADMIN, before Linux 6.9 only with
// CAP_NET_ADMIN (bpf_prog_query, bpf_prog_get_fd_by_id). With net.core.bpf_jit_harden=2 it lists none, or different
// instructions. The kernel cannot test-run a device program (cg_dev_prog_ops has no test_run), so the instructions are
// parsed.
func programNodes(dir string, majors map[uint64]string) (nodes []string, ok bool, err error) {
	instructions, err := deviceProgram(dir)
	if err != nil {
		return nil, false, err
	}
	if rules, ok := slurmRules(instructions); ok {
		nodes, ok = namedNodes(rules, majors)
		return nodes, ok, nil
	}
	return nil, false, nil
}

// deviceProgram returns the instructions of the device program that applies to a cgroup, or nil unless exactly one
// applies.
func deviceProgram(dir string) (asm.Instructions, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := link.QueryPrograms(link.QueryOptions{
		Target: int(f.Fd()), Attach: ebpf.AttachCGroupDevice, QueryFlags: unix.BPF_F_QUERY_EFFECTIVE, // also programs of its ancestors
	})
	if err != nil || len(found.Programs) != 1 {
		return nil, err
	}
	program, err := ebpf.NewProgramFromID(found.Programs[0].ID)
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Close() }()
	info, err := program.Info()
	if err != nil {
		return nil, err
	}
	if size, err := info.TranslatedSize(); err != nil || size > maxProgram {
		return nil, err
	}
	return info.Instructions()
}

// access_type in struct bpf_cgroup_dev_ctx: the type of the device, and from bit 16 on the access.
const characterDevice = 2 // BPF_DEVCG_DEV_CHAR

// A deviceRule allows or denies the devices that match. A nil field matches any value.
type deviceRule struct {
	kind, major, minor *int64
	allow              bool
}

// slurmStart are the first instructions of Slurm's device program: type, access, major and minor of the device.
var slurmStart = asm.Instructions{
	asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), asm.And.Imm32(asm.R2, 0xffff),
	asm.LoadMem(asm.R3, asm.R1, 0, asm.Word), asm.RSh.Imm32(asm.R3, 16),
	asm.LoadMem(asm.R4, asm.R1, 4, asm.Word), asm.LoadMem(asm.R5, asm.R1, 8, asm.Word),
}

// slurmRules parses the instructions of a device program as Slurm's cgroup/v2 plugin writes it (ebpf.c): the start,
// then for each device up to three comparisons, which jump to the next device, and a return. Devices without a rule are
// allowed. It returns false for any other program. The verifier does not change these instructions: they use no helper
// and no map, and the context is not rewritten.
func slurmRules(in asm.Instructions) (rules []deviceRule, ok bool) {
	if len(in) < len(slurmStart) || !slices.EqualFunc(in[:len(slurmStart)], slurmStart, sameInstruction) {
		return nil, false
	}
	for in = in[len(slurmStart):]; ; {
		count := 0
		compared := func(register asm.Register) *int64 {
			if count == len(in) || in[count].OpCode != asm.JNE.Op(asm.ImmSource) || in[count].Dst != register {
				return nil
			}
			count++
			return &in[count-1].Constant
		}
		rule := deviceRule{kind: compared(asm.R2), major: compared(asm.R4), minor: compared(asm.R5)}
		if len(in) < count+2 || !sameInstruction(in[count+1], asm.Return()) {
			return nil, false
		}
		for i := range count {
			if int(in[i].Offset) != count-i+1 { // over the following comparisons and the return
				return nil, false
			}
		}
		switch verdict := in[count]; {
		case sameInstruction(verdict, asm.Mov.Imm(asm.R0, 1)):
			rule.allow = true
		case !sameInstruction(verdict, asm.Mov.Imm(asm.R0, 0)):
			return nil, false
		}
		if in = in[count+2:]; count == 0 {
			return rules, rule.allow && len(in) == 0
		}
		rules = append(rules, rule)
	}
}

func sameInstruction(a, b asm.Instruction) bool {
	return a.OpCode == b.OpCode && a.Dst == b.Dst && a.Src == b.Src && a.Offset == b.Offset && a.Constant == b.Constant
}

// namedNodes returns the GPU device nodes that rules allow. The first rule that matches a device decides. It returns
// false if the rules do not name single GPUs.
func namedNodes(rules []deviceRule, majors map[uint64]string) (nodes []string, ok bool) {
	nodes = []string{}
	decided := map[string]bool{}
	for _, r := range rules {
		if r.kind != nil && *r.kind != characterDevice {
			continue
		}
		if r.major == nil {
			return nil, false
		}
		driver := majors[uint64(*r.major)]
		if driver == "" {
			continue
		}
		if r.minor == nil { // all GPUs of the driver
			return nil, false
		}
		node, ok := gpuNode(driver, uint64(*r.minor))
		if !ok || decided[node] || len(nodes) == 4*maxJobGPUs { // with the nodes of MIG and DRM
			continue
		}
		if decided[node] = true; r.allow {
			nodes = append(nodes, node)
		}
	}
	return nodes, len(decided) > 0
}
