// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// identify reads constant properties from the PCI core, which does not wake the GPU. The drivers report no serial number
// and no unique ID. root is the root of the node, for the names of devices.
func identify(p drm.Card, root string) model.GPU {
	d := &drm.Directory{Path: p.Path}
	g := model.GPU{
		Vendor: model.Intel, UUID: p.PCIAddress, PCIAddress: p.PCIAddress, PCIDevice: d.Line("device"), NUMANode: drm.NUMANode(d),
	}
	for _, file := range []string{"usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids"} {
		if g.Name == "" {
			g.Name = marketName(root, file, g.PCIDevice)
		}
	}
	return g
}

// maxIDs is more than the number of lines of the list of PCI IDs.
const maxIDs = 1 << 17

// marketName searches the list of PCI IDs below the root of the node: vendors at the start of a line, their devices after a tab, such
// as "0bd5  Ponte Vecchio XT (2 Tile) [Data Center GPU Max 1550]". The market name is in brackets.
func marketName(root, file, device string) (market string) {
	id, ours := strings.TrimPrefix(device, "0x"), false
	drm.EachLine(root, file, maxIDs, func(line string) bool {
		switch {
		case strings.HasPrefix(line, "#"), line == "":
		case !strings.HasPrefix(line, "\t"):
			if ours {
				return false
			}
			ours = strings.HasPrefix(line, "8086 ")
		case ours && id != "" && strings.HasPrefix(line, "\t"+id+" "):
			name := line[1+len(id):]
			if _, bracketed, ok := strings.Cut(name, "["); ok {
				name = strings.TrimSuffix(bracketed, "]")
			}
			market = drm.Text([]byte(name))
			return false
		}
		return true
	})
	return market
}

// drivers returns the versions of the drivers that GPUs have.
func drivers(cards []*card, sysfs, procfs string) []model.GPUDriver {
	var list []model.GPUDriver
	for _, p := range cards {
		d := model.GPUDriver{Vendor: model.Intel, Version: drm.DriverVersion(sysfs, procfs, p.Driver)}
		if !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// totalMemory reads the size of the GPU's own memory, which only Intel's packages of the drivers report: xe by tile, i915
// for the card.
func totalMemory(p drm.Card) (total model.Optional) {
	if p.Driver == "i915" {
		return (&drm.Directory{Path: p.CardPath}).Number("lmem_total_bytes", 1)
	}
	d := &drm.Directory{Path: p.Path}
	for _, tile := range numbered(d, "", "tile") {
		if v := d.Number(tile+"/physical_vram_size_bytes", 1); v.Known {
			total = model.Some(total.Value + v.Value)
		}
	}
	return total
}
