// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
)

// place is the location of a card. It is found without calling the driver.
type place struct {
	path       string // device directory
	address    string // PCI
	nodes      []string
	partitions [][]string // nodes of each partition after the first, which has those of the card
}

// maxCards is the maximum number of cards that are read.
const maxCards = 64

// discover lists the cards with the amdgpu driver by PCI address, from the links of class/drm.
// The nodes of further partitions of an accelerator belong to devices of their own,
// amdgpu_xcp.N; parents maps the minor numbers of their render nodes to their cards.
func discover(sysfs string, parents map[int]string) []place {
	dir := filepath.Join(sysfs, "class/drm")
	names, err := drm.ReadNames(dir, 4096)
	if err != nil {
		return nil
	}
	slices.Sort(names) // card0 … before renderD128 …
	places := map[string]*place{}
	divided := map[string][]string{} // nodes by the device of a partition
	for _, name := range names {
		number := strings.TrimPrefix(strings.TrimPrefix(name, "card"), "renderD")
		if _, err := strconv.ParseUint(number, 10, 20); err != nil || number == name {
			continue // a connector, or the version
		}
		link, err := os.Readlink(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		device := filepath.Dir(filepath.Dir(filepath.Join(dir, link))) // DEVICE/drm/NAME
		node := "/dev/dri/" + name
		address := filepath.Base(device)
		switch p := places[device]; {
		case strings.HasPrefix(address, "amdgpu_xcp"):
			divided[device] = append(divided[device], node)
		case p != nil:
			p.nodes = append(p.nodes, node)
		case len(places) < maxCards && isPCI(address) && driverOf(device) == "amdgpu":
			places[device] = &place{path: device, address: address, nodes: []string{node}}
		}
	}
	list := make([]place, 0, len(places))
	for _, p := range places {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b place) int {
		return cmp.Or(len(a.address)-len(b.address), strings.Compare(a.address, b.address))
	})
	for _, nodes := range divided {
		parent := parents[minor(nodes)]
		if i := slices.IndexFunc(list, func(p place) bool { return slot0(p.address) == parent }); i >= 0 {
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

func driverOf(device string) string {
	link, _ := os.Readlink(filepath.Join(device, "driver")) // empty without a driver
	return filepath.Base(link)
}

// isPCI reports whether a name is a PCI address: 0000:c1:00.0.
func isPCI(name string) bool {
	domain, rest, ok := strings.Cut(name, ":")
	return ok && len(domain) >= 4 && len(rest) == len("c1:00.0") && rest[2] == ':' && rest[5] == '.'
}
