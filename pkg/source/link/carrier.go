// SPDX-License-Identifier: Apache-2.0

package link

import (
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// carrierReading is the carrier of an interface at one moment, from /sys/class/net/NAME. The kernel returns these files
// without RTNL and without the driver, so they can be read while a driver hangs. rtnetlink has the same counters, but
// its dump holds RTNL before about Linux 6.10, and lists all interfaces of the node.
type carrierReading struct {
	admin   bool // administratively up: IFF_UP in flags
	up      bool // operstate
	changes uint64
	downs   uint64
}

// readCarrier reads the carrier of an interface. It returns false if the interface is gone. If the carrier stays up
// with the same number of changes, losses and IFF_UP are also unchanged and not read: an interface that is set down has
// the operstate "down".
func readCarrier(dir string, buf []byte, last carrierReading) (r carrierReading, ok bool) {
	file := func(name string) string {
		b, err := boundedfile.ReadOnce(filepath.Join(dir, name), buf)
		if err != nil {
			return ""
		}
		return boundedfile.Line(b, 32)
	}
	state, changes := file("operstate"), file("carrier_changes")
	if last.admin && last.up && isUp(state) && changes == strconv.FormatUint(last.changes, 10) {
		return last, true
	}
	r, ok = parseCarrier(file("flags"), state, changes, file("carrier_down_count"))
	// The kernel sets operstate later than it counts: after one more loss than gains, the carrier that was up is down.
	lost, gained := int64(r.downs-last.downs), int64((r.changes-r.downs)-(last.changes-last.downs))
	r.up = r.up && (!last.up || lost <= gained)
	return r, ok
}

// readSetDown reports whether an interface was administratively set down, or false if unknown.
func readSetDown(dir string, buf []byte) bool {
	b, err := boundedfile.ReadOnce(filepath.Join(dir, "flags"), buf)
	if err != nil {
		return false
	}
	flags, err := strconv.ParseUint(strings.TrimPrefix(boundedfile.Line(b, 32), "0x"), 16, 32)
	return err == nil && flags&unix.IFF_UP == 0
}

// readBackup reports whether a bond does not send on a leg, from its file bonding_slave/state: active or backup. The
// kernel returns the file without RTNL.
func readBackup(dir string, buf []byte) bool {
	b, err := boundedfile.ReadOnce(filepath.Join(dir, "bonding_slave/state"), buf)
	return err == nil && boundedfile.Line(b, 32) == "backup"
}

func parseCarrier(flags, state, changes, downs string) (r carrierReading, ok bool) {
	f, err1 := strconv.ParseUint(strings.TrimPrefix(flags, "0x"), 16, 32)
	c, err2 := strconv.ParseUint(changes, 10, 32)
	d, err3 := strconv.ParseUint(downs, 10, 32)
	if err1 != nil || err2 != nil || err3 != nil {
		return carrierReading{}, false
	}
	return carrierReading{admin: f&unix.IFF_UP != 0, up: isUp(state), changes: c, downs: d}, true
}

// isUp reports whether an operstate means a carrier: "unknown" if its driver does not report more.
func isUp(state string) bool {
	switch state {
	case "up", "unknown", "dormant", "testing":
		return true
	}
	return false
}

// carrierWatch compares the readings of an interface and counts flaps.
//
// A flap is a loss of the carrier that ended, while the interface was administratively up in all readings.
// carrier_down_count also counts losses shorter than the interval of the readings. If the interface is set down and up
// between two readings, this counts too: the kernel does not distinguish it.
type carrierWatch struct {
	last    carrierReading
	flaps   uint64
	changed time.Time
	losses  uint64    // losses that have not ended
	down    time.Time // when the first of losses was noticed
	// The reason that the driver has reported since then.
	reason, detail string
}

// observe adds a reading, and returns the flap that ends with it.
func (w *carrierWatch) observe(r carrierReading, now time.Time) (flap model.LinkFlap, ended bool) {
	before := w.last
	w.last = r
	if r.changes != before.changes {
		w.changed = now
	}
	if !r.admin || !before.admin {
		w.losses, w.reason, w.detail = 0, "", ""
		return model.LinkFlap{}, false
	}
	if r.downs > before.downs {
		if w.losses == 0 {
			w.down, w.reason, w.detail = now, "", ""
		}
		w.losses += r.downs - before.downs
	}
	if !r.up || w.losses == 0 {
		return model.LinkFlap{}, false
	}
	flap = model.LinkFlap{Losses: w.losses, Down: w.down, Up: now, Reason: w.reason, Detail: w.detail}
	w.flaps += w.losses
	w.losses = 0
	return flap, true
}

// explain keeps the reason that the driver reports while the link is down.
func (w *carrierWatch) explain(p *model.Phy) {
	if w != nil && p != nil && p.Reason != "" && w.losses > 0 {
		w.reason, w.detail = p.Reason, p.Detail
	}
}

func (n *netdev) carrier() *model.Carrier {
	w := n.watch
	if w == nil {
		return nil
	}
	c := &model.Carrier{
		Up: w.last.up, Admin: w.last.admin, Changes: w.last.changes, Downs: w.last.downs, Flaps: w.flaps, Changed: w.changed,
	}
	switch {
	case !c.Admin:
		c.SetDown = n.name
	case n.bondDown:
		c.Admin, c.SetDown = false, n.bond
	}
	return c
}
