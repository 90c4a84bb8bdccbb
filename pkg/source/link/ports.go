// SPDX-License-Identifier: Apache-2.0

package link

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

type port struct {
	device string
	number int
}

// iface is an interface behind ports of HCAs.
type iface struct {
	name    string
	index   int
	address string // as in sysfs: 52:54:00:12:34:56
	driver  string // empty if the interface belongs to no device
	// ports are the ports with the interface; a physical function without an HCA has no ports.
	ports      []port
	infiniband bool // IPoIB
	// bond is the bond of a leg, or ""; speed is the rate of a leg in bits per second, or 0 if unknown.
	bond      string
	bondIndex int
	speed     float64
	// follows is set if the ports have the state of the bond: the HCA has all legs. Several HCAs each have the state of
	// their leg.
	follows bool
}

const (
	maxInterfaces = 1024
	maxPerDevice  = 16 // in switchdev mode each VF has a representor in device/net of the PF
	maxLower      = 4  // interfaces on top of each other: a VLAN on a bond
)

// finder finds interfaces in sysfs. It reads no file that takes RTNL, such as carrier and phys_port_name, except speed
// of a bond's legs: no other file has it, and the rate of the port is their sum.
type finder struct {
	sysfs  string
	chosen func(device string) bool
	buf    []byte
	found  map[string]*iface
}

// find lists the interfaces behind the ports of the chosen HCAs, sorted by name. The interfaces of a bond or below a
// VLAN replace it, because they have the pause, FEC and links. The port of a VF is the port of its PF.
func find(sysfs string, chosen func(device string) bool) ([]iface, error) {
	f := &finder{sysfs, chosen, make([]byte, 4<<10), map[string]*iface{}}
	class := filepath.Join(sysfs, "class/infiniband")
	devices, err := os.ReadDir(class)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list HCAs: %w", err)
	}
	for _, d := range devices {
		if chosen(d.Name()) {
			f.device(filepath.Join(class, d.Name()), d.Name())
		}
	}
	list := make([]iface, 0, len(f.found))
	for _, name := range slices.Sorted(maps.Keys(f.found)) {
		list = append(list, *f.found[name])
	}
	return list, nil
}

func (f *finder) device(dir, name string) {
	if _, err := os.Stat(filepath.Join(dir, "device/physfn")); err == nil {
		for _, n := range f.interfaces(filepath.Join(dir, "device/physfn")) {
			f.add(n, nil, false)
		}
		return
	}
	ports, err := os.ReadDir(filepath.Join(dir, "ports"))
	if err != nil {
		return
	}
	for _, p := range ports {
		number, err := strconv.Atoi(p.Name())
		if err != nil {
			continue
		}
		infiniband := f.line(dir, "ports", p.Name(), "link_layer") == "InfiniBand"
		if n := f.netdev(dir, p.Name(), number, infiniband); n != "" {
			f.lower(f.bondOf(n), &port{name, number}, infiniband, "", 0)
		}
	}
}

// netdev returns the interface of a port: of its first GID; of the whole device, for Soft-RoCE; or the interface of the
// PCI function with the number of the port. Only the last way finds an IPoIB interface. Interfaces of further
// partitions have longer names.
func (f *finder) netdev(dir, port string, number int, infiniband bool) string {
	if !infiniband {
		if n := cmp.Or(f.line(dir, "ports", port, "gid_attrs/ndevs/0"), f.line(dir, "parent")); n != "" {
			return n
		}
	}
	for _, n := range f.interfaces(filepath.Join(dir, "device")) {
		ipoib := f.line(f.netdir(n), "type") == "32" // ARPHRD_INFINIBAND
		if ipoib == infiniband && f.line(f.netdir(n), "dev_port") == strconv.Itoa(number-1) {
			return n
		}
	}
	return ""
}

// interfaces lists the interfaces of a PCI function, the shortest names first.
func (f *finder) interfaces(function string) []string {
	entries, err := os.ReadDir(filepath.Join(function, "net"))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(len(a), len(b)) })
	return names[:min(len(names), maxPerDevice)]
}

// lower adds an interface, or the interfaces below a bond or VLAN.
func (f *finder) lower(name string, p *port, infiniband bool, bond string, depth int) {
	kind := f.value(f.netdir(name), "uevent", "DEVTYPE")
	if (kind != "bond" && kind != "vlan") || depth == maxLower {
		f.add(name, p, infiniband)
		if i := f.found[name]; i != nil && bond != "" {
			i.bond, i.speed = bond, f.speed(name)
			i.bondIndex, _ = strconv.Atoi(f.line(f.netdir(bond), "ifindex"))
			i.follows = !slices.ContainsFunc(f.legs(bond), func(leg string) bool { return f.ofAnother(leg, p.device) })
		}
		return
	}
	if kind == "bond" {
		bond = name
	}
	for _, leg := range f.legs(name) {
		if !f.ofAnother(leg, p.device) {
			f.lower(leg, p, infiniband, bond, depth+1)
		}
	}
}

func (f *finder) legs(name string) (legs []string) {
	links, err := filepath.Glob(filepath.Join(f.netdir(name), "lower_*"))
	if err != nil {
		return nil
	}
	for _, l := range links[:min(len(links), maxPerDevice)] {
		legs = append(legs, strings.TrimPrefix(filepath.Base(l), "lower_"))
	}
	return legs
}

// bondOf returns the bond of a leg, or the interface itself: the first GID of a port on a bond may belong to the leg on
// which the bond sends.
func (f *finder) bondOf(name string) string {
	master, err := os.Readlink(filepath.Join(f.netdir(name), "master"))
	if err != nil || f.value(f.netdir(filepath.Base(master)), "uevent", "DEVTYPE") != "bond" {
		return name
	}
	return filepath.Base(master)
}

// ofAnother reports whether an interface belongs to another HCA. Functions whose HCAs are merged in the bond share an
// HCA.
func (f *finder) ofAnother(name, device string) bool {
	hcas, err := os.ReadDir(filepath.Join(f.netdir(name), "device/infiniband"))
	return err == nil && len(hcas) > 0 && !slices.ContainsFunc(hcas, func(e os.DirEntry) bool { return e.Name() == device })
}

// add adds an interface with one of its ports. The interface of a VF's PF has no port unless the PF has an HCA; only
// the first interface of the PF belongs to its port.
func (f *finder) add(name string, p *port, infiniband bool) {
	i := f.found[name]
	if i == nil {
		index, err := strconv.Atoi(f.line(f.netdir(name), "ifindex"))
		if err != nil || len(f.found) >= maxInterfaces {
			return
		}
		i = &iface{name: name, index: index, address: f.line(f.netdir(name), "address"), infiniband: infiniband}
		if driver, err := os.Readlink(filepath.Join(f.netdir(name), "device/driver")); err == nil {
			i.driver = filepath.Base(driver)
		}
		f.found[name] = i
	}
	if p != nil && !slices.Contains(i.ports, *p) {
		i.ports = append(i.ports, *p)
	}
}

// speed returns the rate of an interface in bits per second, or 0 if unknown, as without a carrier. The file has Mb/s.
func (f *finder) speed(name string) float64 {
	megabits, err := strconv.ParseInt(f.line(f.netdir(name), "speed"), 10, 32)
	if err != nil || megabits <= 0 {
		return 0
	}
	return float64(megabits) * 1e6
}

// netdir returns the directory of an interface. A name with a slash has no directory.
func (f *finder) netdir(name string) string {
	return filepath.Join(f.sysfs, "class/net", filepath.Base(name))
}

// line returns the first line of a file, or "" if it cannot be read.
func (f *finder) line(path ...string) string {
	b, err := boundedfile.ReadOnce(filepath.Join(path...), f.buf)
	if err != nil {
		return ""
	}
	return boundedfile.Line(b, 64)
}

func (f *finder) value(dir, file, key string) string {
	b, err := boundedfile.ReadOnce(filepath.Join(dir, file), f.buf)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && k == key {
			return v
		}
	}
	return ""
}
