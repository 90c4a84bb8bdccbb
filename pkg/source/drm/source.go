// SPDX-License-Identifier: Apache-2.0

// Package drm reads how the kernel's Direct Rendering Manager numbers GPUs,
// whoever makes them.
//
// Everything is in the symbolic links of /sys/class/drm: a card's own link names
// the device that it is of, and with it the PCI function; a render node of the
// same device belongs to the card; the device's driver link names the driver. No
// attribute is read, so that no GPU is woken. /dev/dri/by-path, which others read,
// is made by udev from the same links, and is missing where there is no udev.
//
// It is read on the scrape: a directory and one lstat for each card. As long as
// these are the same links, what they say cannot have changed and is not read
// again; a card that was removed and added again has another inode.
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
	Sysfs string // where sysfs is mounted: /sys
}

// Source reads the DRI devices of the node.
type Source struct {
	class string

	mu    sync.Mutex
	links []link // of the cards that devices was read from
	known []model.DRIDevice
}

// link is the symbolic link of a card, as it can be told from one that is made
// later under the same name.
type link struct {
	name    string
	inode   uint64
	changed time.Time
}

// New makes a Source.
func New(o Options) (*Source, error) { return &Source{class: filepath.Join(o.Sysfs, "class/drm")}, nil }

// Name returns "drm".
func (s *Source) Name() string { return "drm" }

// maxCards is more than a node with 16 accelerators in 8 partitions each has.
const maxCards = 1024

// Read returns DRI, sorted by number. The error wraps model.ErrAbsent where the
// kernel has no DRM or no card. More than maxCards are an error, and the first of
// them are returned.
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
			continue // gone since
		}
		links = append(links, link{e.Name(), inode(info), info.ModTime()})
	}
	if len(links) == 0 {
		s.links, s.known = nil, nil
		return model.Snapshot{}, fmt.Errorf("%s: no card: %w", s.class, model.ErrAbsent)
	}
	if len(links) > maxCards {
		links = links[:maxCards]
		err = fmt.Errorf("%s has more than %d cards: the rest is left out", s.class, maxCards)
	}
	if !slices.Equal(links, s.links) {
		s.known = s.devices(links, entries)
		s.links = links
		if len(s.known) < len(links) {
			s.links = nil // one went while we looked: look again
		}
	}
	return model.Snapshot{DRI: slices.Clone(s.known)}, err
}

// Close does nothing.
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

// device is the directory of the device that a node is of:
// ../../devices/pci0000:00/0000:00:01.0 for .../drm/card0 below it.
func (s *Source) device(node string) (string, bool) {
	target, err := os.Readlink(filepath.Join(s.class, node))
	if err != nil {
		return "", false
	}
	return path.Dir(path.Dir(target)), true
}

var pciFunction = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciAddress is the PCI function that a device is, or that it is the virtio device
// of. A display behind a USB controller is not that controller, and a partition of
// an accelerator is a platform device.
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

// number is N of a name like cardN; a connector, card0-DP-1, is none.
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
