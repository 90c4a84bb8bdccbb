// SPDX-License-Identifier: Apache-2.0

// Package hca has fakes of HCAs for tests: a sysfs in a temporary directory, and netlink replies on a socket.
package hca

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is a fake sysfs in a temporary directory, in the form of
// drivers/infiniband/core/sysfs.c.
type Tree struct {
	T    testing.TB
	Root string
}

// NewTree returns a tree without devices.
func NewTree(t testing.TB) Tree {
	t.Helper()
	tr := Tree{t, t.TempDir()}
	tr.Dir("class/infiniband")
	return tr
}

// Path returns the path of a file in the tree.
func (tr Tree) Path(p string) string { return filepath.Join(tr.Root, p) }

// Dir makes a directory.
func (tr Tree) Dir(p string) {
	tr.T.Helper()
	if err := os.MkdirAll(tr.Path(p), 0o755); err != nil {
		tr.T.Fatal(err)
	}
}

// Put writes a file.
func (tr Tree) Put(p, content string) {
	tr.T.Helper()
	tr.Dir(filepath.Dir(p))
	if err := os.WriteFile(tr.Path(p), []byte(content), 0o644); err != nil {
		tr.T.Fatal(err)
	}
}

// Link replaces a path by a symbolic link.
func (tr Tree) Link(p, target string) {
	tr.T.Helper()
	tr.Remove(p)
	tr.Dir(filepath.Dir(p))
	if err := os.Symlink(target, tr.Path(p)); err != nil {
		tr.T.Fatal(err)
	}
}

// Fifo replaces a path by a FIFO. Opening it blocks until unblock is called or the test ends.
func (tr Tree) Fifo(p string) (unblock func()) {
	tr.T.Helper()
	tr.Remove(p)
	if err := unix.Mkfifo(tr.Path(p), 0o644); err != nil {
		tr.T.Fatal(err)
	}
	// Keep a handle on the FIFO, as its name may change.
	path, err := unix.Open(tr.Path(p), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		tr.T.Fatal(err)
	}
	tr.T.Cleanup(func() { _ = unix.Close(path) })
	unblock = func() {
		for {
			fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", path), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err != nil {
				return // no reader waits
			}
			_ = unix.Close(fd)
			time.Sleep(time.Millisecond)
		}
	}
	tr.T.Cleanup(unblock)
	return unblock
}

// Remove removes a file or a directory.
func (tr Tree) Remove(p string) {
	tr.T.Helper()
	if err := os.RemoveAll(tr.Path(p)); err != nil {
		tr.T.Fatal(err)
	}
}

// HCA writes a one-port device like mlx5 with the counters of both sets. The value of a counter is its index plus base.
func (tr Tree) HCA(n int, base uint64) string {
	name := fmt.Sprintf("mlx5_%d", n)
	pci := fmt.Sprintf("devices/pci0000:15/0000:%02x:00.0", 0x18+n)
	dev := pci + "/infiniband/" + name
	for file, content := range map[string]string{
		"node_type": "1: CA", "node_guid": fmt.Sprintf("a088:c203:0000:%04x", n),
		"sys_image_guid": fmt.Sprintf("a088:c203:0000:%04x", n), "node_desc": "node-0 " + name,
		"fw_ver": "28.39.3004", "hca_type": "MT4129", "board_id": "MT_0000000838", "hw_rev": "0",
		"ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp", "ports/1/rate": "400 Gb/sec (4X NDR)",
		"ports/1/link_layer": "InfiniBand", "ports/1/lid": "0x1", "ports/1/sm_lid": "0x2",
		"ports/1/gids/0":               fmt.Sprintf("fe80:0000:0000:0000:a088:c203:0000:%04x", n),
		"ports/1/hw_counters/lifespan": "10",
		"ports/1/gid_attrs/ndevs/0":    fmt.Sprintf("ib%d", n),
	} {
		tr.Put(dev+"/"+file, content+"\n")
	}
	tr.Put(pci+"/numa_node", fmt.Sprintf("%d\n", n%2))
	tr.Counters(dev, base)
	tr.Link(dev+"/device", "../..")
	tr.Link("class/infiniband/"+name, "../../"+dev)
	tr.Put(fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", n+40), name+"\n")
	return "class/infiniband/" + name
}

// Counters sets the counters of port 1 of a device, from base on.
func (tr Tree) Counters(dev string, base uint64) {
	tr.T.Helper()
	for i, c := range PMACounters {
		tr.Put(dev+"/ports/1/counters/"+c, fmt.Sprintf("%d\n", base+uint64(i)))
	}
	for i, c := range HWCounters {
		tr.Put(dev+"/ports/1/hw_counters/"+c, fmt.Sprintf("%d\n", base+100+uint64(i)))
	}
}

// PMACounters and HWCounters are the names of the counters of mlx5.
var (
	PMACounters = strings.Fields(`VL15_dropped excessive_buffer_overrun_errors link_downed
	link_error_recovery local_link_integrity_errors multicast_rcv_packets multicast_xmit_packets
	port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
	port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors
	port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error
	unicast_rcv_packets unicast_xmit_packets`)
	HWCounters = strings.Fields(`duplicate_request implied_nak_seq_err local_ack_timeout_err
	np_cnp_sent np_ecn_marked_roce_packets out_of_buffer out_of_sequence packet_seq_err
	req_cqe_error resp_cqe_error rnr_nak_retry_err rx_atomic_requests rx_read_requests
	rx_write_requests`)
)

// EmptyGID is the content of gids/I for an empty entry.
const EmptyGID = "0000:0000:0000:0000:0000:0000:0000:0000"

// GIDs writes a GID table of size entries for a port. An entry "TYPE ADDRESS [NETDEV]" is at its index. The attributes
// of the other entries fail with EINVAL as in the kernel. No fake file can do this, so they link to a real attribute,
// such as the speed of the loopback interface.
func (tr Tree) GIDs(port string, size int, entries map[int]string) {
	tr.T.Helper()
	for i := range size {
		f := strings.Split(entries[i], "|")
		gid, types, ndevs := fmt.Sprintf("%s/gids/%d", port, i), fmt.Sprintf("%s/gid_attrs/types/%d", port, i), fmt.Sprintf("%s/gid_attrs/ndevs/%d", port, i)
		const invalid = "/sys/class/net/lo/speed"
		if entries[i] == "" {
			tr.Put(gid, EmptyGID+"\n")
			tr.Link(types, invalid)
			tr.Link(ndevs, invalid)
			continue
		}
		tr.Put(types, f[0]+"\n")
		tr.Put(gid, f[1]+"\n")
		if f[2] == "" {
			tr.Link(ndevs, invalid)
		} else {
			tr.Put(ndevs, f[2]+"\n")
		}
	}
}

// Interface writes an interface as sysfs shows it below class/net or the function of a device.
func (tr Tree) Interface(path, typ string, index, link, packets int) {
	tr.T.Helper()
	for file, content := range map[string]any{
		"type": typ, "ifindex": index, "iflink": link, "statistics/rx_packets": packets, "statistics/tx_packets": 2 * packets,
	} {
		tr.Put(path+"/"+file, fmt.Sprintln(content))
	}
}

// SRIOV writes a PF, mlx5_0, with virtual functions; each name gives a function an HCA. The tree is constructed: the
// links follow the PCI core (drivers/pci/iov.c), the files of sriov/ the vendor driver.
func (tr Tree) SRIOV(names ...string) {
	tr.HCA(0, 1)
	const bus = "devices/pci0000:15/"
	pf := bus + "0000:18:00.0"
	tr.Link("bus/pci/devices/0000:18:00.0", "../../../"+pf)
	for i, name := range names {
		address := fmt.Sprintf("0000:18:00.%d", i+1)
		vf := bus + address
		tr.Put(vf+"/numa_node", "1\n")
		tr.Link(vf+"/physfn", "../0000:18:00.0")
		tr.Link(fmt.Sprintf("%s/virtfn%d", pf, i), "../"+address)
		tr.Link("bus/pci/devices/"+address, "../../../"+vf)
		tr.Put(fmt.Sprintf("%s/sriov/%d/node", pf, i), fmt.Sprintf("a0:88:c2:03:00:00:01:%02x\n", i+1))
		tr.Put(fmt.Sprintf("%s/sriov/%d/port", pf, i), fmt.Sprintf("a0:88:c2:03:00:00:02:%02x\n", i+1))
		if name == "" {
			continue
		}
		dev := vf + "/infiniband/" + name
		tr.Put(dev+"/node_guid", fmt.Sprintf("a088:c203:0000:010%d\n", i+1))
		tr.Put(dev+"/ports/1/state", "1: DOWN\n")
		tr.Put(dev+"/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000\n")
		tr.Link(dev+"/device", "../..")
		tr.Link("class/infiniband/"+name, "../../"+dev)
	}
}

// Uverbs writes the uverbs device of an HCA that is not in class/infiniband.
func (tr Tree) Uverbs(n int, name, address string) {
	dir := fmt.Sprintf("devices/pci0000:15/%s/infiniband_verbs/uverbs%d", address, n)
	tr.Put(dir+"/ibdev", name+"\n")
	tr.Link(fmt.Sprintf("class/infiniband_verbs/uverbs%d", n), "../../"+dir)
}

// PKeys writes a P_Key table of size entries for a port.
func (tr Tree) PKeys(port string, size int, keys map[int]uint16) {
	tr.T.Helper()
	for i := range size {
		tr.Put(fmt.Sprintf("%s/pkeys/%d", port, i), fmt.Sprintf("0x%04x\n", keys[i]))
	}
}
