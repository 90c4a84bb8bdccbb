// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pciTree is a CONSTRUCTED sysfs of a node with Data Direct: the bridges between a GPU and the Data Direct function of an HCA, in the form
// that rdma_topo of rdma-core expects of Grace, with configuration spaces and Vital Product Data as the PCI specifications define them.
type pciTree struct {
	t    *testing.T
	root string
}

func (p pciTree) write(path, content string) {
	p.t.Helper()
	full := filepath.Join(p.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p pciTree) link(target, path string) {
	p.t.Helper()
	full := filepath.Join(p.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Symlink(target, full); err != nil {
		p.t.Fatal(err)
	}
}

// add adds a function below devices/, with its vendor, device and class, and further files.
func (p pciTree) add(path, id, class string, files map[string]string) {
	p.t.Helper()
	vendor, device, _ := strings.Cut(id, ":")
	all := map[string]string{
		"vendor": "0x" + vendor + "\n", "device": "0x" + device + "\n", "class": "0x" + class + "\n", "numa_node": "0\n", "config": configSpace(-1),
		"modalias": "pci:v0000" + strings.ToUpper(vendor) + "d0000" + strings.ToUpper(device) + "sv00000000sd00000000bc" + class[:2] + "sc" + class[2:4] +
			"i" + class[4:] + "\n",
	}
	maps.Copy(all, files)
	for name, content := range all {
		if name == "iommu_group" {
			p.link("/sys/kernel/iommu_groups/"+content, filepath.Join("devices", path, name))
			continue
		}
		p.write(filepath.Join("devices", path, name), content)
	}
	p.link(filepath.Join("../../../devices", path), "bus/pci/devices/"+filepath.Base(path))
}

// configSpace returns a configuration space with ACS Control, without the ACS capability if it is negative.
func configSpace(control int) string {
	b := make([]byte, 4096)
	if control >= 0 {
		binary.LittleEndian.PutUint32(b[0x100:], 0x0d|1<<16)
		binary.LittleEndian.PutUint16(b[0x104:], 0x5f)
		binary.LittleEndian.PutUint16(b[0x106:], uint16(control))
	}
	return string(b)
}

func cardVPD(uuid string) string {
	entry := "V3" + string([]byte{byte(len(uuid))}) + uuid
	return "\x82\x04\x00Card" + "\x90" + string([]byte{byte(len(entry)), 0}) + entry + "\x78"
}

// graceTree writes the node. hcaPort, gpuPort and rootPort are the values of ACS Control, group the IOMMU group of the GPU.
func graceTree(t *testing.T, vpd string, rootPort, hcaPort, gpuPort int, group string) string {
	t.Helper()
	p := pciTree{t, t.TempDir()}
	bridge := func(path, id string, control int) {
		p.add(path, id, "060400", map[string]string{"config": configSpace(control)})
	}
	const isolated = 0x1d
	bridge("pci0000:00/0000:00:00.0", "10de:22b1", isolated)
	const hca = "pci0000:00/0000:00:00.0/0000:03:00.0"
	p.add(hca, "15b3:1023", "020700", map[string]string{
		"vpd": cardVPD("4c7c1f2e"), "iommu_group": "3", "infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
		"infiniband/mlx5_0/ports/1/link_layer": "InfiniBand\n", "infiniband/mlx5_0/ports/1/rate": "800 Gb/sec (4X XDR)\n",
	})
	p.link("../../../../bus/pci/drivers/mlx5_core", filepath.Join("devices", hca, "driver"))
	p.link("../../../0000:03:00.0", filepath.Join("devices", hca, "infiniband/mlx5_0/device"))
	p.link(filepath.Join("../../devices", hca, "infiniband/mlx5_0"), "class/infiniband/mlx5_0")
	at := "pci0009:00/0009:00:00.0"
	bridge(at, "10de:22b1", rootPort)
	at += "/0009:01:00.0"
	bridge(at, "15b3:197c", -1)
	bridge(at+"/0009:02:00.0", "15b3:197c", hcaPort)
	p.add(at+"/0009:02:00.0/0009:03:00.0", "15b3:2100", "088000", map[string]string{"vpd": vpd, "iommu_group": "9"})
	p.link("../../../../bus/pci/drivers/mlx5_ib", filepath.Join("devices", at, "0009:02:00.0/0009:03:00.0/driver"))
	at += "/0009:02:01.0"
	bridge(at, "15b3:197c", gpuPort)
	at += "/0009:04:00.0"
	bridge(at, "15b3:197c", -1)
	at += "/0009:05:00.0"
	bridge(at, "15b3:197c", isolated)
	p.add(at+"/0009:06:00.0", "10de:31c2", "030200", map[string]string{"iommu_group": group})
	return p.root
}

// TestTopoDataDirect prints a node with Data Direct: set up as rdma_topo requires it, with the kernel's defaults, and with a VPD without a
// UUID. rdma_topo of rdma-core (691953d8d), run by hand on these trees with RDMA_TOPO_DEVDIR, paired the same functions and reported the
// same three registers and the IOMMU groups, and nothing of the first tree.
func TestTopoDataDirect(t *testing.T) {
	const paired = `        GPU0  mlx5_0  NUMA  PCIE
GPU0    X     PXB     0     -
mlx5_0  PXB   X       0     -

DATA DIRECT   HCA
0009:03:00.0  mlx5_0

`
	for name, c := range map[string]struct{ sysfs, want string }{
		"as required": {graceTree(t, cardVPD("4c7c1f2e"), 0x1c, 0x19, 0x15, "9"), paired +
			`GPU   HCA     THROUGH       REQUESTS  COMPLETIONS  IOMMU GROUPS  ACS OF HCA'S PORT                             ACS OF GPU'S PORT
GPU0  mlx5_0  0009:03:00.0  direct    direct       9, 9          0009:02:00.0 SrcValid,CmpltRedir,UpstreamFwd  0009:02:01.0 SrcValid,ReqRedir,UpstreamFwd

GPU   HCA     COMPARED WITH RDMA_TOPO
GPU0  mlx5_0  as required
`},
		"the kernel's defaults": {graceTree(t, cardVPD("4c7c1f2e"), 0x1d, 0x1d, 0x1d, "10"), paired +
			`GPU   HCA     THROUGH       REQUESTS    COMPLETIONS  IOMMU GROUPS  ACS OF HCA'S PORT                                      ACS OF GPU'S PORT
GPU0  mlx5_0  0009:03:00.0  redirected  redirected   9, 10         0009:02:00.0 SrcValid,ReqRedir,CmpltRedir,UpstreamFwd  0009:02:01.0 SrcValid,ReqRedir,CmpltRedir,UpstreamFwd

GPU   HCA     COMPARED WITH RDMA_TOPO
GPU0  mlx5_0  differs: ACS of 0009:00:00.0 is 0011101 (SrcValid,ReqRedir,CmpltRedir,UpstreamFwd), not xx111x0
GPU0  mlx5_0  differs: ACS of 0009:02:00.0 is 0011101 (SrcValid,ReqRedir,CmpltRedir,UpstreamFwd), not xx110x1
GPU0  mlx5_0  differs: ACS of 0009:02:01.0 is 0011101 (SrcValid,ReqRedir,CmpltRedir,UpstreamFwd), not xx101x1
GPU0  mlx5_0  differs: the IOMMU groups of 0009:03:00.0 and the GPU are 9 and 10, not one group
`},
		"no UUID": {graceTree(t, "\x78", 0x1c, 0x19, 0x15, "9"), `        GPU0  mlx5_0  NUMA  PCIE
GPU0    X     NODE    0     -
mlx5_0  NODE  X       0     -

DATA DIRECT   HCA
0009:03:00.0  unknown: its VPD has no UUID (keyword V3)
`},
	} {
		got, err := topoOutput(t, "--url=http://127.0.0.1:1", "--path.sysfs="+c.sysfs)
		if err != nil {
			t.Fatal(err)
		}
		got, _, _ = strings.Cut(got, "\nNo sensor runs here")
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
}
