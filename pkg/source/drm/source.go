// SPDX-License-Identifier: Apache-2.0

// Package drm provides the numbers of GPUs in the kernel's Direct Rendering Manager, for all
// vendors: see Cards.List of the ground package of the same name.
package drm

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	Sysfs   string           // mount point of sysfs: /sys
	Hotplug *hotplug.Watcher // may be nil
}

// Source reads the DRI devices of the node.
type Source struct {
	cards *drm.Cards
	all   *drm.Reader
}

// New returns a Source.
func New(o Options) (*Source, error) {
	cards := drm.NewCards(o.Sysfs, o.Hotplug)
	return &Source{cards: cards, all: cards.Reader()}, nil
}

// Cards returns the cards that the source lists, for the sources of vendors.
func (s *Source) Cards() *drm.Cards { return s.cards }

// Name returns "drm".
func (s *Source) Name() string { return "drm" }

// Read returns DRI, sorted by number, and the error of drm.Reader.List.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	cards, err := s.all.List()
	if cards == nil {
		return model.Snapshot{}, err
	}
	devices := make([]model.DRIDevice, 0, len(cards))
	for _, c := range cards {
		i := slices.Index(c.Nodes, "/dev/dri/"+filepath.Base(c.CardPath))
		if i < 0 {
			continue // no card, or an accelerator that only renders
		}
		d := model.DRIDevice{Card: c.Nodes[i], CardID: int(c.Minors[i]), PCIAddress: c.PCIAddress, Driver: c.Driver}
		if render := slices.IndexFunc(c.Nodes, func(n string) bool { return strings.HasPrefix(n, "/dev/dri/renderD") }); render >= 0 {
			d.Render = c.Nodes[render]
		}
		devices = append(devices, d)
	}
	slices.SortFunc(devices, func(a, b model.DRIDevice) int { return a.CardID - b.CardID })
	return model.Snapshot{DRI: devices}, err
}

// Close returns nil.
func (s *Source) Close() error { return nil }
