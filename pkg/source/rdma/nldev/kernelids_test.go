// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// storage is a struct sockaddr_storage of the kernel.
func storage(family uint16, port uint16, at int, address []byte) []byte {
	b := make([]byte, 128)
	native.PutUint16(b, family)
	binary.BigEndian.PutUint16(b[2:], port)
	copy(b[at:], address)
	return b
}

// TestKernelIDs: the reply is constructed, as fill_res_cm_id_entry of Linux 6.12 makes it: ids of modules and of a
// process, connected by IPv4, IPv6 and InfiniBand addresses, and a listener.
func TestKernelIDs(t *testing.T) {
	id := func(of ...[]byte) []byte { return hca.Nest(AttrCMID+1, of...) }
	qp := func(n uint32) []byte {
		return slices.Concat(hca.U32(AttrPortIndex, 1), hca.U32(AttrLQPN, n), hca.Attr(AttrQPType, 2))
	}
	far := func(b []byte) []byte { return hca.Attr(AttrDstAddr, b...) }
	six := netip.MustParseAddr("fd00::7").As16()
	device := slices.Concat(hca.U32(AttrDevIndex, 3), hca.Text(AttrDevName, "mlx5_0"))
	reply := slices.Concat(hca.Reply(CmdCMIDGet, unix.NLM_F_MULTI, device, hca.Nest(AttrCMID,
		id(qp(17), far(storage(unix.AF_INET, 4420, 4, []byte{10, 70, 0, 1})), hca.Text(AttrKernName, "nvme_rdma")),
		id(qp(18), far(storage(unix.AF_INET6, 20049, 8, six[:])), hca.Text(AttrKernName, "rpcrdma")),
		id(qp(19), far(storage(27, 0, 8, six[:])), hca.Text(AttrKernName, "ib_srp")),
		id(hca.Text(AttrKernName, "nvmet_rdma")),
		id(qp(20), far(storage(unix.AF_INET, 1, 4, []byte{10, 70, 0, 2})), hca.U32(AttrPID, 41)),
		id(qp(21), far([]byte{2}), hca.Text(AttrKernName, "cut")),
	)), hca.Done())
	want := []model.KernelID{
		{Module: "nvme_rdma", Port: 1, QPN: 17, QPType: 2, Remote: netip.MustParseAddr("10.70.0.1")},
		{Module: "rpcrdma", Port: 1, QPN: 18, QPType: 2, Remote: netip.MustParseAddr("fd00::7")},
		{Module: "ib_srp", Port: 1, QPN: 19, QPType: 2},
		{Module: "nvmet_rdma"},
		{Module: "cut", Port: 1, QPN: 21, QPType: 2},
	}
	conn, err := fakeKernel(t, func([]byte) [][]byte { return [][]byte{reply} })()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := conn.KernelIDs(3, time.Now().Add(time.Minute))
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}
