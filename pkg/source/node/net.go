// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs/sysfs"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

const maxDevices = 8192

// netDevReader reads /proc/1/net/dev. node_exporter uses netlink, which returns the same counters for the network
// namespace of the caller. rx_nohandler, which only netlink has, is in sysfs.
type netDevReader struct {
	reader
	procfs, sysfs string
}

func (d *netDevReader) read(_ time.Time, n *reading) (err error) {
	if n.NetDevs, err = d.list(n.skipped.In("net/dev")); err != nil {
		return err
	}
	for i := range n.NetDevs {
		dev := &n.NetDevs[i]
		if v, err := number(d.sysfs + "/class/net/" + dev.Name + "/statistics/rx_nohandler"); err == nil {
			dev.NoHandler = &v
		}
	}
	return nil
}

func (d *netDevReader) list(skipped *boundedfile.Skipped) ([]model.NetDev, error) {
	b, err := d.file(d.procfs + "/1/net/dev")
	if err != nil {
		b, err = d.file(d.procfs + "/net/dev")
	}
	if err != nil {
		return nil, err
	}
	devs := parseNetDevs(b, skipped)
	if err := unparsed("net/dev", len(devs), skipped); err != nil {
		return nil, err
	}
	return devs, nil
}

// parseNetDevs parses net/dev: two lines of headings, which have no colon, then NAME: NUMBERS.
func parseNetDevs(b []byte, skipped *boundedfile.Skipped) []model.NetDev {
	devs := []model.NetDev{}
	for headings := 2; len(b) > 0 && len(devs) < maxDevices; {
		var line []byte
		line, b = cutLine(b)
		colon := bytes.LastIndexByte(line, ':')
		if colon < 0 && headings > 0 {
			headings--
			continue
		}
		name := bytes.TrimSpace(line[:max(colon, 0)])
		d := model.NetDev{Name: string(name)}
		count, ok := parseUints(line[colon+1:], d.Stats[:])
		if !ok || count < len(d.Stats) || !isInterface(d.Name) {
			skipped.Add(line)
			continue
		}
		devs = append(devs, d)
	}
	return devs
}

// isInterface reports whether the kernel accepts the name of an interface (dev_valid_name), which is also the name of a
// directory of sysfs. An alias (eth0:1) has a colon.
func isInterface(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/ \t\n\v\f\r")
}

// netClassReader reads class/net. An interface has two dozen attributes, and some reads take the kernel's global
// networking lock, so with hundreds of pods they would be most of the cost of a scrape. Every read reads three
// attributes that show a change. All attributes are read only after a change and after coldAge.
type netClassReader struct {
	dir  string
	lib  sysfs.FS
	kept map[string]*netClass
	// elsewhere lists the interfaces of the node, or is nil if this process is in its network namespace.
	elsewhere *netDevReader
}

// errForeign prevents that the interfaces of a pod are reported as the node's.
var errForeign = errors.New("sysfs shows another network namespace than the node's: mount the node's /sys, or use its network")

type netClass struct {
	model.NetClass
	inode uint64 // of the entry: it differs for another interface of the same name
	hot   [3]string
	read  time.Time
}

// hotAttributes change with any other attribute that is not a setting.
var hotAttributes = [3]string{"carrier_changes", "operstate", "flags"}

func (c *netClassReader) read(now time.Time, n *reading) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	kept := make(map[string]*netClass, len(c.kept))
	classes := make([]model.NetClass, 0, len(entries))
	var failed []error
	for _, e := range entries {
		if e.Type().IsRegular() || len(classes) == maxDevices { // bonding_masters
			continue
		}
		name, inode := e.Name(), inodeOf(e)
		k := c.kept[name]
		hot, changed := c.hot(name, k)
		if k == nil || k.inode != inode || changed || now.Sub(k.read) >= coldAge {
			class, err := c.lib.NetClassByIface(name)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
				continue // it was removed
			}
			if err != nil {
				failed = append(failed, fmt.Errorf("interface %s: %w", name, err))
				kept[name] = nil
				continue
			}
			k = &netClass{NetClass: classOf(class), inode: inode, hot: hot, read: now}
		}
		kept[name] = k
		classes = append(classes, k.NetClass)
	}
	c.kept = kept
	if c.elsewhere != nil {
		devs, err := c.elsewhere.list(&boundedfile.Skipped{}) // counted by the part netdev
		if err != nil {
			return err
		}
		for _, d := range devs {
			if _, found := kept[d.Name]; !found {
				return errForeign
			}
		}
		if len(devs) != len(kept) {
			return errForeign
		}
	}
	n.NetClasses = classes
	return errors.Join(failed...)
}

// hot reads the attributes that show a change since k was read.
func (c *netClassReader) hot(name string, k *netClass) (values [3]string, changed bool) {
	var buf [maxSys]byte
	for i, attr := range hotAttributes {
		b, _ := attribute(c.dir+"/"+name+"/"+attr, &buf) // an unreadable attribute does not change
		if k != nil && k.hot[i] == string(b) {
			values[i] = k.hot[i]
			continue
		}
		values[i], changed = string(b), true
	}
	return values, changed
}

func inodeOf(e os.DirEntry) uint64 {
	if info, err := e.Info(); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			return st.Ino
		}
	}
	return 0
}

func classOf(c *sysfs.NetClassIface) model.NetClass {
	return model.NetClass{
		Name:    c.Name,
		Address: c.Address, Broadcast: c.Broadcast, Duplex: c.Duplex, OperState: c.OperState, Alias: clean(c.IfAlias),
		AddressAssignType: c.AddrAssignType, Carrier: c.Carrier,
		CarrierChanges: c.CarrierChanges, CarrierUp: c.CarrierUpCount, CarrierDown: c.CarrierDownCount,
		DeviceID: c.DevID, Dormant: c.Dormant, Flags: c.Flags, Index: c.IfIndex, Link: c.IfLink, LinkMode: c.LinkMode,
		MTU: c.MTU, NameAssignType: c.NameAssignType, Group: c.NetDevGroup,
		SpeedMbits: c.Speed, QueueLength: c.TxQueueLen, ProtocolType: c.Type,
	}
}
