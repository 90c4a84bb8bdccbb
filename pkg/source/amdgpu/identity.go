// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// identify reads constant properties without waking the device: vendor and device from the PCI
// core; unique_id, serial_number, product_name and vbios_version as amdgpu read them when it
// was bound. root is the root of the node, for the names of libdrm. During a reset the device
// does not report its unique_id (EPERM): settled is false then.
func identify(d *directory, address, root string) (g model.GPU, settled bool) {
	g = model.GPU{
		Vendor: model.AMD, PCIAddress: address,
		PCIDevice: d.Line("device"), VBIOS: d.Line("vbios_version"),
		Serial: clean(d.Line("serial_number")), Name: clean(d.Line("product_name")), NUMANode: drm.NUMANode(&d.Directory),
	}
	b, err := d.read("unique_id")
	settled = err == nil || errors.Is(err, os.ErrNotExist)
	if id := drm.Text(b); len(id) <= 16 && strings.Trim(id, "0") != "" {
		if v, err := strconv.ParseUint(id, 16, 64); err == nil {
			g.UUID = fmt.Sprintf("%016x", v)
		}
	}
	if g.UUID == "" {
		g.UUID = address
	}
	if g.Name == "" {
		g.Name = marketName(root, "usr/share/libdrm/amdgpu.ids", g.PCIDevice, d.Line("revision"))
	}
	return g, settled
}

// clean returns "" for the placeholders of boards without the data.
func clean(s string) string {
	if s == "N/A" || strings.Trim(s, "0") == "" {
		return ""
	}
	return s
}

// marketName searches libdrm's list, below the root of the node: lines of device, revision and name, 744C, C8, AMD Radeon
// RX 7900 XTX.
func marketName(root, file, device, revision string) (name string) {
	device, revision = strings.TrimPrefix(device, "0x"), strings.TrimPrefix(revision, "0x")
	drm.EachLine(root, file, maxIDs, func(line string) bool {
		fields := strings.SplitN(line, ",", 3)
		found := len(fields) == 3 && strings.EqualFold(strings.TrimSpace(fields[0]), device) &&
			strings.EqualFold(strings.TrimSpace(fields[1]), revision)
		if found {
			name = drm.Text([]byte(fields[2]))
		}
		return !found
	})
	return name
}

// maxIDs is more than the number of lines of libdrm's list.
const maxIDs = 1 << 14
