// SPDX-License-Identifier: Apache-2.0

// Package drm reads the numbers of GPUs in the kernel's Direct Rendering Manager, for all
// vendors.
//
// All data comes from the symbolic links of /sys/class/drm: a card's link names its device,
// and with it the PCI function; a render node of the same device belongs to the card; the
// device's driver link names the driver. No attribute is read, so no GPU is woken. udev makes
// /dev/dri/by-path from the same links; without udev it is missing.
//
// A scrape reads a directory and calls lstat for each card. While the links are the same,
// their targets cannot change and are not read again; a card that was removed and added again
// has another inode.
package drm

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	Sysfs string // mount point of sysfs: /sys
}

// Source reads the DRI devices of the node.
type Source struct {
	class string

	mu    sync.Mutex
	links []link // of the cards in devices
	known []model.DRIDevice
}

// link identifies the symbolic link of a card, also among later links with the same name.
type link struct {
	name    string
	inode   uint64
	changed time.Time
}

// New returns a Source.
func New(o Options) (*Source, error) { return &Source{class: filepath.Join(o.Sysfs, "class/drm")}, nil }

// Name returns "drm".
func (s *Source) Name() string { return "drm" }

// maxCards is more than the cards of a node with 16 accelerators with 8 partitions each.
const maxCards = 1024

// Read returns DRI, sorted by number. The error wraps model.ErrAbsent if the kernel has no DRM
// or no card. With more than maxCards cards it returns the first ones and an error.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries, err := os.ReadDir(s.class)
	switch {
	case os.IsNotExist(err):
		return model.Snapshot{}, fmt.Errorf("%s: the kernel has no GPU driver: %w", s.class, model.ErrAbsent)
	case err != nil:
		return model.Snapshot{}, fmt.Errorf("reading DRI devices: %w", err)
	}
	var links []link
	for _, e := range entries {
		if _, is := number(e.Name(), "card"); !is {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed since
		}
		links = append(links, link{e.Name(), inode(info), info.ModTime()})
	}
	if len(links) == 0 {
		s.links, s.known = nil, nil
		return model.Snapshot{}, fmt.Errorf("%s: no card: %w", s.class, model.ErrAbsent)
	}
	if len(links) > maxCards {
		links = links[:maxCards]
		err = fmt.Errorf("%s has more than %d cards: some are missing", s.class, maxCards)
	}
	if !slices.Equal(links, s.links) {
		s.known = s.devices(links, entries)
		s.links = links
		if len(s.known) < len(links) {
			s.links = nil // a card was removed during the read: read again
		}
	}
	return model.Snapshot{DRI: slices.Clone(s.known)}, err
}

// Close returns nil.
func (s *Source) Close() error { return nil }

// devices reads the links of all cards and render nodes.
func (s *Source) devices(cards []link, entries []fs.DirEntry) []model.DRIDevice {
	renders := map[string]string{} // by device
	for _, e := range entries {
		if _, is := number(e.Name(), "renderD"); is {
			if device, ok := s.device(e.Name()); ok {
				renders[device] = "/dev/dri/" + e.Name()
			}
		}
	}
	devices := make([]model.DRIDevice, 0, len(cards))
	for _, card := range cards {
		device, ok := s.device(card.name)
		if !ok {
			continue
		}
		id, _ := number(card.name, "card")
		d := model.DRIDevice{
			Card: "/dev/dri/" + card.name, CardID: id, Render: renders[device], PCIAddress: pciAddress(device),
		}
		if driver, err := os.Readlink(filepath.Join(s.class, card.name, "device/driver")); err == nil {
			d.Driver = path.Base(driver)
		}
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b model.DRIDevice) int { return a.CardID - b.CardID })
	return devices
}

// device returns the device directory of a node: ../../devices/pci0000:00/0000:00:01.0 for
// .../drm/card0 below it.
func (s *Source) device(node string) (string, bool) {
	target, err := os.Readlink(filepath.Join(s.class, node))
	if err != nil {
		return "", false
	}
	return path.Dir(path.Dir(target)), true
}

var pciFunction = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciAddress returns the PCI function of a device, or of its virtio device. A display on USB
// does not get the address of the USB controller, and a partition of an accelerator is a
// platform device.
func pciAddress(device string) string {
	name := path.Base(device)
	if strings.HasPrefix(name, "virtio") {
		name = path.Base(path.Dir(device))
	}
	if !pciFunction.MatchString(name) {
		return ""
	}
	return name
}

// number returns N of a name like cardN; a connector, card0-DP-1, has none.
func number(name, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok || digits == "" || digits[0] < '0' || digits[0] > '9' {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	return n, err == nil
}

func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
