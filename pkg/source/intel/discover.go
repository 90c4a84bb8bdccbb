// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// place is the location of a GPU. It is found without calling its driver.
type place struct {
	path     string // device directory
	cardPath string // directory of its card: DEVICE/drm/card0
	address  string // PCI
	driver   string // i915 or xe
	nodes    []string
	minors   []uint32 // of the nodes: the kernel names them by their minor number
}

// maxCards is the maximum number of GPUs that are read.
const maxCards = 64

// discover lists the GPUs with an Intel driver by PCI address, from the links of class/drm.
func discover(sysfs string) []place {
	class := &drm.Directory{Path: filepath.Join(sysfs, "class/drm")}
	places := map[string]*place{}
	for _, name := range class.Names("") {
		number := strings.TrimPrefix(strings.TrimPrefix(name, "card"), "renderD")
		minor, err := strconv.ParseUint(number, 10, 20)
		if err != nil || number == name {
			continue // a connector, or the version
		}
		link, err := os.Readlink(filepath.Join(class.Path, name))
		if err != nil {
			continue
		}
		node := filepath.Join(class.Path, link)
		device := filepath.Dir(filepath.Dir(node)) // DEVICE/drm/NAME
		p := places[device]
		if p == nil {
			address, driver := filepath.Base(device), driverOf(device)
			if len(places) >= maxCards || !model.IsPCIAddress(address) || driver != "i915" && driver != "xe" {
				continue
			}
			p = &place{path: device, address: address, driver: driver}
			places[device] = p
		}
		if strings.HasPrefix(name, "card") {
			p.cardPath = node
		}
		p.nodes, p.minors = append(p.nodes, "/dev/dri/"+name), append(p.minors, uint32(minor))
	}
	list := make([]place, 0, len(places))
	for _, p := range places {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b place) int {
		return cmp.Or(len(a.address)-len(b.address), strings.Compare(a.address, b.address))
	})
	return list
}

func driverOf(device string) string {
	link, _ := os.Readlink(filepath.Join(device, "driver")) // empty without a driver
	return filepath.Base(link)
}
