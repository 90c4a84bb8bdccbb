// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// tree is a fake sysfs in a temporary directory, in the form of
// drivers/infiniband/core/sysfs.c.
type tree struct {
	t    testing.TB
	root string
}

func newTree(t testing.TB) tree {
	t.Helper()
	tr := tree{t, t.TempDir()}
	tr.dir("class/infiniband")
	return tr
}

func (tr tree) path(p string) string { return filepath.Join(tr.root, p) }

func (tr tree) dir(p string) {
	tr.t.Helper()
	if err := os.MkdirAll(tr.path(p), 0o755); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) put(p, content string) {
	tr.t.Helper()
	tr.dir(filepath.Dir(p))
	if err := os.WriteFile(tr.path(p), []byte(content), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

// link replaces a path by a symbolic link.
func (tr tree) link(p, target string) {
	tr.t.Helper()
	tr.remove(p)
	tr.dir(filepath.Dir(p))
	if err := os.Symlink(target, tr.path(p)); err != nil {
		tr.t.Fatal(err)
	}
}

// fifo replaces a path by a FIFO. Opening it blocks until unblock is called or the test ends.
func (tr tree) fifo(p string) (unblock func()) {
	tr.t.Helper()
	tr.remove(p)
	if err := unix.Mkfifo(tr.path(p), 0o644); err != nil {
		tr.t.Fatal(err)
	}
	// Keep a handle on the FIFO, as its name may change.
	path, err := unix.Open(tr.path(p), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		tr.t.Fatal(err)
	}
	tr.t.Cleanup(func() { _ = unix.Close(path) })
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
	tr.t.Cleanup(unblock)
	return unblock
}

func (tr tree) remove(p string) {
	tr.t.Helper()
	if err := os.RemoveAll(tr.path(p)); err != nil {
		tr.t.Fatal(err)
	}
}

// hca writes a one-port device like mlx5 with the counters of both sets. The value of a counter
// is its index plus base.
func (tr tree) hca(n int, base uint64) string {
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
		tr.put(dev+"/"+file, content+"\n")
	}
	tr.put(pci+"/numa_node", fmt.Sprintf("%d\n", n%2))
	tr.counters(dev, base)
	tr.link(dev+"/device", "../..")
	tr.link("class/infiniband/"+name, "../../"+dev)
	tr.put(fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", n+40), name+"\n")
	return "class/infiniband/" + name
}

// counters sets the counters of port 1 of a device, from base on.
func (tr tree) counters(dev string, base uint64) {
	tr.t.Helper()
	for i, c := range pmaCounters {
		tr.put(dev+"/ports/1/counters/"+c, fmt.Sprintf("%d\n", base+uint64(i)))
	}
	for i, c := range hwCounters {
		tr.put(dev+"/ports/1/hw_counters/"+c, fmt.Sprintf("%d\n", base+100+uint64(i)))
	}
}

var pmaCounters = strings.Fields(`VL15_dropped excessive_buffer_overrun_errors link_downed
	link_error_recovery local_link_integrity_errors multicast_rcv_packets multicast_xmit_packets
	port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets
	port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_constraint_errors
	port_xmit_data port_xmit_discards port_xmit_packets port_xmit_wait symbol_error
	unicast_rcv_packets unicast_xmit_packets`)

var hwCounters = strings.Fields(`duplicate_request implied_nak_seq_err local_ack_timeout_err
	np_cnp_sent np_ecn_marked_roce_packets out_of_buffer out_of_sequence packet_seq_err
	req_cqe_error resp_cqe_error rnr_nak_retry_err rx_atomic_requests rx_read_requests
	rx_write_requests`)

// The backoff of hang.Backoff: failures before the first pause, and its length.
const (
	failsBeforePause = 3
	shortestPause    = time.Minute
)
