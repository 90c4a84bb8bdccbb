// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestReadKernelIDs: a source lists the connection manager ids of an HCA with a consumer in the kernel. If the list
// fails, the device has a failure and its protection domains. The replies are constructed.
func TestReadKernelIDs(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	var used, lists uint64
	refuse := false
	named := hca.Text(nldev.AttrKernName, "nvme_rdma")
	s := netlinkSource(t, tr, fake(t, func(r []byte) [][]byte {
		reply := func(cmd uint16, of ...[]byte) [][]byte {
			return [][]byte{slices.Concat(hca.Reply(cmd, unix.NLM_F_MULTI, of...), hca.Done())}
		}
		switch cmd := native.Uint16(r[4:]) & 0x3ff; cmd {
		case nldev.CmdGet:
			return reply(cmd, hca.U32(nldev.AttrDevIndex, 3), hca.Text(nldev.AttrDevName, "mlx5_0"),
				hca.U64(nldev.AttrNodeGUID, 0xa088c20300000000))
		case nldev.CmdPDGet:
			return reply(cmd, hca.Nest(nldev.AttrPD, hca.Nest(nldev.AttrPD+1, hca.U64(nldev.AttrUseCount, used), named)))
		case nldev.CmdCMIDGet:
			if lists++; refuse {
				return [][]byte{hca.Failure(unix.ENOMEM)}
			}
			return reply(cmd, hca.Nest(nldev.AttrCMID, hca.Nest(nldev.AttrCMID+1, hca.U32(nldev.AttrLQPN, 17), named)))
		}
		return [][]byte{hca.Done()}
	}))
	if snap := mustRead(t, s); snap.KernelIDs != nil || lists > 0 {
		t.Errorf("without a consumer: %+v, %d lists", snap.KernelIDs, lists)
	}
	used = 1
	want := []model.KernelID{{Device: "mlx5_0", Module: "nvme_rdma", QPN: 17}}
	if diff := cmp.Diff(want, mustRead(t, s).KernelIDs, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	refuse = true
	snap := mustRead(t, s)
	if snap.KernelIDs != nil || len(snap.Domains) != 2 || !strings.Contains(snap.DeviceStates[0].Reason, "RES_CM_ID_GET") {
		t.Errorf("%+v, %+v, %+v", snap.KernelIDs, snap.Domains, snap.DeviceStates)
	}
}

// TestReadDomains: a source lists the protection domains with the rest of a reading. If the list fails, the device has
// a failure and no lines.
func TestReadDomains(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	refuse := false
	s := netlinkSource(t, tr, fake(t, func(r []byte) [][]byte {
		switch native.Uint16(r[4:]) & 0x3ff {
		case nldev.CmdGet:
			return [][]byte{slices.Concat(hca.Reply(nldev.CmdGet, unix.NLM_F_MULTI, hca.U32(nldev.AttrDevIndex, 3), hca.Text(nldev.AttrDevName, "mlx5_0"),
				hca.U64(nldev.AttrNodeGUID, 0xa088c20300000000)), hca.Done())}
		case nldev.CmdPDGet:
			if refuse {
				return [][]byte{hca.Failure(unix.ENOMEM)}
			}
			return [][]byte{recordedReply(t, "res_pd")}
		}
		return [][]byte{hca.Done()}
	}))
	want := []model.Domains{{Device: "mlx5_0", Count: 5, Used: 5}, {Device: "mlx5_0", Module: "ib_core", Count: 1, Used: 1}}
	if diff := cmp.Diff(want, mustRead(t, s).Domains); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	refuse = true
	if snap := mustRead(t, s); snap.Domains != nil || !strings.Contains(snap.DeviceStates[0].Reason, "RES_PD_GET") {
		t.Errorf("%+v, %+v", snap.Domains, snap.DeviceStates)
	}
}
