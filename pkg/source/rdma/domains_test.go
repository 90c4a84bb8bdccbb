// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

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
