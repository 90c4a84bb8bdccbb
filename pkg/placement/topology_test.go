// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// tree is a node. Each line is a device: kind, name, NUMA node and PCI path.
type tree string

// The trees of the tests. The matrices are published, and for the DGX A100 also the bridges above GPU 0 and mlx5_0, as
// NCCL found them without the downstream ports of switches (github.com/NVIDIA/nccl/issues/1505). The rest is
// constructed: the DGX A100's other parts in the same shape, the DGX-2 and the workstation with the switches and host
// bridges that nvidia-smi's legend names.
const (
	dgxA100 tree = `
gpu 0 3 pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0/0000:06:00.0/0000:07:00.0
gpu 1 3 pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:04.0/0000:0a:00.0/0000:0b:04.0/0000:0d:00.0/0000:0e:00.0/0000:0f:00.0
gpu 2 1 pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:43:00.0/0000:44:00.0/0000:45:00.0/0000:46:00.0/0000:47:00.0
gpu 3 1 pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:04.0/0000:49:00.0/0000:4a:04.0/0000:4c:00.0/0000:4d:00.0/0000:4e:00.0
gpu 4 7 pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:00.0/0000:83:00.0/0000:84:00.0/0000:85:00.0/0000:86:00.0/0000:87:00.0
gpu 5 7 pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:04.0/0000:8b:00.0/0000:8c:04.0/0000:8e:00.0/0000:8f:00.0/0000:90:00.0
gpu 6 5 pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:00.0/0000:b3:00.0/0000:b4:00.0/0000:b5:00.0/0000:b6:00.0/0000:b7:00.0
gpu 7 5 pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:04.0/0000:b8:00.0/0000:b9:04.0/0000:bb:00.0/0000:bc:00.0/0000:bd:00.0
hca mlx5_0 3 pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:04.0/0000:0a:00.0/0000:0b:00.0/0000:0c:00.0
hca mlx5_1 3 pci0000:00/0000:00:01.1/0000:01:00.0/0000:02:08.0/0000:10:00.0/0000:11:00.0/0000:12:00.0
hca mlx5_2 1 pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:04.0/0000:49:00.0/0000:4a:00.0/0000:4b:00.0
hca mlx5_3 1 pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:08.0/0000:52:00.0/0000:53:00.0/0000:54:00.0
hca mlx5_4 0 pci0000:60/0000:60:03.1/0000:61:00.0
hca mlx5_5 0 pci0000:60/0000:60:03.1/0000:61:00.1
hca mlx5_6 7 pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:04.0/0000:8b:00.0/0000:8c:00.0/0000:8d:00.0
hca mlx5_7 7 pci0000:80/0000:80:01.1/0000:81:00.0/0000:82:08.0/0000:92:00.0/0000:93:00.0/0000:94:00.0
hca mlx5_8 5 pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:04.0/0000:b8:00.0/0000:b9:00.0/0000:ba:00.0
hca mlx5_9 5 pci0000:b0/0000:b0:01.1/0000:b1:00.0/0000:b2:08.0/0000:ca:00.0/0000:cb:00.0/0000:cc:00.0
hca mlx5_10 4 pci0000:e0/0000:e0:03.1/0000:e1:00.0
hca mlx5_11 4 pci0000:e0/0000:e0:03.1/0000:e1:00.1`
	dgx2 tree = `
gpu 0 0 pci0000:30/0000:30:00.0/0000:31:00.0/0000:32:00.0/0000:33:00.0/0000:34:00.0/0000:35:00.0
gpu 1 0 pci0000:30/0000:30:00.0/0000:31:00.0/0000:32:00.0/0000:33:00.0/0000:34:04.0/0000:36:00.0
gpu 2 0 pci0000:30/0000:30:00.0/0000:31:00.0/0000:32:04.0/0000:38:00.0/0000:39:00.0/0000:3a:00.0
gpu 3 0 pci0000:30/0000:30:00.0/0000:31:00.0/0000:32:04.0/0000:38:00.0/0000:39:04.0/0000:3b:00.0
gpu 4 0 pci0000:50/0000:50:00.0/0000:51:00.0/0000:52:00.0/0000:53:00.0/0000:54:00.0/0000:55:00.0
hca mlx5_0 0 pci0000:30/0000:30:00.0/0000:31:00.0/0000:32:00.0/0000:33:00.0/0000:34:08.0/0000:37:00.0
hca mlx5_1 0 pci0000:30/0000:30:00.0/0000:31:00.0/0000:32:04.0/0000:38:00.0/0000:39:08.0/0000:3c:00.0
hca mlx5_2 0 pci0000:50/0000:50:00.0/0000:51:00.0/0000:52:00.0/0000:53:00.0/0000:54:08.0/0000:57:00.0
hca mlx5_3 0 pci0000:50/0000:50:00.0/0000:51:00.0/0000:52:04.0/0000:58:00.0/0000:59:08.0/0000:5c:00.0
hca mlx5_4 1 pci0000:80/0000:80:00.0/0000:81:00.0
hca mlx5_5 1 pci0000:b0/0000:b0:00.0/0000:b1:00.0`
	workstation tree = `
gpu 0 1 pci0000:80/0000:80:01.1/0000:81:00.0
gpu 1 0 pci0000:00/0000:00:01.1/0000:01:00.0
gpu 2 0 pci0000:00/0000:00:03.1/0000:02:00.0
gpu 3 0 pci0000:40/0000:40:01.1/0000:41:00.0
gpu 4 0 pci0000:40/0000:40:03.1/0000:42:00.0`
)

func (n tree) facts() *model.Snapshot {
	s := &model.Snapshot{PCI: []model.PCIFunction{}}
	for line := range strings.SplitSeq(strings.TrimSpace(string(n)), "\n") {
		w := strings.Fields(line)
		path := strings.Split(w[3], "/")
		address := path[len(path)-1]
		s.PCI = append(s.PCI, model.PCIFunction{Address: address, NUMANode: w[2], Path: path})
		if w[0] == "gpu" {
			s.GPUs = append(s.GPUs, model.GPU{Vendor: model.NVIDIA, ID: w[1], UUID: "GPU-" + w[1], PCIAddress: strings.ToUpper(address)})
		} else {
			s.HCAs = append(s.HCAs, model.HCA{
				Name: w[1], PCIAddress: address,
				Ports: []model.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", RateBits: 200e9}},
			})
		}
	}
	return s
}

// Published matrices of nvidia-smi topo -m, without the links between GPUs (NV12 and the like).
const (
	// Of a DGX A100 with driver 470: github.com/gengwg/cheatsheets, gpu.md.
	dgxA100Matrix = `
        mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5 mlx5_6 mlx5_7 mlx5_8 mlx5_9 mlx5_10 mlx5_11
GPU0    PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS
GPU1    PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS
GPU2    SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS
GPU3    SYS SYS PXB PXB SYS SYS SYS SYS SYS SYS SYS SYS
GPU4    SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS
GPU5    SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS SYS SYS
GPU6    SYS SYS SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS
GPU7    SYS SYS SYS SYS SYS SYS SYS SYS PXB PXB SYS SYS
mlx5_0  X   PXB SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS
mlx5_1  PXB X   SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS
mlx5_2  SYS SYS X   PXB SYS SYS SYS SYS SYS SYS SYS SYS
mlx5_3  SYS SYS PXB X   SYS SYS SYS SYS SYS SYS SYS SYS
mlx5_4  SYS SYS SYS SYS X   PIX SYS SYS SYS SYS SYS SYS
mlx5_5  SYS SYS SYS SYS PIX X   SYS SYS SYS SYS SYS SYS
mlx5_6  SYS SYS SYS SYS SYS SYS X   PXB SYS SYS SYS SYS
mlx5_7  SYS SYS SYS SYS SYS SYS PXB X   SYS SYS SYS SYS
mlx5_8  SYS SYS SYS SYS SYS SYS SYS SYS X   PXB SYS SYS
mlx5_9  SYS SYS SYS SYS SYS SYS SYS SYS PXB X   SYS SYS
mlx5_10 SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS X   PIX
mlx5_11 SYS SYS SYS SYS SYS SYS SYS SYS SYS SYS PIX X`
	// Of a DGX-2: github.com/NVIDIA/nccl-tests/issues/78.
	dgx2Matrix = `
        mlx5_0 mlx5_1 mlx5_2 mlx5_3 mlx5_4 mlx5_5
GPU0    PIX PXB NODE NODE SYS SYS
GPU1    PIX PXB NODE NODE SYS SYS
GPU2    PXB PIX NODE NODE SYS SYS
GPU3    PXB PIX NODE NODE SYS SYS
GPU4    NODE NODE PIX PXB SYS SYS`
	// Of a workstation with two sockets: github.com/noonghunna/club-3090/issues/46.
	workstationMatrix = `
        GPU0 GPU1 GPU2 GPU3 GPU4
GPU0    X    SYS  SYS  SYS  SYS
GPU1    SYS  X    PHB  NODE NODE
GPU2    SYS  PHB  X    NODE NODE
GPU3    SYS  NODE NODE X    PHB
GPU4    SYS  NODE NODE PHB  X`
)

func TestMatrix(t *testing.T) {
	for name, c := range map[string]struct {
		tree   tree
		matrix string
	}{
		"DGX A100": {dgxA100, dgxA100Matrix}, "DGX-2": {dgx2, dgx2Matrix}, "workstation": {workstation, workstationMatrix},
	} {
		topology := New(c.tree.facts())
		index := map[string]int{}
		for i, d := range topology.Devices {
			if d.Kind == GPU {
				index["GPU"+d.Name] = i
			} else {
				index[d.Name] = i
			}
		}
		lines := strings.Split(strings.TrimSpace(c.matrix), "\n")
		columns, cells := strings.Fields(lines[0]), 0
		for _, line := range lines[1:] {
			row := strings.Fields(line)
			for i, want := range row[1:] {
				a, found := index[row[0]]
				b, ok := index[columns[i]]
				if !found || !ok {
					t.Fatalf("%s: %s or %s is not in the tree", name, row[0], columns[i])
				}
				if got := topology.Relation(a, b); got != Relation(want) {
					t.Errorf("%s: %s and %s are %s, want %s", name, row[0], columns[i], got, want)
				}
				if got, back := topology.Relation(a, b), topology.Relation(b, a); got != back {
					t.Errorf("%s: %s and %s are %s, and %s the other way", name, row[0], columns[i], got, back)
				}
				cells++
			}
		}
		if cells < 25 {
			t.Errorf("%s: compared only %d pairs", name, cells)
		}
	}
}

// TestUnknownPlace has devices without a place: only their NUMA nodes are known, and a VF is where its HCA is.
func TestUnknownPlace(t *testing.T) {
	s := dgxA100.facts()
	s.PCI = nil
	s.GPUs[0].NUMANode, s.HCAs[0].NUMANode, s.HCAs[2].NUMANode = "3", "3", "1"
	topology := New(s)
	const gpu0, mlx0, mlx2 = 0, 8, 10
	for _, c := range []struct {
		device int
		want   Relation
	}{{mlx0, Unknown}, {mlx2, SYS}, {gpu0 + 1, Unknown}, {gpu0, Self}} {
		if got := topology.Relation(gpu0, c.device); got != c.want {
			t.Errorf("GPU0 and %s: %q, want %q", topology.Devices[c.device].Name, got, c.want)
		}
	}
	s = dgxA100.facts()
	s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_12", VF: true, PF: "mlx5_0", PCIAddress: "0000:0c:00.2"},
		model.HCA{Name: "mlx5_13", VF: true, PCIAddress: "0000:12:00.2"})
	topology = New(s)
	last := len(topology.Devices) - 1
	if got := topology.Relation(gpu0, last-1); got != PXB {
		t.Errorf("GPU0 and a VF: %q", got)
	}
	if got := topology.Relation(mlx0, last-1); got != PIX {
		t.Errorf("an HCA and its VF: %q", got)
	}
	if got := topology.Relation(gpu0, last); got != Unknown {
		t.Errorf("GPU0 and a VF of an HCA that is not shown: %q", got)
	}
}

// TestDevices checks the links and parts of GPUs.
func TestDevices(t *testing.T) {
	s := dgxA100.facts()
	s.GPUs = append(s.GPUs[:1], model.GPU{Vendor: model.NVIDIA, ID: "0:0", UUID: "MIG-0", Parent: "GPU-0", PCIAddress: s.GPUs[0].PCIAddress})
	s.HCAs = s.HCAs[:1]
	s.PCI[0].Link = model.PCILink{Speed: 8e9, MaxSpeed: 32e9, Width: 8, MaxWidth: 16}
	s.PCI[0].Upstream.Link = model.PCILink{MaxSpeed: 16e9, MaxWidth: 16}
	got := New(s).Devices
	if len(got) != 2 || got[0].Link != (model.PCILink{Speed: 8e9, MaxSpeed: 16e9, Width: 8, MaxWidth: 16}) || got[0].NUMANode != "3" {
		t.Errorf("%+v", got)
	}
	if h := got[1]; !h.Active || h.LinkLayer != "InfiniBand" || h.Rate != 200e9 || fmt.Sprint(h.Kind) != "hca" {
		t.Errorf("%+v", h)
	}
}

// TestDegraded: a lower speed degrades only HCAs.
func TestDegraded(t *testing.T) {
	full := model.PCILink{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}
	narrow, slow := full, full
	narrow.Width, slow.Speed = 8, 16e9
	for link, want := range map[model.PCILink]map[Kind]bool{
		full: {}, narrow: {GPU: true, HCA: true}, slow: {HCA: true}, {MaxSpeed: 32e9, MaxWidth: 16}: {}, {Speed: 8e9, Width: 4}: {},
	} {
		for _, kind := range []Kind{GPU, HCA} {
			if d := (Device{Kind: kind, Link: link}); d.Degraded() != want[kind] {
				t.Errorf("%s with %+v: %v", kind, link, d.Degraded())
			}
		}
	}
}

// TestOffPCIe: the link of a GPU that is not behind PCIe is neither shown nor degraded, whatever its PCI function
// reports.
func TestOffPCIe(t *testing.T) {
	facts := model.Snapshot{
		GPUs: []model.GPU{{ID: "0", UUID: "GPU-0", PCIAddress: "000f:01:00.0"}},
		PCI: []model.PCIFunction{{
			Address: "000f:01:00.0", Path: []string{"pci000f:00", "000f:00:00.0"},
			PCIEnd: model.PCIEnd{Link: model.PCILink{Speed: 2.5e9, MaxSpeed: 32e9, Width: 1, MaxWidth: 16}},
		}},
	}
	for _, off := range []bool{false, true} {
		facts.GPUs[0].OffPCIe = off
		topology := New(&facts)
		if d := &topology.Devices[0]; d.Degraded() == off || (d.Link == model.PCILink{}) != off || d.Path == nil {
			t.Errorf("off PCIe %v: %+v", off, d)
		}
	}
}
