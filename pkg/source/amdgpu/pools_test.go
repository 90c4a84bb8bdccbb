// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// bank writes the bank of memory of a node of KFD.
func (n fakeProcs) bank(number int, size uint64) {
	n.t.Helper()
	dir := n.kfd("topology/nodes/" + strconv.Itoa(number) + "/mem_banks")
	n.write(dir+"/0/properties", fmt.Sprintf("heap_type 1\nsize_in_bytes %d\nflags 0\nwidth 128\nmem_clk_max 1000\n", size))
	n.write(dir+"/1/properties", "heap_type 0\nsize_in_bytes 999999999999\nflags 0\nwidth 64\nmem_clk_max 1000\n") // of the CPU
}

// apuInfo is the fdinfo of a client with memory in both pools, in bytes.
func apuInfo(client int, vram, gtt uint64) string {
	return fmt.Sprintf("drm-driver:\tamdgpu\ndrm-client-id:\t%d\ndrm-pdev:\t0000:c1:00.0\npasid:\t32771\n"+
		"drm-memory-cpu:\t0 KiB\ndrm-memory-gtt:\t%d KiB\ndrm-memory-vram:\t%d KiB\n", client, gtt>>10, vram>>10)
}

// TestPools: what KFD counts as memory of a GPU is memory of the host on APUs since Linux 6.10 and on accelerators with the CPU.
func TestPools(t *testing.T) {
	const gib, mib = gibibyte, 1 << 20
	for what, c := range map[string]struct {
		vram, bank uint64 // bank 0: KFD reports none
		processes  int
		kfd        uint64 // of each process
		inVRAM     uint64 // of each, by fdinfo
		inGTT      uint64
		memory     uint64 // of each
		gtt        bool   // all of it
		total      uint64 // of the GPU
	}{
		"an MI300A":                   {0, 0, 1, 100 * gib, 0, 100 * gib, 100 * gib, true, 128 * gib},
		"an MI300A with its bank":     {0, 128 * gib, 1, 100 * gib, 0, 0, 100 * gib, true, 128 * gib},
		"a Strix":                     {gib / 2, 0, 1, 24 * gib, 5 * mib, 24 * gib, 24 * gib, true, 128*gib + gib/2},
		"a Strix, little is used":     {gib / 2, 64 * gib, 1, 16 * mib, mib, 0, 16 * mib, true, 128*gib + gib/2},
		"four processes of 7 GiB":     {8 * gib, 0, 4, 7 * gib, mib / 16, 0, 7 * gib, true, 136 * gib},
		"one process of 7 GiB":        {8 * gib, 0, 1, 7 * gib, mib / 16, 7 * gib, 7 * gib, true, 136 * gib},
		"an APU that prefers VRAM":    {64 * gib, 64 * gib, 1, 7 * gib, 7 * gib, mib, 7 * gib, false, 64 * gib},
		"a card":                      {64 * gib, 64 * gib, 4, 16 * gib, 16 * gib, 20 * gib, 16 * gib, false, 64 * gib},
		"a card, evicted to GTT":      {64 * gib, 64 * gib, 1, 16 * gib, 0, 16 * gib, 16 * gib, false, 64 * gib},
		"an APU with graphics only":   {gib / 2, 64 * gib, 2, 0, 5 * mib, gib, gib + 5*mib, false, 128*gib + gib/2},
		"graphics only, all in GTT":   {gib / 2, 64 * gib, 1, 0, 0, gib, gib, true, 128*gib + gib/2},
		"a card with graphics in GTT": {64 * gib, 64 * gib, 1, 0, gib, gib, gib, false, 64 * gib},
	} {
		n := newFakeProcs(t)
		n.gpu(1, 51001, 0xc100, 128)
		if c.bank > 0 {
			n.bank(1, c.bank)
		}
		card := model.GPU{
			Vendor: model.AMD, UUID: "gpu", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/dri/renderD128"},
			Memory: model.VideoMemory{Total: model.Some(float64(c.vram)), Used: model.Some(0)},
			GTT:    model.VideoMemory{Total: model.Some(128 * gibibyte), Used: model.Some(gibibyte)},
		}
		for i := range c.processes {
			n.compute(100+i, 51001, c.kfd, 0, 0)
			n.file(100+i, 5, 128, "renderD128", apuInfo(11+i, c.inVRAM, c.inGTT))
		}
		l := n.lister()
		for range 2 {
			got := n.list(l, []model.GPU{card}, 1)
			if len(got) != c.processes {
				t.Errorf("%s: %d processes", what, len(got))
			}
			for _, p := range got {
				if p.Memory != model.Some(float64(c.memory)) || c.gtt && p.GTT != p.Memory || !c.gtt && p.GTT == p.Memory {
					t.Errorf("%s: %v, in GTT %v, want %v", what, p.Memory, p.GTT, c.memory)
				}
			}
		}
		if l.pools.apply(&card); card.Memory.Total != model.Some(float64(c.total)) {
			t.Errorf("%s: a total of %v, want %v", what, card.Memory.Total, c.total)
		}
		if again := card; again.UsesGTT {
			if l.pools.apply(&again); again.Memory != card.Memory {
				t.Errorf("%s: GTT counts twice: %v", what, again.Memory)
			}
		}
	}
}

// TestMemoryOfPartitions: partitions have the size of their banks as total; partitions of an accelerator with the CPU use GTT.
func TestMemoryOfPartitions(t *testing.T) {
	for _, vram := range []float64{192 * gibibyte, 0} {
		n := newFakeProcs(t)
		n.gpu(1, 51001, 0xc100, 128)
		n.gpu(2, 51002, 0xc101, 129)
		n.bank(1, 24*gibibyte)
		n.bank(2, 24*gibibyte)
		cards := []model.GPU{{UUID: "gpu", PCIAddress: "0000:c1:00.0", Memory: model.VideoMemory{Total: model.Some(vram)}}}
		for i := range 2 {
			id := strconv.Itoa(i)
			cards = append(cards, model.GPU{
				UUID: "gpu:" + id, Parent: "gpu", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/dri/renderD" + strconv.Itoa(128+i)},
			})
		}
		n.compute(100, 51002, 20*gibibyte, 0, 0)
		l := n.lister()
		got := n.list(l, cards, 1)
		if len(got) != 1 || got[0].GPU != "gpu:1" || got[0].Memory != model.Some(20*gibibyte) || got[0].GTT.Known != (vram == 0) {
			t.Errorf("%+v", got)
		}
		if l.pools.apply(&cards[2]); cards[2].Memory.Total != model.Some(24*gibibyte) || cards[2].UsesGTT != (vram == 0) {
			t.Errorf("%+v", cards[2])
		}
	}
}

// TestGPUWithoutVRAM: an accelerator with the CPU has no VRAM: its memory is GTT.
func TestGPUWithoutVRAM(t *testing.T) {
	n := newNode(t, "apu")
	n.write("mem_info_vram_total", "0\n")
	n.write("mem_info_vram_used", "0\n")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	snap := eventually(t, ready(t, start(t, o)), func(snap model.Snapshot) bool { return snap.GPUProcesses != nil })
	if g := snap.GPUs[0]; !g.UsesGTT || g.Memory.Total != model.Some(8073986048) || g.Memory.Used != model.Some(149938176) || g.Dropped != nil {
		t.Errorf("memory %+v; left out: %v", g.Memory, g.Dropped)
	}
}
