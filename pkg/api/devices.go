// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

type driDevice struct {
	Card       string `json:"card"`
	Render     string `json:"render"` // empty if the device has no render node
	PCIAddress string `json:"pci_addr"`
}

// driEntry is an entry of /driMapping.
type driEntry struct {
	driDevice
	CardID int    `json:"card_id"`
	Driver string `json:"driver"`
}

// driMapping answers /driMapping: the devices of the Direct Rendering Manager of all vendors, by the paths of their
// cards.
func driMapping(k *Known, _ *http.Request) (any, error) {
	out := map[string]driEntry{}
	for _, d := range k.Facts.DRI {
		if d.Card != "" {
			out[d.Card] = driEntry{driDevice{d.Card, d.Render, d.PCIAddress}, d.CardID, d.Driver}
		}
	}
	return k.inPart(out, len(out), k.missing(k.Facts.DRI != nil, "drm"))
}

// HCA is one HCA of /rdma with its first port.
type HCA struct {
	Index        uint32 `json:"if_index"`
	Name         string `json:"if_name"`
	NodeGUID     string `json:"node_guid"` // in pairs of digits, like all GUIDs here
	SysImageGUID string `json:"sys_image_guid"`
	PortGUID     string `json:"port_guid"`
	LinkLayer    string `json:"link_layer"`
	// GIDs are the GIDs of all ports. The Primus Lens node exporter has the fields above.
	GIDs []GID `json:"gids,omitempty"`
	// PKeys has all InfiniBand ports.
	PKeys []PKey `json:"pkeys,omitempty"`
	// LIDs has the InfiniBand ports with a LID.
	LIDs []LID `json:"lids,omitempty"`
}

// LID is the first LID of a port. It is unique in its subnet only.
type LID struct {
	Port int    `json:"port"`
	LID  uint32 `json:"lid"`
}

// PKey is an entry of the P_Key table of a port.
type PKey struct {
	Port       int    `json:"port"`
	Index      int    `json:"index"`
	Partition  string `json:"partition"`
	Membership string `json:"membership"`
}

// GID is an entry of the GID table of a port.
type GID struct {
	Port      int    `json:"port"`
	Index     int    `json:"index"`
	Type      string `json:"type"`
	Address   string `json:"address"`
	Interface string `json:"interface"` // empty on InfiniBand
}

// rdmaList answers /rdma.
func rdmaList(k *Known, _ *http.Request) (any, error) {
	out := []HCA{}
	for i := range k.Facts.HCAs {
		h := &k.Facts.HCAs[i]
		e := HCA{
			Index: h.Index, Name: h.Name, NodeGUID: pairs(h.NodeGUID), SysImageGUID: pairs(h.SysImageGUID),
		}
		if len(h.Ports) > 0 {
			e.PortGUID, e.LinkLayer = pairs(h.Ports[0].PortGUID), h.Ports[0].LinkLayer
		}
		e.GIDs, e.PKeys, e.LIDs = gidsOf(h), pkeysOf(h), lidsOf(h)
		out = append(out, e)
	}
	return k.inPart(out, len(out), k.missing(k.Facts.HCAs != nil, "rdma"))
}

func gidsOf(h *model.HCA) []GID {
	var gids []GID
	for i := range h.Ports {
		for _, g := range h.Ports[i].GIDs {
			gids = append(gids, GID{h.Ports[i].Number, g.Index, string(g.Type), g.Address.String(), g.Netdev})
		}
	}
	return gids
}

func pkeysOf(h *model.HCA) []PKey {
	var keys []PKey
	for i := range h.Ports {
		for _, k := range h.Ports[i].PKeys {
			membership := "limited"
			if k.Full {
				membership = "full"
			}
			keys = append(keys, PKey{h.Ports[i].Number, k.Index, fmt.Sprintf("0x%04x", k.Partition), membership})
		}
	}
	return keys
}

func lidsOf(h *model.HCA) []LID {
	var lids []LID
	for i := range h.Ports {
		p := &h.Ports[i]
		if lid, err := strconv.ParseUint(p.LID, 0, 32); err == nil && lid > 0 && p.LinkLayer == "InfiniBand" {
			lids = append(lids, LID{p.Number, uint32(lid)})
		}
	}
	return lids
}

// pairs formats a GUID in pairs of digits, as the Primus Lens node exporter does.
func pairs(guid string) string {
	digits, ok := strings.CutPrefix(guid, "0x")
	if !ok || len(digits) != 16 {
		return guid
	}
	return string(bytes.Join(slices.Collect(slices.Chunk([]byte(digits), 2)), []byte(":")))
}
