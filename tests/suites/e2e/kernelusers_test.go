// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// nvmeOn makes an NVMe target over RDMA on rxe0, and connects the guest to it: an admin queue and two I/O queues.
const nvmeOn = `set -e
modprobe -a nvmet nvmet_rdma nvme_rdma
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
truncate -s 16M /run/nvme.img
cd /sys/kernel/config/nvmet
mkdir subsystems/accelscope subsystems/accelscope/namespaces/1 ports/1
echo 1 >subsystems/accelscope/attr_allow_any_host
echo 1 >subsystems/accelscope/namespaces/1/buffered_io
printf /run/nvme.img >subsystems/accelscope/namespaces/1/device_path
echo 1 >subsystems/accelscope/namespaces/1/enable
echo rdma >ports/1/addr_trtype
echo ipv4 >ports/1/addr_adrfam
echo 10.70.0.1 >ports/1/addr_traddr
echo 4420 >ports/1/addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/accelscope ports/1/subsystems/accelscope
echo nqn=accelscope,transport=rdma,traddr=10.70.0.1,trsvcid=4420,nr_io_queues=2 >/dev/nvme-fabrics
cat /sys/class/nvme/nvme*/queue_count`

const nvmeOff = `set -e
echo 1 >/sys/class/nvme/nvme0/delete_controller
cd /sys/kernel/config/nvmet
rm ports/1/subsystems/accelscope
echo 0 >subsystems/accelscope/namespaces/1/enable
rmdir ports/1 subsystems/accelscope/namespaces/1 subsystems/accelscope
modprobe -r nvme_rdma nvmet_rdma`

// nfsOn exports a directory over RDMA on rxe1 and mounts it. It answers the kernel's requests for exports itself, in place of
// rpc.mountd. Later kernels start no threads without a port.
const nfsOn = `set -e
modprobe -a nfsd rpcrdma nfsv4
mkdir -p /run/export /run/mnt
mount -t tmpfs tmpfs /run/export
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
echo rdma 20049 >/proc/fs/nfsd/portlist
echo 2 >/proc/fs/nfsd/threads
until=$(($(date +%s) + 100000))
printf 'nfsd 10.71.0.1 %d *\n' $until >/proc/net/rpc/auth.unix.ip/channel
printf '* /run/export %d 9266 65534 65534 0\n' $until >/proc/net/rpc/nfsd.export/channel
printf '* 1 \\x00000000 %d /run/export\n' $until >/proc/net/rpc/nfsd.fh/channel
mount -i -t nfs4 -o vers=4.2,proto=rdma,port=20049,addr=10.71.0.1,clientaddr=10.71.0.1 10.71.0.1:/ /run/mnt`

const nfsOff = `set -e
umount /run/mnt
echo 0 >/proc/fs/nfsd/threads
umount /run/export`

// kernelUsers: NVMe over RDMA from the guest to itself on rxe0, and NFS on rxe1. The truth is the kernel's number of NVMe
// queues, the objects of `rdma resource`, and the counters of the port (Linux 7).
func (n node) kernelUsers(t *testing.T) {
	s := start(t, n.args()...)
	queues, err := strconv.ParseFloat(strings.TrimSpace(sh(t, "bash", "-c", nvmeOn)), 64)
	if err != nil || queues != 3 {
		t.Fatalf("%v NVMe queues, %v", queues, err)
	}
	portmapper(t)
	sh(t, "bash", "-c", nfsOn)
	names := map[string]string{"nvme_rdma": "kernel:nvme", "nvmet_rdma": "kernel:nvmet", "rpcrdma": "kernel:nfs"}
	shown := func(typ string) map[string]map[string]float64 {
		m, got := s.fresh(), map[string]map[string]float64{}
		for _, device := range []string{"rxe0", "rxe1"} {
			got[device] = m.by("container_rdma_resources", "workload", "device", device, "type", typ)
			for workload, count := range got[device] {
				if !strings.HasPrefix(workload, "kernel:") || count == 0 {
					delete(got[device], workload)
				}
			}
		}
		return got
	}
	for _, typ := range []string{"pd", "cm_id"} {
		eventually(t, time.Minute, func() error {
			if diff := cmp.Diff(ofKernel(t, typ, names), shown(typ)); diff != "" {
				return fmt.Errorf("%s of `rdma resource` (-want +got):\n%s", typ, diff)
			}
			return nil
		})
	}
	qps := shown("qp")
	if got := qps["rxe0"]; got["kernel:nvme"] != queues || got["kernel:nvmet"] != queues {
		t.Errorf("queue pairs %v, want %v at each end", got, queues)
	}
	if got := qps["rxe1"]["kernel:nfs"]; got != 2 {
		t.Errorf("%v queue pairs of NFS, want one at each end", got)
	}
	if n.counts() {
		n.kernelPeers(t, s, int(2*queues))
	}
	if n.kernel == "7" && n.counts() {
		n.kernelBytes(t, s)
	}
	sh(t, "bash", "-c", nfsOff)
	sh(t, "bash", "-c", nvmeOff)
	eventually(t, time.Minute, func() error {
		for _, typ := range []string{"pd", "qp"} {
			if left := shown(typ); len(left["rxe0"])+len(left["rxe1"]) > 0 {
				return fmt.Errorf("%s after the end: %v", typ, left)
			}
		}
		return nil
	})
	s.stop()
}

// portmapper stands in for rpcbind, without which the kernel starts no NFS server: it accepts each registration.
func portmapper(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:111")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go register(c)
		}
	}()
}

// register answers calls of ONC RPC (RFC 5531): each one succeeds, with the result true for all but NULL.
func register(c net.Conn) {
	defer c.Close()
	for {
		var length uint32
		if binary.Read(c, binary.BigEndian, &length) != nil {
			return
		}
		call := make([]byte, length&^(1<<31))
		if _, err := io.ReadFull(c, call); err != nil || len(call) < 24 {
			return
		}
		reply := append(slices.Clone(call[:4]), make([]byte, 20)...) // the number of the call; accepted, no verifier, success
		reply[7] = 1                                                 // a reply
		if call[23] != 0 {
			reply = append(reply, 0, 0, 0, 1)
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// ofKernel counts the objects of kernel users by device and workload, as `rdma resource` shows them.
func ofKernel(t *testing.T, typ string, names map[string]string) map[string]map[string]float64 {
	t.Helper()
	var entries []struct{ Ifname, Comm string }
	if err := json.Unmarshal([]byte(sh(t, "rdma", "-j", "resource", "show", typ)), &entries); err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string]float64{"rxe0": {}, "rxe1": {}}
	for _, e := range entries {
		if name := names[strings.Trim(e.Comm, "[]")]; name != "" {
			out[e.Ifname][name]++
		}
	}
	return out
}

// kernelPeers: each queue pair of a kernel user is a peer, and its number is in the list of `rdma resource`.
func (n node) kernelPeers(t *testing.T, s *sensor, nvme int) {
	t.Helper()
	var entries []struct {
		Ifname string
		LQPN   uint32
	}
	if err := json.Unmarshal([]byte(sh(t, "rdma", "-j", "resource", "show", "qp")), &entries); err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, e := range entries {
		exists[fmt.Sprint(e.Ifname, e.LQPN)] = true
	}
	list, err := s.listPeers(t, "")
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	remote := map[string]string{"rxe0": "10.70.0.1", "rxe1": "10.71.0.1"}
	for _, p := range list {
		if !strings.HasPrefix(p.Workload, "kernel:") {
			continue
		}
		count[p.Device]++
		if !exists[fmt.Sprint(p.Device, p.QPN)] || p.RemoteAddress != remote[p.Device] || p.Type != "RC" || p.ContainerID != "" {
			t.Errorf("%+v", p)
		}
	}
	if diff := cmp.Diff(map[string]int{"rxe0": nvme, "rxe1": 2}, count); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
}

// kernelBytes: NFS alone has the bytes of rxe1. Both ends of NVMe are on rxe0, so neither has bytes.
func (n node) kernelBytes(t *testing.T, s *sensor) {
	t.Helper()
	s.fresh()
	s.fresh() // an interval in which the kernel users held the devices from its begin
	of := func(m metrics, device string) float64 {
		return m.sum("container_rdma_transmit_bytes_total", "device", device, "workload", "kernel:nfs") +
			m.sum("container_rdma_transmit_bytes_total", "device", device, "workload", "kernel:nvme") +
			m.sum("container_rdma_transmit_bytes_total", "device", device, "workload", "kernel:nvmet")
	}
	before, sent := s.fresh(), words(t, "rxe1", "port_xmit_data")
	const size = 1 << 20
	if err := os.WriteFile("/run/mnt/data", make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	sh(t, "dd", "if=/dev/zero", "of=/dev/nvme0n1", "bs=64k", "count=16", "oflag=direct")
	eventually(t, time.Minute, func() error {
		m := s.fresh()
		moved := words(t, "rxe1", "port_xmit_data") - sent
		if got := of(m, "rxe1") - of(before, "rxe1"); moved < size || got < size || got > moved {
			return fmt.Errorf("NFS has %v bytes, the port %v, the file %v", got, moved, size)
		}
		if got := of(m, "rxe0"); got != 0 {
			return fmt.Errorf("NVMe has %v bytes of a shared HCA", got)
		}
		return nil
	})
}
