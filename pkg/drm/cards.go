// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
)

// A Card is a device with DRM nodes: a GPU, a partition of one, or a display.
type Card struct {
	Path       string // directory of the device in sysfs
	PCIAddress string // of the device, or of the device with this virtio device; empty for a display on USB, or a partition
	Driver     string // amdgpu, i915, xe; empty without a driver
	CardPath   string // directory of the card's own node: PATH/drm/card0; empty if the card has no such node
	Nodes      []string
	Minors     []uint32 // of Nodes: the kernel names them by their minor number
}

// Equal reports whether nothing of two cards differs.
func (c Card) Equal(o Card) bool {
	return c.Path == o.Path && c.CardPath == o.CardPath && c.Driver == o.Driver && slices.Equal(c.Nodes, o.Nodes)
}

// Cards lists the cards of the node for its readers, in general each of them a source. The zero value is not ready: see NewCards.
type Cards struct {
	class   string
	changes *hotplug.Subscription

	mu    sync.Mutex
	links []link // of the nodes in cards
	cards []Card
	err   error
	at    time.Time // of the last listing
	count int       // of listings
}

// link identifies the symbolic link of a node, also among later links with the same name.
type link struct {
	name    string
	inode   uint64
	changed time.Time
}

// NewCards returns the cards in a sysfs, which it lists again when w, if any, announces a change. It lists none yet.
func NewCards(sysfs string, w *hotplug.Watcher) *Cards {
	return &Cards{class: filepath.Join(sysfs, "class/drm"), changes: w.Devices("drm")}
}

// A Reader returns the cards to one of those that share Cards.
type Reader struct {
	cards *Cards
	seen  int // the number of the last listing that List returned
}

// Reader returns a new reader.
func (c *Cards) Reader() *Reader { return &Reader{cards: c} }

// shared is how long a listing is returned to further readers: the sources of a refresh read at the same moment.
const shared = 100 * time.Millisecond

// maxCards is more than the cards of a node with 16 accelerators with 8 partitions each.
const maxCards = 1024

// List returns the cards that exist now, in the order of their names. The caller must not change them. The error wraps
// model.ErrAbsent if the kernel has no DRM or no card. With more than maxCards cards it returns the first ones and an error.
//
// All data comes from the symbolic links of /sys/class/drm. A listing reads this directory and calls lstat for each node. While
// the links are the same, their targets cannot change and are not read again; a card that was removed and added again has
// another inode. Readers share a listing. If changes may not be announced, no reader gets a listing twice.
func (r *Reader) List() ([]Card, error) {
	c := r.cards
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stale(r.seen) {
		c.at = time.Now()
		c.count++
		c.list()
	}
	r.seen = c.count
	return c.cards, c.err
}

// stale reports whether the cards must be listed for a reader that has seen a listing.
func (c *Cards) stale(seen int) bool {
	select {
	case <-c.changes.Changed():
		return true
	default:
	}
	interval := c.changes.Interval(shared)
	failed := c.links == nil && !errors.Is(c.err, model.ErrAbsent)
	return time.Since(c.at) > interval || seen == c.count && (interval == shared || failed)
}

// Driven returns the cards with a PCI address and one of the drivers, sorted by address, but not more than limit.
func Driven(cards []Card, limit int, drivers ...string) []Card {
	var list []Card
	for _, c := range cards {
		if len(list) < limit && c.PCIAddress != "" && slices.Contains(drivers, c.Driver) {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b Card) int {
		return cmp.Or(len(a.PCIAddress)-len(b.PCIAddress), strings.Compare(a.PCIAddress, b.PCIAddress))
	})
	return list
}

func (c *Cards) list() {
	entries, err := os.ReadDir(c.class)
	switch {
	case os.IsNotExist(err):
		c.forget(fmt.Errorf("%s: the kernel has no GPU driver: %w", c.class, model.ErrAbsent))
		return
	case err != nil:
		c.forget(fmt.Errorf("reading DRI devices: %w", err))
		return
	}
	var links []link
	cards := 0
	for _, e := range entries {
		_, card, is := minorOf(e.Name())
		if card {
			cards++
		}
		if !is || card && cards > maxCards {
			continue
		}
		if info, err := e.Info(); err == nil { // not removed since
			links = append(links, link{e.Name(), inode(info), info.ModTime()})
		}
	}
	if c.err = nil; cards > maxCards {
		c.err = fmt.Errorf("%s has more than %d cards: some are missing", c.class, maxCards)
	}
	if cards == 0 || len(links) == 0 {
		c.forget(fmt.Errorf("%s: no card: %w", c.class, model.ErrAbsent))
		return
	}
	if slices.Equal(links, c.links) {
		return
	}
	c.links = links
	if !c.read() {
		c.links = nil // a node was removed during the read: read again
	}
}

func (c *Cards) forget(err error) { c.links, c.cards, c.err = nil, nil, err }

// read reads the targets of the links: ../../devices/pci0000:00/0000:00:01.0/drm/card0. It returns false if it could not read all.
func (c *Cards) read() bool {
	all := true
	c.cards = make([]Card, 0, len(c.links))
	for _, l := range c.links {
		target, err := os.Readlink(filepath.Join(c.class, l.name))
		if err != nil {
			all = false
			continue
		}
		node := filepath.Join(c.class, target)
		device := filepath.Dir(filepath.Dir(node))
		i := slices.IndexFunc(c.cards, func(c Card) bool { return c.Path == device })
		if i < 0 {
			i = len(c.cards)
			c.cards = append(c.cards, Card{Path: device, PCIAddress: pciAddress(device), Driver: driverOf(device)})
		}
		p := &c.cards[i]
		minor, card, _ := minorOf(l.name)
		if card {
			p.CardPath = node
		}
		p.Nodes, p.Minors = append(p.Nodes, "/dev/dri/"+l.name), append(p.Minors, minor)
	}
	return all
}

// minorOf returns the minor number of a node, cardN or renderDN, and whether it is a card. A connector, card0-DP-1, is no node.
func minorOf(name string) (minor uint32, card, is bool) {
	digits, card := strings.CutPrefix(name, "card")
	if !card {
		digits, is = strings.CutPrefix(name, "renderD")
	}
	n, err := strconv.ParseUint(digits, 10, 20)
	return uint32(n), card && err == nil, (card || is) && err == nil
}

// driverOf returns the driver of a device, "" if no driver is bound.
func driverOf(device string) string {
	link, err := os.Readlink(filepath.Join(device, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(link)
}

// pciAddress returns the PCI function of a device, or of its virtio device. A display on USB
// does not get the address of the USB controller, and a partition of an accelerator is a
// platform device.
func pciAddress(device string) string {
	name := filepath.Base(device)
	if strings.HasPrefix(name, "virtio") {
		name = filepath.Base(filepath.Dir(device))
	}
	if !model.IsPCIAddress(name) {
		return ""
	}
	return name
}

func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Ino
	}
	return 0
}
