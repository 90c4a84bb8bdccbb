// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
)

// place is a card with its partitions. It is found without calling the driver.
type place struct {
	drm.Card
	partitions [][]string // nodes of each partition after the first, which has the card's nodes
}

// maxCards is the maximum number of cards that are read.
const maxCards = 64

// discover returns the cards with the amdgpu driver by PCI address. The nodes of further partitions of an accelerator belong
// to devices of their own, amdgpu_xcp.N; parents maps the minor numbers of their render nodes to their cards.
func discover(all []drm.Card, parents map[int]string) []place {
	cards := drm.Driven(all, maxCards, "amdgpu")
	list := make([]place, len(cards))
	for i, c := range cards {
		list[i].Card = c
	}
	var divided [][]string // nodes of each partition
	for _, c := range all {
		if strings.HasPrefix(filepath.Base(c.Path), "amdgpu_xcp") {
			divided = append(divided, c.Nodes)
		}
	}
	for _, nodes := range divided {
		parent := parents[minor(nodes)]
		if i := slices.IndexFunc(list, func(p place) bool { return slot0(p.PCIAddress) == parent }); i >= 0 {
			list[i].partitions = append(list[i].partitions, nodes)
		}
	}
	for i := range list {
		slices.SortFunc(list[i].partitions, func(a, b []string) int { return minor(a) - minor(b) })
	}
	return list
}

// renderParents returns the card of each render node, as KFD reports it.
func renderParents(nodes []kfdNode) map[int]string {
	parents := map[int]string{}
	for _, n := range nodes {
		if n.renderMinor > 0 {
			parents[n.renderMinor] = slot0(n.address)
		}
	}
	return parents
}

// slot0 returns an address with function 0: KFD uses the function for the partition number.
func slot0(address string) string {
	device, _, _ := strings.Cut(address, ".")
	return device
}

// minor returns the minor number of the render node among nodes.
func minor(nodes []string) int {
	for _, n := range nodes {
		if _, number, ok := strings.Cut(n, "renderD"); ok {
			v, _ := strconv.Atoi(number)
			return v
		}
	}
	return 0
}
