// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// arphrdInfiniband is the type of an interface in sysfs (ARPHRD_INFINIBAND).
const arphrdInfiniband = "32"

// maxIPoIB bounds the interfaces of one device: a port has one interface for each partition.
const maxIPoIB = 128

// children maps interfaces of class/net, by the inode of their entry, to the index of their parent IPoIB interface, 0
// for any other interface. So each interface is read once.
type children map[uint64]int

// ReadIPoIB reads the packets of the IPoIB interfaces of the device. These are the interfaces of its function. If the
// kernel has more protection domains of IPoIB, they are also the children of these interfaces for further partitions,
// which have no link to the function. ReadIPoIB must run after the port counters were read: then the result has each
// sent packet that the port counters include.
func (d *Device) ReadIPoIB(domains []model.Domains) []model.IPoIB {
	var want uint64
	for i := range domains {
		if domains[i].Module == model.IPoIBModule {
			want = domains[i].Count
		}
	}
	if want == 0 {
		d.children = nil
		return nil
	}
	var all []model.IPoIB
	parents := map[int]bool{}
	functions := d.path + "/device/net"
	for _, name := range d.Reader.Directory(unix.AT_FDCWD, functions, ValidInterface) {
		path := functions + "/" + name
		if len(all) >= maxIPoIB || d.Reader.Line(unix.AT_FDCWD, path+"/type") != arphrdInfiniband {
			continue
		}
		parents[d.number(path+"/ifindex")] = true
		all = append(all, d.packets(name, path))
	}
	if uint64(len(all)) < want && len(parents) > 0 {
		all = d.addChildren(all, parents)
	}
	return all
}

func (d *Device) addChildren(all []model.IPoIB, parents map[int]bool) []model.IPoIB {
	class := filepath.Join(d.path, "../../net")
	fd, err := d.Reader.Openat(unix.AT_FDCWD, class, unix.O_DIRECTORY)
	if err != nil {
		return all
	}
	defer d.Reader.Close(fd)
	type entry struct {
		name  string
		inode uint64
	}
	var entries []entry
	known := children{}
	err = d.Reader.Entries(fd, func(e boundedfile.Entry) {
		parent, ok := d.children[e.Inode]
		if ok {
			known[e.Inode] = parent
		}
		if name := string(e.Name); (!ok || parents[parent]) && ValidInterface(name) {
			entries = append(entries, entry{name, e.Inode})
		}
	})
	if err != nil {
		return all
	}
	for _, e := range entries {
		path := class + "/" + e.name
		parent, ok := known[e.inode]
		if !ok {
			parent = d.parent(path)
			known[e.inode] = parent
		}
		if parents[parent] && len(all) < maxIPoIB {
			all = append(all, d.packets(e.name, path))
		}
	}
	d.children = known
	return all
}

// parent returns the index of the IPoIB interface that is the parent of an interface (iflink), or 0.
func (d *Device) parent(path string) int {
	if d.Reader.Line(unix.AT_FDCWD, path+"/type") != arphrdInfiniband {
		return 0
	}
	link := d.number(path + "/iflink")
	if link == d.number(path+"/ifindex") {
		return 0
	}
	return link
}

func (d *Device) number(path string) int {
	n, err := strconv.Atoi(d.Reader.Line(unix.AT_FDCWD, path))
	if err != nil {
		return 0
	}
	return n
}

func (d *Device) packets(name, path string) model.IPoIB {
	i := model.IPoIB{Name: name}
	for _, file := range []string{"rx_packets", "tx_packets"} {
		n, err := strconv.ParseUint(d.Reader.Line(unix.AT_FDCWD, path+"/statistics/"+file), 10, 64)
		if err == nil {
			i.Packets += n
		}
	}
	return i
}
