// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// A client is one open of a GPU's node. Linux 5.19 and later report it with the keys of package drm, Linux 5.14
// to 5.18 with keys of amdgpu's own.
type client struct {
	address string // PCI
	// id is unique on the GPU: drm-client-id, or pasid in the old format, the number of the address space.
	id     uint64
	memory uint64 // in its VRAM, in bytes
	gtt    uint64 // in memory of the host that the GPU has mapped, in bytes
	// counts reports that engines are known: an engine that is missing was never used. The old
	// format has percentages since the client was opened, from which recent use cannot be
	// computed.
	counts  bool
	engines map[string]drm.Engine // gfx, compute, dma, dec, enc, jpeg, vpe
}

// parseFdinfo parses a file of fdinfo in either format. It returns false if the file has no client of amdgpu, or if the
// client cannot be identified.
func parseFdinfo(text []byte) (client, bool) {
	if c, ok := drm.ParseFdinfo(text); ok {
		return client{address: c.PCIAddress, id: c.ID, memory: c.Memory["vram"], gtt: c.Memory["gtt"], counts: true, engines: c.Engines},
			c.Driver == "amdgpu" && c.PCIAddress != ""
	}
	return parseOldFdinfo(text)
}

// parseOldFdinfo parses the format of Linux 5.14 to 5.18 (amdgpu_fdinfo.c).
func parseOldFdinfo(text []byte) (c client, ok bool) {
	for line := range bytes.Lines(text) {
		k, v, _ := bytes.Cut(line, []byte(":"))
		switch value := string(bytes.TrimSpace(v)); string(bytes.TrimSpace(k)) {
		case "drm-driver":
			return client{}, false
		case "pdev":
			c.address = strings.ToLower(value)
		case "pasid":
			c.id, _ = strconv.ParseUint(value, 10, 64)
		case "vram mem":
			c.memory = parseOldSize(value)
		case "gtt mem":
			c.gtt = parseOldSize(value)
		}
	}
	return c, c.id != 0 && model.IsPCIAddress(c.address)
}

func parseOldSize(value string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 64)
	if err != nil || n > maxMemory>>10 {
		return 0
	}
	return n << 10
}

// maxMemory is more than any GPU has, and so little that no sum overflows.
const maxMemory = 1 << 48
