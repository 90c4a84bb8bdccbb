// SPDX-License-Identifier: Apache-2.0

// Package pci reads the PCIe links of HCAs and GPUs from /sys/bus/pci/devices: speed and width, the errors that both
// ends detected (AER), the power limit of the slot, the place of each function in the tree of bridges, their ACS, and
// the HCA of each Data Direct function, by its Vital Product Data (VPD).
//
// Speed, width and slot are registers of the function, which the kernel reads at each read of a file. Such a read would
// wake a suspended function, so its files are left out. So the source is for the background, at an interval of a
// minute. Error counters are in the kernel's memory.
//
// The link of a function is read at both ends: max_link_speed applies to the function itself, and the port above may be
// slower. The end that detects an error counts it. VFs have no link of their own and are left out.
package pci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	Sysfs string // mount point of sysfs: /sys
	// Wait is how long Read waits for VPDs and registers of bridges that it began to read; 0 is half a second. A later
	// Read takes a late VPD, and reads the registers again.
	Wait time.Duration
}

// Source reads the PCI functions of the node. Read must not be called concurrently.
type Source struct {
	devices string
	buffer  []byte
	wait    time.Duration
	calls   hang.Group[device, result] // reads of VPDs and of bridges
	vpds    map[device]*vpdRead
}

// device is a function while it exists: its replacement has another directory in sysfs.
type device struct {
	address string
	inode   uint64
}

// result is the result of a read: the UUID of a VPD, or the other fields of a bridge.
type result struct {
	uuid      string
	acs       model.ACS
	slotPower model.Optional
}

// maxFunctions is more than the controllers and GPUs of a node.
const maxFunctions = 512

// New returns a Source.
func New(o Options) (*Source, error) {
	return &Source{
		devices: filepath.Join(o.Sysfs, "bus/pci/devices"), buffer: make([]byte, os.Getpagesize()),
		wait: cmp.Or(o.Wait, time.Second/2),
	}, nil
}

// Name returns "pci".
func (s *Source) Name() string { return "pci" }

// Close returns nil.
func (s *Source) Close() error { return nil }

// Read returns PCI, sorted by address. The error wraps model.ErrAbsent without a network controller or GPU. An
// unreadable file drops only its own value.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	entries, err := os.ReadDir(s.devices)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return model.Snapshot{}, fmt.Errorf("%s: the node has no PCI bus: %w", s.devices, model.ErrAbsent)
	case err != nil:
		return model.Snapshot{}, fmt.Errorf("reading PCI functions: %w", err)
	}
	found := []model.PCIFunction{}
	for _, e := range entries {
		if !isAddress(e.Name()) || !s.wanted(e.Name()) {
			continue
		}
		if len(found) == maxFunctions {
			err := fmt.Errorf("%s has more than %d controllers and GPUs: some are missing", s.devices, maxFunctions)
			s.readBridges(ctx, found)
			return model.Snapshot{PCI: found}, err
		}
		if ctx.Err() != nil {
			return model.Snapshot{}, fmt.Errorf("reading PCI functions: %w", ctx.Err())
		}
		found = append(found, s.function(e.Name()))
	}
	if len(found) == 0 {
		return model.Snapshot{}, fmt.Errorf("%s: no network controller and no GPU: %w", s.devices, model.ErrAbsent)
	}
	s.readBridges(ctx, found)
	s.readVPDs(ctx, found)
	return model.Snapshot{PCI: found}, nil
}

// classes are the base classes of network controllers (HCAs of all link layers), display controllers and processing accelerators
// (include/linux/pci_ids.h).
var classes = []string{"0x02", "0x03", "0x12"}

// wanted reports whether a function is of a wanted class, or Data Direct, and not a VF.
func (s *Source) wanted(address string) bool {
	class, id := s.text(address, "class"), s.id(address)
	direct := (&model.PCIFunction{ID: id}).IsDataDirect()
	if !direct && !slices.ContainsFunc(classes, func(c string) bool { return strings.HasPrefix(class, c) }) {
		return false
	}
	_, err := os.Lstat(s.path(address, "physfn"))
	return errors.Is(err, os.ErrNotExist)
}

func (s *Source) function(address string) model.PCIFunction {
	f := model.PCIFunction{
		Address: address, PCIEnd: s.end(address), ID: s.id(address), Class: s.text(address, "class"), Path: s.place(address),
		Driver: linked(s.path(address, "driver")), IOMMUGroup: s.iommuGroup(address),
	}
	if n := s.text(address, "numa_node"); model.IsDigits(n) { // -1 if unknown
		f.NUMANode = n
	}
	if up := upstream(f.Path); up != "" {
		f.Upstream = model.PCIUpstream{Address: up, PCIEnd: s.end(up)}
	}
	return f
}

// linked returns the name of the target of a symbolic link, or "": driver leads to the bound driver.
func linked(link string) string {
	target, err := os.Readlink(link)
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// iommuGroup returns the number of a function's IOMMU group, from the link iommu_group: /sys/kernel/iommu_groups/12.
func (s *Source) iommuGroup(address string) string {
	target, err := os.Readlink(s.path(address, "iommu_group"))
	switch group := filepath.Base(target); {
	case errors.Is(err, os.ErrNotExist) && inode(s.path(address, "")) != 0:
		return model.NoIOMMUGroup
	case err != nil || !model.IsDigits(group):
		return ""
	default:
		return group
	}
}

// id returns vendor and device, 15b3:101b, or "" if they cannot be read.
func (s *Source) id(address string) string {
	vendor, ok := strings.CutPrefix(s.text(address, "vendor"), "0x")
	device, found := strings.CutPrefix(s.text(address, "device"), "0x")
	if !ok || !found {
		return ""
	}
	return vendor + ":" + device
}

// place returns where a function is, from the target of its link: ../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0.
func (s *Source) place(address string) []string {
	target, err := os.Readlink(s.path(address, ""))
	if err != nil {
		return nil
	}
	return parsePlace(target)
}

// upstream returns the address of the port above a function, or "".
func upstream(place []string) string {
	if len(place) < 2 || !isAddress(place[len(place)-2]) {
		return ""
	}
	return place[len(place)-2]
}

// end reads one end of a link.
func (s *Source) end(address string) model.PCIEnd {
	var end model.PCIEnd
	if !s.suspended(address) {
		end.Link = model.PCILink{
			Speed: parseSpeed(s.read(address, "current_link_speed")), MaxSpeed: parseSpeed(s.read(address, "max_link_speed")),
			Width: parseWidth(s.read(address, "current_link_width")), MaxWidth: parseWidth(s.read(address, "max_link_width")),
		}
	}
	for _, severity := range []string{"correctable", "nonfatal", "fatal"} {
		if errs, ok := parseAER(s.read(address, "aer_dev_"+severity), severity); ok {
			end.AER = append(end.AER, errs)
		}
	}
	return end
}

// suspended reports whether runtime power management has suspended a function. Without CONFIG_PM the file is missing.
func (s *Source) suspended(address string) bool {
	return s.text(address, "power/runtime_status") == "suspended"
}

// read returns an attribute, valid until the next call, or nil if it is unreadable.
func (s *Source) read(address, name string) []byte {
	b, err := boundedfile.ReadOnce(s.path(address, name), s.buffer)
	if err != nil {
		return nil
	}
	return b
}

func (s *Source) text(address, name string) string {
	const limit = 64
	return boundedfile.Line(s.read(address, name), limit)
}

func (s *Source) path(address, name string) string { return filepath.Join(s.devices, address, name) }

var addressFormat = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

func isAddress(name string) bool { return addressFormat.MatchString(name) }
